"""Read and download data sets in the layout that torchvision keeps on disk."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from isoproto.data.base import ImageDataset
from isoproto.data.folders import cached_array, content_key, listing
from isoproto.data.imagefolder import refuse_empty
from isoproto.data.info import Torchvision
from isoproto.data.pictures import decode_pictures
from isoproto.errors import DataError


def torchvision_files(place: Torchvision, folder: Path) -> list[Path]:
    """Return torchvision's files of a set under ``folder``, or none if a pattern of ``place.files`` matches nothing."""
    found = [sorted(folder.glob(pattern)) for pattern in place.files]
    return [path for paths in found for path in paths] if all(found) else []


def read_torchvision(name: str, place: Torchvision, folder: Path, side: int = 0) -> ImageDataset:
    """Read a set from torchvision's files, which are decoded once per machine.

    Args:
        name: Name of the set, for the cache.
        place: Where torchvision has the set.
        folder: See ``data_folder``.
        side: Rows and columns to which picture files are resized.

    Raises:
        DataError: If files are damaged or not those that torchvision expects, or a listed class has no picture.
    """
    files = torchvision_files(place, folder)
    key = content_key(name, (listing(files), side))
    read = functools.cache(lambda: _read(place, folder, side, files[0]))  # once for all three arrays
    x = cached_array(f"{key}-x", lambda: read()[0])
    labels = cached_array(f"{key}-y", lambda: read()[1])
    classes = cached_array(f"{key}-classes", lambda: read()[2])
    return ImageDataset(
        torch.from_numpy(x),
        torch.from_numpy(labels[0]),
        torch.from_numpy(labels[1] == 1),
        tuple(map(str, classes)),
        source=f"{name} in {folder}",
    )


def fetch_torchvision(place: Torchvision, folder: Path) -> None:
    """Let torchvision download a set into ``folder``.

    Raises:
        DataError: If the download fails.
    """
    try:
        for part in _parts(place):
            _open(place, folder, part, download=True)
    except (OSError, RuntimeError, ImportError) as err:
        raise DataError(
            f"torchvision.datasets.{place.cls} cannot be downloaded to {folder} ({_line(err)}); try again with a "
            "network, or copy its files there from another machine"
        ) from err


Read = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.str_]]


def _read(place: Torchvision, folder: Path, side: int, file: Path) -> Read:
    """Return pictures ``[N, channels, H, W]``, labels and test mask ``[2, N]``, and class names."""
    try:
        parts = [_open(place, folder, part, download=False) for part in _parts(place)]
        x, labels = zip(*(_content(part, side) for part in parts), strict=True)
    except DataError:
        raise
    except Exception as err:  # foreign pickles, archives and tables raise errors of many types
        raise DataError(
            f"{file} and others in {folder} cannot be read as torchvision.datasets.{place.cls} ({_line(err)}); remove "
            "them and fetch the set again"
        ) from err
    y = np.concatenate(labels)
    test = np.arange(len(y)) >= len(x[0])
    classes = getattr(parts[0], "classes", None) or [str(i) for i in range(int(y.max()) + 1)]
    return np.concatenate(x), np.stack([y, test]), np.array(classes)


def _parts(place: Torchvision) -> list[dict[str, Any]]:
    if place.part == "train":
        return [{"train": True}, {"train": False}]
    return [{"split": "train"}, {"split": "test"}] if place.part == "split" else [{}]


def _open(place: Torchvision, folder: Path, part: dict[str, Any], *, download: bool) -> Any:  # noqa: ANN401
    from torchvision import datasets  # slow to import, and most runs need none of it

    return getattr(datasets, place.cls)(root=str(folder), download=download, **part)


def _content(part: Any, side: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:  # noqa: ANN401 - untyped
    """Return pictures ``[N, channels, H, W]`` and labels ``[N]`` from one of torchvision's objects.

    Some of its classes hold arrays, in four layouts; others hold paths of picture files.
    """
    if not hasattr(part, "data"):
        # Torchvision lists files in the order of the file system, which differs from machine to machine.
        listed = sorted(zip(map(Path, part._image_files), part._labels, strict=True))
        files = [path for path, _ in listed]
        refuse_empty((part._data_dir / name[0] / name for name in part.classes), {path.parent for path in files})
        return decode_pictures(files, lambda i: str(files[i]), side), np.array([label for _, label in listed])
    y = np.asarray(part.labels if hasattr(part, "labels") else part.targets, np.int64)
    x = np.asarray(part.data)
    if x.ndim == 3:
        return x[:, None], y
    return np.ascontiguousarray(x if x.shape[1] == 3 else x.transpose(0, 3, 1, 2)), y


def _line(err: Exception) -> str:
    return " ".join(str(err).split()) or type(err).__name__
