"""Where data sets can lie on this machine and where they can be downloaded from: one class for each kind of place."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from isoproto.data.base import Dataset, ImageDataset
from isoproto.data.domainnet import read_domainnet
from isoproto.data.folders import listing, split_number, warn_once
from isoproto.data.ham10000 import read_ham10000
from isoproto.data.hub import fetch_hub, hub_files
from isoproto.data.hugging_face import fetch_hugging_face, fetch_texts
from isoproto.data.imagefolder import read_tree
from isoproto.data.info import DatasetInfo, KnownFile, info_of
from isoproto.data.npz import count_samples, load_npz
from isoproto.data.tiny_imagenet import read_tiny_imagenet
from isoproto.data.torchvision_sets import fetch_torchvision, read_torchvision, torchvision_files

# Readers of the folders that are not laid out as `imagefolder:` wants them.
_TREES: dict[str, Callable[[Path, int], ImageDataset]] = {
    "tiny_imagenet": read_tiny_imagenet,
    "domainnet": read_domainnet,
    "ham10000": read_ham10000,
}

NOTES = "isoproto.notes"
"""Name of the log that gets the notes of a data set, which ``Dataset.notes`` keeps too."""

_NO_TEST_PART = "{} has no official test part: only `split = 'merged'` can be used"

Download = Callable[[], None]
"""Writes a data set into the data folder, or raises ``DataError``."""


class Place(NamedTuple):
    """A copy of a data set that was found on this machine.

    Attributes:
        files: The files of the copy.
        notes: How the copy differs from the published set, a sentence each.
        read: Reads the copy.
    """

    files: Sequence[Path]
    notes: tuple[str, ...]
    read: Callable[[], ImageDataset]

    def load(self) -> ImageDataset:
        """Read the set and attach its notes; each note is logged once per process."""
        return with_notes(self.read(), self.notes)

    def identity(self) -> list[tuple[str, int, int]]:
        """Return path, size and time of change of each file, which change when the content does."""
        return listing(self.files)


D = TypeVar("D", bound=Dataset)


def with_notes(found: D, notes: tuple[str, ...]) -> D:
    """Return a set with its notes; each note is logged once per process."""
    if not found.test.any():
        notes = (*notes, _NO_TEST_PART.format(found.source))
    for note in notes:
        warn_once(note, NOTES)
    return dataclasses.replace(found, notes=notes)


def notes_on(name: str, known: KnownFile, path: Path, count: Callable[[Path], int] = count_samples) -> tuple[str, ...]:
    """Return the caveats of a file.

    There are none if ``count`` finds another number of samples: then it is somebody's own file of the same name.
    """
    if not known.caveats or (known.samples and count(path) != known.samples):
        return ()
    return tuple(f"{name} from {path.name}: {caveat}" for caveat in known.caveats)


def npz_place(path: Path, notes: tuple[str, ...]) -> Place:
    """Return a ``.npz`` file as a place."""
    return Place([path], notes, lambda: load_npz(str(path.absolute()), path.parent))


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of place that can hold a data set, asked about one set; this base class holds nothing.

    A kind overrides what it can do. What concerns a kind is a field of ``DatasetInfo``; if the field is empty, the
    set has no place of this kind.

    Attributes:
        name: Name of the set, with its argument: ``pacs`` or ``pacs:@224``.
        folder: See ``data_folder``.
        info: What is known of the set.
    """

    name: str
    folder: Path
    info: DatasetInfo

    @property
    def kind(self) -> str:
        """The name without its argument."""
        return self.name.partition(":")[0]

    @property
    def argument(self) -> str:
        """The text behind the colon of the name."""
        return self.name.partition(":")[2]

    def looked_for(self) -> list[str]:
        """Return the places that are looked at, for error texts."""
        return []

    def is_here(self) -> bool:
        """Return whether something of the set is there, be it complete or not."""
        return False

    def places(self) -> Iterator[Place]:
        """Yield the copies that are there."""
        yield from ()

    def downloads(self) -> Iterator[Download]:
        """Yield functions that download the set into the folder."""
        yield from ()


class _Files(Source):
    """Single files in the data folder."""

    __slots__ = ()

    def looked_for(self) -> list[str]:
        return [str(self.folder / known.name) for known in self.info.files]

    def is_here(self) -> bool:
        return any((self.folder / known.name).exists() for known in self.info.files)

    def places(self) -> Iterator[Place]:
        for known in self.info.files:
            path = self.folder / known.name
            if path.is_file():
                yield npz_place(path, notes_on(self.name, known, path))


