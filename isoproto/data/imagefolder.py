"""Data sets as folders of pictures, one folder a class."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from isoproto.data.base import ImageDataset
from isoproto.data.folders import cached_array, content_key, find, listing, split_number
from isoproto.data.pictures import decode_pictures
from isoproto.errors import DataError

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_PARTS = {"train": False, "test": True, "val": True}  # name -> is it the official test part


def load_imagefolder(argument: str, folder: Path) -> ImageDataset:
    """Read pictures that lie as ``[train|test|val/][domain/]class/name.png`` under one folder.

    Without ``train`` and ``test`` (or ``val``) folders there is no official test part. Classes and domains are
    numbered in the order of their names. All pictures are resized to the most frequent size, or to squares:
    ``imagefolder:photos@64``. They are decoded once and kept in ``cache_folder()``.

    Args:
        argument: Path of the folder, relative to ``folder``, ``~`` allowed; optionally ``@`` and a side in pixels.
        folder: See ``data_folder``.

    Raises:
        DataError: If the folder is missing, holds no pictures, mixes layouts or has an empty class, or if a
            picture cannot be read.
    """
    where, side = split_number(argument)
    root = find("imagefolder", where, folder)
    files = sorted(path for path in _walk(root) if path.suffix.lower() in _SUFFIXES and not path.name.startswith("."))
    if not files:
        raise DataError(f"{root}: no pictures found; wanted class/name.png, one folder a class")
    places = [path.relative_to(root).parts[:-1] for path in files]
    has_parts = {place[0] for place in places if place} <= _PARTS.keys()
    test = [has_parts and _PARTS[place[0]] for place in places]
    labels = [place[1:] if has_parts else place for place in places]
    for path, label in zip(files, labels, strict=True):
        if not 1 <= len(label) <= 2 or len(label) != len(labels[0]):
            raise DataError(
                f"{path}: pictures must all lie as class/name.png or all as domain/class/name.png under "
                f"{root} (or under its train and test folders)"
            )
    _check_no_class_is_empty(root, len(places[0]))
    class_of, domain_of = [label[-1] for label in labels], [label[0] for label in labels]
    return dataset_of_files(root, files, class_of, test, domain_of if len(labels[0]) == 2 else (), side)


def read_tree(root: Path, side: int = 0) -> ImageDataset:
    """Read ``root`` as ``load_imagefolder`` does, resized to squares of ``side`` pixels unless that is 0."""
    return load_imagefolder(f"{root.absolute()}@{side}" if side else str(root.absolute()), root)


def dataset_of_files(
    root: Path,
    files: Sequence[Path],
    class_of: Sequence[str],
    test: Sequence[bool],
    domain_of: Sequence[str] = (),
    side: int | None = None,
) -> ImageDataset:
    """Decode picture files, once a machine, into a data set whose classes and domains are in the order of their names.

    Args:
        root: Folder they lie in.
        files: Picture files.
        class_of: Class of each.
        test: Whether it belongs to the official test part.
        domain_of: Its domain; empty if the set has none.
        side: Rows and columns of each; by default the most frequent size.

    Raises:
        DataError: If a picture cannot be read.
    """
    classes, domains = sorted(set(class_of)), sorted(set(domain_of))
    number = {name: i for i, name in enumerate(classes)}
    place = {name: i for i, name in enumerate(domains)}
    x = cached_array(
        content_key(root.name, (listing(files), side)), lambda: decode_pictures(files, lambda i: str(files[i]), side)
    )
    return ImageDataset(
        x=torch.from_numpy(x),
        y=torch.tensor([number[name] for name in class_of]),
        test=torch.tensor(test),
        classes=tuple(classes),
        domain=torch.tensor([place[name] for name in domain_of]) if domains else None,
        domains=tuple(domains),
        source=str(root),
    )


def _walk(root: Path) -> Iterator[Path]:
    """Yield all files below a folder; unlike a glob, an error where a folder cannot be read."""

    def refuse(err: OSError) -> None:
        raise err

    for folder, _, names in os.walk(root, onerror=refuse):
        yield from (Path(folder, name) for name in names)


def _check_no_class_is_empty(root: Path, depth: int) -> None:
    """Refuse an empty folder where classes are: more likely half an archive than a class without pictures."""
    for path in sorted(root.glob("/".join("*" * depth))):
        if path.is_dir() and not any(path.iterdir()):
            raise DataError(f"{path}: no picture in the folder of this class; put some there, or remove it")
