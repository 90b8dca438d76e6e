"""Load a data set by its name, and deal it out to clients."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path

from isoproto.data.base import ClientData, Dataset, ImageDataset, TextDataset, to_float
from isoproto.data.classes import class_names, with_classes
from isoproto.data.digits import load_digits
from isoproto.data.embedded import load_digits4
from isoproto.data.folders import data_folder
from isoproto.data.hub import load_hub
from isoproto.data.imagefolder import load_imagefolder
from isoproto.data.info import INFOS, DatasetInfo, info_of
from isoproto.data.named import load_named
from isoproto.data.npz import load_npz
from isoproto.data.own import load_own
from isoproto.data.partition import (
    PARTITIONERS,
    ClientSplit,
    PartitionOptions,
    class_counts,
    client_data,
    hold_out,
    partition_table,
    split_clients,
)
from isoproto.data.text import load_texts
from isoproto.data.text_sets import load_shakespeare, load_text_set
from isoproto.errors import DataError
from isoproto.registry import lookup

__all__ = [
    "DATASETS",
    "INFOS",
    "PARTITIONERS",
    "ClientData",
    "ClientSplit",
    "Dataset",
    "ImageDataset",
    "Loader",
    "PartitionOptions",
    "TextDataset",
    "class_counts",
    "class_names",
    "client_data",
    "describe",
    "hold_out",
    "load_dataset",
    "partition_table",
    "split_clients",
    "to_float",
    "with_classes",
]

Loader = Callable[[str, Path], Dataset]
"""Reads a data set, given the text behind the colon of its name (or "") and the folder of ``data-dir``."""

DATASETS: dict[str, Loader] = {
    "digits4": load_digits4,
    "npz": load_npz,
    "module": load_own,
    "hf": load_hub,
    "imagefolder": load_imagefolder,
    "cifar10": functools.partial(load_named, name="cifar10"),
    "cifar100": functools.partial(load_named, name="cifar100"),
    "tiny_imagenet": functools.partial(load_named, name="tiny_imagenet"),
    "pacs": functools.partial(load_named, name="pacs"),
    "domainnet": functools.partial(load_named, name="domainnet"),
    "office_caltech": functools.partial(load_named, name="office_caltech"),
    "digits": load_digits,
    "syn": functools.partial(load_named, name="syn"),
    "mnist": functools.partial(load_named, name="mnist"),
    "fashionmnist": functools.partial(load_named, name="fashionmnist"),
    "femnist": functools.partial(load_named, name="femnist"),
    "usps": functools.partial(load_named, name="usps"),
    "svhn": functools.partial(load_named, name="svhn"),
    "ham10000": functools.partial(load_named, name="ham10000"),
    "sun397": functools.partial(load_named, name="sun397"),
    "csv": functools.partial(load_texts, kind="csv"),
    "jsonl": functools.partial(load_texts, kind="jsonl"),
    "ag_news": functools.partial(load_text_set, name="ag_news"),
    "amazon": functools.partial(load_text_set, name="amazon"),
    "dbpedia14": functools.partial(load_text_set, name="dbpedia14"),
    "shakespeare": load_shakespeare,
}
"""Reads each data set, in the order in which ``isoproto data`` lists them."""


@functools.lru_cache(maxsize=4)
def load_dataset(name: str, data_dir: str = "") -> Dataset:
    """Load a data set; each process keeps the four sets that it used last.

    Args:
        name: Key of ``DATASETS``. In ``npz:FILE``, ``imagefolder:FOLDER``, ``csv:FILE`` and ``jsonl:FILE`` the path of
            the data follows.
        data_dir: Folder that holds data files, from which relative paths start; empty for the default.

    Raises:
        ConfigError: If no data set has the name.
        DataError: If the data cannot be found or read.

    Example:
        >>> digits = load_dataset("digits4")
        >>> digits.x.shape, digits.domains, int(digits.test.sum())
        (torch.Size([6400, 1, 32, 32]), ('scan', 'pen', 'print', 'scene'), 1600)
    """
    key, _, argument = name.partition(":")
    load = lookup(DATASETS, "data", key)
    try:
        return load(argument, data_folder(data_dir))
    except OSError as err:
        where = f" {err.filename}" if err.filename else ""
        raise DataError(
            f"data '{name}': cannot read{where}: {err.strerror or err}; give this user the right to read it, or mend it"
        ) from err


def describe(name: str) -> DatasetInfo:
    """Return what is known of a data set before it is read.

    A set without a row in ``INFOS`` is described by the first line of its loader's docstring.

    Args:
        name: Key of ``DATASETS``; a colon and what follows it do not matter.

    Raises:
        ConfigError: If no data set has the name.

    Example:
        >>> describe("digits4").how_to_get
        'comes with the package'
    """
    kind = name.partition(":")[0]
    loader, info = lookup(DATASETS, "data", kind), info_of(kind)
    says = inspect.getdoc(loader)
    return info if kind in INFOS or not says else dataclasses.replace(info, what=says.splitlines()[0])
