"""The partition by a list that says which classes each client holds."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_smallest, deal
from isoproto.errors import DataError


def label_sets_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
    *,
    label_sets: tuple[tuple[int, ...], ...] = (),
) -> list[Indices]:
    """Give client ``i`` samples of the classes ``label_sets[i]``, and of no other.

    The samples of a class are dealt evenly among the clients that list it. A class that nobody lists stays unused. A
    client with an empty set is empty, which ``min_samples`` = 0 allows.

    Raises:
        DataError: If the number of sets is not the number of clients, a listed class is not in the data, or a client
            would get fewer than ``min_samples`` samples.

    Example:
        >>> labels = np.repeat([0, 1, 2], 4)
        >>> rng, sets = np.random.RandomState(0), ((0, 1), (1,))
        >>> parts = label_sets_partition(labels, None, 2, rng, PartitionOptions(), label_sets=sets)
        >>> [np.bincount(labels[part]).tolist() for part in parts]
        [[4, 2], [0, 2]]
    """
    if len(label_sets) != clients:
        raise DataError(
            f"partition 'classes' must list the classes of each of the {clients} clients, got {len(label_sets)} lists; "
            'write `partition = "classes:0,1,3;2,7;4"` for three clients'
        )
    present = np.unique(labels)
    if unknown := sorted({label for held in label_sets for label in held} - set(present.tolist())):
        raise DataError(f"partition 'classes' lists {unknown}, but the data hold only the classes {present.tolist()}")
    groups = (
        (np.flatnonzero(labels == label), np.array([i for i, held in enumerate(label_sets) if label in held], np.int64))
        for label in present
    )
    parts = deal(groups, clients, rng)
    return check_smallest(parts, options.min_samples, "list more classes for it, or set `min-samples` to 0")


def parse_label_sets(text: str) -> tuple[tuple[int, ...], ...]:
    """Read ``"0,1,3;2,7;4"``: clients separated by semicolons, class numbers by commas.

    Raises:
        DataError: If the text holds anything but class numbers.

    Example:
        >>> parse_label_sets("0,1,3; 2,7; 4")
        ((0, 1, 3), (2, 7), (4,))
    """
    try:
        return tuple(tuple(int(label) for label in held.split(",") if held.strip()) for held in text.split(";"))
    except ValueError as err:
        raise DataError(
            f"partition 'classes:{text}' must be class numbers, with commas between those of one client and "
            "semicolons between clients, as in 'classes:0,1,3;2,7;4'"
        ) from err