class _Folders(Source):
    """Folders of picture files in the data folder."""

    __slots__ = ()

    def looked_for(self) -> list[str]:
        return [f"{self.folder / tree}/" for tree in self.info.folders]

    def is_here(self) -> bool:
        return any((self.folder / tree).exists() for tree in self.info.folders)

    def places(self) -> Iterator[Place]:
        read = _TREES.get(self.kind, read_tree)
        for tree in self.info.folders:
            root = self.folder / tree
            if root.is_dir():
                files = [path for path in root.rglob("*") if path.is_file()]
                yield Place(files, self.info.caveats, functools.partial(read, root, self.info.side))


class _TorchvisionFiles(Source):
    """Files as torchvision keeps them, under the data folder."""

    __slots__ = ()

    @property
    def _patterns(self) -> tuple[str, ...]:
        return self.info.torchvision.files if self.info.torchvision else ()

    def looked_for(self) -> list[str]:
        return [f"{self.folder / pattern} (torchvision's)" for pattern in self._patterns]

    def is_here(self) -> bool:
        return any(any(self.folder.glob(pattern)) for pattern in self._patterns)

    def places(self) -> Iterator[Place]:
        place = self.info.torchvision
        if place and (files := torchvision_files(place, self.folder)):
            read = functools.partial(read_torchvision, self.kind, place, self.folder, self.info.side)
            yield Place(files, self.info.caveats, read)

    def downloads(self) -> Iterator[Download]:
        if self.info.torchvision:
            yield functools.partial(fetch_torchvision, self.info.torchvision, self.folder)


class _HuggingFaceSet(Source):
    """A set that Hugging Face has under an id that we know; once downloaded it is one of the ``_Files``."""

    __slots__ = ()

    def downloads(self) -> Iterator[Download]:
        place = self.info.hugging_face
        if place and place.text:
            yield functools.partial(fetch_texts, place, self.folder / f"{self.kind}.jsonl.gz")
        elif place:
            path = self.folder / self.info.files[0].name
            yield functools.partial(fetch_hugging_face, place, path, self.info.side)


class _HubFiles(Source):
    """A set of Hugging Face whose id the user writes behind the colon; ``load_hub`` reads what was downloaded."""

    __slots__ = ()

    @property
    def _files(self) -> tuple[Path, ...]:
        return hub_files(self.argument, self.folder) if self.info.hub else ()

    def looked_for(self) -> list[str]:
        return list(map(str, self._files))

    def is_here(self) -> bool:
        return any(path.exists() for path in self._files)

    def downloads(self) -> Iterator[Download]:
        if self.info.hub:
            yield functools.partial(fetch_hub, self.argument, self.folder)


class _Parts(Source):
    """Other sets that the set is made of."""

    __slots__ = ()

    @property
    def _sources(self) -> list[Source]:
        return [source for part in self.info.parts for source in sources_of(part, self.folder)]

    def looked_for(self) -> list[str]:
        return [where for source in self._sources for where in source.looked_for()]

    def is_here(self) -> bool:
        return any(source.is_here() for source in self._sources)


SOURCES: tuple[type[Source], ...] = (
    _Files,
    _Folders,
    _TorchvisionFiles,
    _HuggingFaceSet,
    _HubFiles,
    _Parts,
)
"""All kinds of places, in the order in which they are looked at and downloaded from."""


def sources_of(name: str, folder: Path) -> list[Source]:
    """Return every kind of place, asked about one data set.

    Args:
        name: Name of the set, with its argument.
        folder: See ``data_folder``.
    """
    info = known_of(name)
    return [kind(name, folder, info) for kind in SOURCES]


def known_of(name: str) -> DatasetInfo:
    """Return what is known of a set; ``NAME:@SIDE`` is the same set at another size, kept in another file."""
    kind, _, argument = name.partition(":")
    info, side = info_of(kind), split_number(argument)[1]
    if not info.side or side in (None, info.side):
        return info
    # A download at another size holds the same pictures, so the caveats of the first file hold for it.
    file = dataclasses.replace(info.files[0], name=f"{kind}_{side}.npz")
    return dataclasses.replace(info, side=side, files=(file,))
