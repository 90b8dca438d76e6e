"""The data set ``imagefolder:FOLDER``: picture files with one folder for each class."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import torch

from isoproto.data.base import ImageDataset
from isoproto.data.folders import cached_array, content_key, find, listing, split_number, warn_once
from isoproto.data.names import clean, in_order
from isoproto.data.pictures import decode_pictures
from isoproto.errors import DataError

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
# Name of the folder -> whether it is the official test part. Published sets use all of these names.
_PARTS = {"train": False, "training": False}
_PARTS |= dict.fromkeys(("test", "testing", "val", "valid", "validation", "dev", "eval"), True)


def load_imagefolder(argument: str, folder: Path) -> ImageDataset:
    """Read pictures that lie as ``[train|test/][domain/]class/name.png`` under one folder.

    The part may also be called ``training``, ``testing``, ``val``, ``valid``, ``validation``, ``dev`` or ``eval``.
    Without such folders there is no official test part. Classes and domains are numbered in the order of their names,
    and numbers by size. All pictures are resized to the most frequent size, or to squares of the side
    in ``imagefolder:photos@64``. They are turned upright by their EXIF data, decoded once and kept in
    ``cache_folder()``. Names that begin with a dot are skipped. Files that are no pictures are skipped with a warning.

    Args:
        argument: Path of the folder, relative to ``folder`` and with ``~`` allowed; optionally ``@`` and a side in
            pixels.
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
        upright: Whether EXIF data turn pictures upright. Published sets are left as they are, since other software
            leaves them so.
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
    has_parts = {place[0].lower() for place in places if place} <= _PARTS.keys()
    test = [has_parts and _PARTS[place[0].lower()] for place in places]
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
    """Return the folders in ``root`` in sorted order, without those whose names begin with a dot."""
    return sorted(path for path in root.glob("*") if path.is_dir() and not _is_hidden(path.name))


def refuse_empty(folders: Iterable[Path], holding: Collection[Path]) -> None:
    """Raise an error for a folder without a picture, which is most likely a half-unpacked archive.

    Args:
        folders: The folders that must hold a picture.
        holding: The folders that hold a picture.

    Raises:
        DataError: If one of ``folders`` is not in ``holding``.
    """
    for folder in folders:
        if folder not in holding:
            got = sorted(os.listdir(folder))[:5]  # unlike a glob, this fails if the user may not look inside
            link = " (links to folders are not followed)" if folder.is_symlink() else ""
            raise DataError(
                f"{folder}: no picture in this folder{link}, so a part, domain or class would be lost; got "
                f"{got or 'nothing'}; put some there, or remove it"
            )


def _content(root: Path) -> tuple[list[Path], list[Path], Counter[str]]:
    """Return the pictures and the folders below a folder in sorted order, and the number of other files by suffix."""
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
    """Make a data set of picture files, which are decoded once per machine.

    Classes and domains are numbered in the order of their names, and numbers by size.

    Args:
        root: The folder that holds the files.
        files: Picture files.
        class_of: The class of each file.
        test: Whether each file belongs to the official test part.
        domain_of: The domain of each file; empty if the set has no domains.
        side: Rows and columns of each picture; by default the most frequent size.
        upright: Whether EXIF data turn pictures upright.

    Raises:
        DataError: If there is no file, or a file cannot be read.
    """
    if not files:
        raise DataError(f"{root}: lists no pictures; get the set again")
    class_of, domain_of = ([clean(name, root) for name in names] for names in (class_of, domain_of))
    classes, domains = in_order(class_of), in_order(domain_of)
    number = {name: i for i, name in enumerate(classes)}
    place = {name: i for i, name in enumerate(domains)}
    content = (listing(files), side, "on white", *(["upright"] if upright else []))
    x = cached_array(
        content_key(root.name, content), lambda: decode_pictures(files, lambda i: str(files[i]), side, upright=upright)
    )
    return ImageDataset(
        x=torch.from_numpy(x),
        y=torch.tensor([number[name] for name in class_of]),
        test=torch.tensor(test),
        classes=classes,
        domain=torch.tensor([place[name] for name in domain_of]) if domains else None,
        domains=domains,
        source=str(root),
    )
