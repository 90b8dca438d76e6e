"""Where well-known data sets can lie on this machine, and what is said about a copy that was found."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from isoproto.data.base import Dataset, ImageDataset
from isoproto.data.domainnet import read_domainnet
from isoproto.data.folders import listing, split_number, warn_once
from isoproto.data.ham10000 import read_ham10000
from isoproto.data.imagefolder import read_tree
from isoproto.data.info import INFOS, DatasetInfo, KnownFile
from isoproto.data.npz import count_samples, load_npz
from isoproto.data.tiny_imagenet import read_tiny_imagenet

# How the folder of a set is read, where that is not as `imagefolder:` does it.
_TREES: dict[str, Callable[[Path, int], ImageDataset]] = {
    "tiny_imagenet": read_tiny_imagenet,
    "domainnet": read_domainnet,
    "ham10000": read_ham10000,
}

NOTES = "isoproto.notes"  # the log of what is kept in `Dataset.notes` too
_NO_TEST_PART = "{} has no official test part: only `split = 'merged'` can be used"


class Place(NamedTuple):
    """Where a set was found.

    Attributes:
        files: What it consists of.
        notes: How it differs from the published set.
        read: Reads it.
    """

    files: Sequence[Path]
    notes: tuple[str, ...]
    read: Callable[[], ImageDataset]

    def load(self) -> ImageDataset:
        """Read the set, its notes with it; each note is logged once a process."""
        return with_notes(self.read(), self.notes)

    def identity(self) -> list[tuple[str, int, int]]:
        """What names the content of the set without reading it."""
        return listing(self.files)


D = TypeVar("D", bound=Dataset)


def with_notes(found: D, notes: tuple[str, ...]) -> D:
    """Return a set with its notes; each note is logged once a process."""
    if not found.test.any():
        notes = (*notes, _NO_TEST_PART.format(found.source))
    for note in notes:
        warn_once(note, NOTES)
    return dataclasses.replace(found, notes=notes)


def known_of(name: str) -> DatasetInfo:
    """Return what is known of a set; of ``NAME:@SIDE`` it is another size, and another file."""
    kind, _, argument = name.partition(":")
    info, side = INFOS[kind], split_number(argument)[1]
    if not info.side or side in (None, info.side):
        return info
    file = dataclasses.replace(info.files[0], name=f"{kind}_{side}.npz")  # of the same pictures, if it was fetched
    return dataclasses.replace(info, side=side, files=(file,))


def notes_on(name: str, known: KnownFile, path: Path, count: Callable[[Path], int] = count_samples) -> tuple[str, ...]:
    """Return the caveats of a file, none if ``count`` says that it is somebody's own of the same name."""
    if not known.caveats or (known.samples and count(path) != known.samples):
        return ()
    return tuple(f"{name} from {path.name}: {caveat}" for caveat in known.caveats)


def npz_place(path: Path, notes: tuple[str, ...]) -> Place:
    """Return a file of arrays or encoded pictures as a place."""
    return Place([path], notes, lambda: load_npz(str(path.absolute()), path.parent))


def read_folder(name: str, root: Path, side: int) -> ImageDataset:
    """Read a folder of pictures by the reader of its set, else as ``imagefolder:`` reads one."""
    if name in _TREES:
        return _TREES[name](root, side)
    return read_tree(root, side)
