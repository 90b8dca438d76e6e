"""Renumber the classes of a device's data in the order that its federation uses."""

import dataclasses
import difflib
from typing import TypeVar

import torch

from isoproto.data.base import Dataset
from isoproto.data.names import clean
from isoproto.errors import ConfigError, DataError

Kind = TypeVar("Kind", bound=Dataset)


def class_names(text: str) -> tuple[str, ...]:
    """Split a text at its commas into class names.

    Raises:
        ConfigError: If a name is empty or occurs twice.

    Example:
        >>> class_names("cat, dog")
        ('cat', 'dog')
    """
    names = tuple(clean(name, "`classes`") for name in text.split(",")) if text else ()
    if "" in names or len(set(names)) < len(names):
        raise ConfigError(f"`classes` must be different names separated by commas, got {text!r:.200}")
    return names


def with_classes(dataset: Kind, wanted: tuple[str, ...], *, outside: str = "refuse") -> Kind:
    """Return a data set with the federation's class numbers; the data may lack some of the classes.

    Args:
        dataset: The data.
        wanted: Names of the federation's classes, in its order; if empty, the data stay as they are.
        outside: ``drop`` leaves out samples of other classes; ``refuse`` raises an error if there are any.

    Raises:
        DataError: If there are samples of other classes and ``outside`` is ``refuse``, or no sample is left.

    Example:
        >>> from isoproto.data.base import ImageDataset
        >>> pictures, part = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([False, False, True])
        >>> own = ImageDataset(pictures, torch.tensor([0, 1, 1]), part, ("cat", "dog"), source="pets.npz")
        >>> with_classes(own, ("bird", "cat", "dog")).y.tolist()
        [1, 2, 2]
        >>> with_classes(own, ("dog", "fox"), outside="drop").y.tolist()
        [0, 0]
    """
    if not wanted or wanted == dataset.classes:
        return dataset
    number = {name: index for index, name in enumerate(wanted)}
    lookup = torch.tensor([number.get(name, -1) for name in dataset.classes])
    labels = lookup[dataset.y]
    inside = labels >= 0
    if not bool(inside.all()) and outside == "refuse":
        counts = torch.bincount(dataset.y[~inside], minlength=len(dataset.classes)).tolist()
        others = {name: count for name, count in zip(dataset.classes, counts, strict=True) if count}
        close = {name: near[0] for name in others if (near := difflib.get_close_matches(name, wanted, n=1))}
        hint = f" Did you mean {close}?" if close else ""
        raise DataError(
            f"{dataset.source}: {int((~inside).sum())} of {len(labels)} samples are of classes that this federation "
            f"does not have: {others!r:.200}; it has {list(wanted)!r:.200}.{hint} Rename them, or leave their samples "
            "out with `outside-classes = 'drop'` in the node's configuration"
        )
    if not bool(inside.any()):
        raise DataError(
            f"{dataset.source}: its classes {list(dataset.classes)!r:.200} are none of the federation's "
            f"{list(wanted)!r:.200}"
        )
    return dataclasses.replace(
        dataset,
        x=dataset.x if bool(inside.all()) else dataset.x[inside],
        y=labels[inside],
        test=dataset.test[inside],
        classes=wanted,
        domain=None if dataset.domain is None else dataset.domain[inside],
    )
