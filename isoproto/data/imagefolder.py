"""Data sets as folders of pictures, one folder a class."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import torch

from isoproto.data.base import ImageDataset
from isoproto.data.folders import cached_array, content_key, find, listing, split_number, warn_once
from isoproto.data.pictures import decode_pictures
from isoproto.errors import DataError

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_PARTS = {"train": False, "test": True, "val": True}  # name -> is it the official test part


def load_imagefolder(argument: str, folder: Path) -> ImageDataset:
    """Read pictures that lie as ``[train|test|val/][domain/]class/name.png`` under one folder.

    Without ``train`` and ``test`` (or ``val``) folders there is no official test part. Classes and domains are
    numbered in the order of their names. All pictures are resized to the most frequent size, or to squares:
    ``imagefolder:photos@64``, and turned upright as their cameras say. They are decoded once and kept in
    ``cache_folder()``. Names that begin with a dot are passed over, and so are, with a warning, other files.

    Args:
        argument: Path of the folder, relative to ``folder``, ``~`` allowed; optionally ``@`` and a side in pixels.
        folder: See ``data_folder``.

    Raises:
        DataError: If the folder is missing, holds no pictures, mixes layouts or has a class or domain without a
            picture, or if a picture cannot be read.
    """
    where, side = split_number(argument)
    return read_tree(find("imagefolder", where, folder), side, upright=True)


def read_tree(root: Path, side: int | None = None, *, upright: bool = False) -> ImageDataset:
    """Read ``root`` as ``load_imagefolder`` does.

    Args:
        root: The folder.
        side: Rows and columns of each picture; by default, or if 0, the most frequent size.
        upright: Turn pictures as their cameras say; published sets are not, as nobody else turns them.
    """
    root = root.absolute()
    files, folders, others = _content(root)
    if others:
        kinds = ", ".join(f"{count} of {suffix}" for suffix, count in sorted(others.items()))
        warn_once(f"{root}: {others.total()} files are no pictures by their names and are passed over: {kinds}")
    if not files:
        got = sorted(os.listdir(root))[:5]
        raise DataError(f"{root}: no pictures found; wanted class/name.png, one folder a class, got {got or 'nothing'}")
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
    depth = len(places[0])
    holding = {root.joinpath(*place[:level]) for place in set(places) for level in range(1, depth + 1)}
    refuse_empty((path for path in folders if len(path.parts) - len(root.parts) <= depth), holding)
    class_of, domain_of = [label[-1] for label in labels], [label[0] for label in labels]
    domain_of = domain_of if len(labels[0]) == 2 else []
    return dataset_of_files(root, files, class_of, test, domain_of, side or None, upright=upright)


def folders_in(root: Path) -> list[Path]:
    """Return the folders in one, in order, but those whose names begin with a dot."""
    return sorted(path for path in root.glob("*") if path.is_dir() and not _is_hidden(path.name))


def refuse_empty(folders: Iterable[Path], holding: Collection[Path]) -> None:
    """Refuse a folder without a picture: more likely half an archive than a class or domain that has none.

    Args:
        folders: Those that must have one.
        holding: Those that have one.

    Raises:
        DataError: If one has none.
    """
    for folder in folders:
        if folder not in holding:
            got = sorted(os.listdir(folder))[:5]  # unlike a glob, fails where this user may not look
            link = " (links to folders are not followed)" if folder.is_symlink() else ""
            raise DataError(
                f"{folder}: no picture in this folder{link}, so a part, domain or class would be lost; got "
                f"{got or 'nothing'}; put some there, or remove it"
            )


def _content(root: Path) -> tuple[list[Path], list[Path], Counter[str]]:
    """Return pictures and folders below a folder, in order, and how many other files of each suffix there are."""
    seen = sorted(path for path in root.rglob("*") if not any(map(_is_hidden, path.relative_to(root).parts)))
    files = [path for path in seen if path.suffix.lower() in _SUFFIXES]
    rest = [path for path in seen if path.suffix.lower() not in _SUFFIXES]
    folders = [path for path in rest if path.is_dir()]
    return files, folders, Counter(path.suffix.lower() or "no suffix" for path in set(rest).difference(folders))


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def dataset_of_files(
    root: Path,
    files: Sequence[Path],
    class_of: Sequence[str],
    test: Sequence[bool],
    domain_of: Sequence[str] = (),
    side: int | None = None,
    *,
    upright: bool = False,
) -> ImageDataset:
    """Decode picture files, once a machine, into a data set whose classes and domains are in the order of their names.

    Args:
        root: Folder they lie in.
        files: Picture files.
        class_of: Class of each.
        test: Whether it belongs to the official test part.
        domain_of: Its domain; empty if the set has none.
        side: Rows and columns of each; by default the most frequent size.
        upright: Turn them as their cameras say.

    Raises:
        DataError: If there is none, or one cannot be read.
    """
    if not files:
        raise DataError(f"{root}: lists no pictures; get the set again")
    classes, domains = sorted(set(class_of)), sorted(set(domain_of))
    number = {name: i for i, name in enumerate(classes)}
    place = {name: i for i, name in enumerate(domains)}
    content = (listing(files), side, *(["upright"] if upright else []))
    x = cached_array(
        content_key(root.name, content), lambda: decode_pictures(files, lambda i: str(files[i]), side, upright=upright)
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
