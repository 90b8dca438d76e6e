"""The data set ``npz:FILE``: one ``.npz`` file that holds plain arrays, or encoded pictures end to end."""

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from isoproto.data.base import ImageDataset
from isoproto.data.folders import cached_array, content_key, find
from isoproto.data.names import clean
from isoproto.data.pictures import decode_pictures
from isoproto.errors import DataError

Array = npt.NDArray[Any]

# Errors of zip and numpy for a damaged file, or for one packed in ways they cannot read (RuntimeError).
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def load_npz(argument: str, folder: Path) -> ImageDataset:
    """Read pictures from a ``.npz`` file of either of two kinds.

    *Arrays*: ``train_x`` uint8 ``[N, H, W, channels]`` or ``[N, H, W]``, ``train_y`` integer ``[N]``; optionally
    the same as ``test_x``, ``test_y``; ``classes``, the names; optionally ``train_domain``, ``test_domain``
    integer ``[N]`` and ``domains``, the names.

    *Encoded pictures*: ``jpeg`` uint8, all files end to end (any format pillow reads); ``offsets`` integer
    ``[N + 1]``, picture *i* is ``jpeg[offsets[i]:offsets[i + 1]]``; ``labels`` integer ``[N]``; ``split`` ``[N]``,
    0 for train, 1 for test; ``classes``; optionally ``domain`` ``[N]`` and ``domains``. They are decoded once and
    kept in ``cache_folder()``, as arrays are too.

    Other arrays are ignored; nothing is ever unpickled.

    Args:
        argument: Path of the file, relative to ``folder`` and with ``~`` allowed.
        folder: See ``data_folder``.

    Raises:
        DataError: If the file is missing, damaged, of neither kind, or its arrays do not fit together.
    """
    path = find("npz", argument, folder)
    with _opened(path) as read:
        return _encoded(path, read) if "jpeg" in read else _arrays(path, read)


def count_samples(path: Path) -> int:
    """Return the number of pictures in a file of either kind, reading only the headers of its arrays.

    Raises:
        DataError: If the file is damaged or of neither kind.
    """
    with _opened(path) as read:
        keys = ["labels"] if "jpeg" in read else [key for key in ("train_y", "test_y") if key in read]
        return sum(read.length(key) for key in keys)


@contextmanager
def _opened(path: Path) -> Iterator["_Reader"]:
    with path.open("rb") as file:  # raises OSError for a file that this user may not read
        if not zipfile.is_zipfile(file):
            raise DataError(f"{path}: not an npz file, or cut short; write it with numpy.savez")
    try:
        opened = np.load(path, allow_pickle=False)
    except _UNREADABLE as err:
        raise DataError(f"{path}: not an npz file, or damaged; write it with numpy.savez") from err
    with opened as archive:
        if "jpeg" not in archive and "train_x" not in archive:
            raise DataError(
                f"{path}: must hold `train_x` (arrays) or `jpeg` (encoded pictures), got {', '.join(archive.files)}"
            )
        yield _Reader(path, archive)


def from_arrays(source: str, arrays: Mapping[str, Array]) -> ImageDataset:
    """Make a data set of arrays in memory that have the names of a file of plain arrays: see ``load_npz``.

    Raises:
        DataError: If an array is missing, or the arrays do not fit together.
    """
    return _arrays(source, _InMemory(source, arrays))


class _Reader:
    """Reads and checks the arrays of a file. Each read unpacks the array again, so read each array once."""

    def __init__(self, path: Path | str, archive: Any) -> None:  # noqa: ANN401 - NpzFile is generic in newer numpy only
        self.path, self.archive = path, archive

    def __contains__(self, key: str) -> bool:
        return key in self.archive

    def __call__(self, key: str, kinds: str, wanted: str, dims: tuple[int, ...] = (1,)) -> Array:
        """Return array ``key``, or raise an error if its dtype kind or number of dimensions is not as wanted."""
        if key not in self.archive:
            raise DataError(f"{self.path}: array `{key}` is missing; wanted {wanted}")
        try:
            array: Array = np.asarray(self.archive[key])  # numpy returns bytes for a member that is no array
        except _UNREADABLE as err:
            raise DataError(f"{self.path}: array `{key}` cannot be read ({err}); wanted {wanted}") from err
        if array.dtype.kind not in kinds or array.ndim not in dims:
            raise DataError(f"{self.path}: array `{key}` must be {wanted}, got {array.dtype} {array.shape}")
        return array

    def length(self, key: str) -> int:
        """Return the length of an array without unpacking it; 0 for an array without dimensions."""
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{key}.npy") as file:
                header = {1: read_array_header_1_0, 2: read_array_header_2_0}[read_magic(file)[0]]
                return [*header(file)[0], 0][0]
        except (*_UNREADABLE, KeyError) as err:
            raise DataError(f"{self.path}: array `{key}` cannot be read ({err})") from err

    def kept(self, make: Callable[[], npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
        """Return the result of ``make`` for this file, from the cache if it was made before.

        The checksums in the zip directory are the cache key, so a copied or touched file is not unpacked again.
        """
        with zipfile.ZipFile(self.path) as archive:
            content = [(member.filename, member.file_size, member.CRC) for member in archive.infolist()]
        return cached_array(content_key(Path(self.path).stem, content), make)

    def pictures(self, key: str) -> npt.NDArray[np.uint8]:
        """Return the pictures ``[N, H, W, channels]`` of array ``key`` as ``[N, channels, H, W]``."""
        x = self(key, "iuf", "uint8 [N, H, W, channels]", (3, 4))
        if x.dtype != np.uint8:
            raise DataError(f"{self.path}: array `{key}` must be uint8 (0 to 255), got {x.dtype}")
        return (x if x.ndim == 4 else x[..., None]).transpose(0, 3, 1, 2)

    def index(self, key: str, length: int) -> npt.NDArray[np.int64]:
        index = self(key, "iu", f"integer [{length}]")
        if len(index) != length:
            raise DataError(f"{self.path}: array `{key}` must be integer [{length}], got length {len(index)}")
        return index.astype(np.int64)

    def names(self, key: str) -> tuple[str, ...]:
        return tuple(clean(str(name), key) for name in self(key, "U", "text [names]"))


class _InMemory(_Reader):
    """Reads and checks arrays that are in memory already; nothing is unpacked or cached."""

    def length(self, key: str) -> int:
        return len(self(key, "biufcSUO", "an array", tuple(range(1, 9))))

    def kept(self, make: Callable[[], npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
        return make()


def _arrays(path: Path | str, read: _Reader) -> ImageDataset:
    parts = [part for part in ("train", "test") if part == "train" or f"{part}_x" in read]
    lengths = {part: read.length(f"{part}_x") for part in parts}
    domains = read.names("domains") if "domains" in read else ()

    def join(key: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([read.index(f"{part}_{key}", n) for part, n in lengths.items()]))

    def pictures() -> npt.NDArray[np.uint8]:
        x = [read.pictures(f"{part}_x") for part in parts]
        if len({part.shape[1:] for part in x}) > 1:
            raise DataError(
                f"{path}: `train_x` and `test_x` must hold pictures of one shape, got {x[0].shape} and {x[1].shape}"
            )
        return np.ascontiguousarray(np.concatenate(x))

    return ImageDataset(
        x=torch.from_numpy(read.kept(pictures)),
        y=join("y"),
        test=torch.arange(sum(lengths.values())) >= lengths["train"],
        classes=read.names("classes"),
        domain=join("domain") if domains else None,
        domains=domains,
        source=str(path),
    )


def _encoded(path: Path, read: _Reader) -> ImageDataset:
    offsets = read("offsets", "iu", "integer [N + 1]").astype(np.int64)
    count = len(offsets) - 1
    split = read.index("split", count)
    if not np.isin(split, (0, 1)).all():
        raise DataError(f"{path}: array `split` must be 0 (train) or 1 (test), got {np.unique(split)[:5].tolist()}")
    domains = read.names("domains") if "domains" in read else ()

    def decode() -> npt.NDArray[np.uint8]:
        jpeg = read("jpeg", "u", "uint8 [bytes]")
        if offsets[0] != 0 or offsets[-1] != len(jpeg) or (np.diff(offsets) < 0).any():
            raise DataError(f"{path}: array `offsets` must rise from 0 to the {len(jpeg)} bytes of `jpeg`")
        return decode_pictures(np.split(jpeg, offsets[1:-1]), lambda i: f"{path}, picture {i}")

    return ImageDataset(
        x=torch.from_numpy(read.kept(decode)),
        y=torch.from_numpy(read.index("labels", count)),
        test=torch.from_numpy(split == 1),
        classes=read.names("classes"),
        domain=torch.from_numpy(read.index("domain", count)) if domains else None,
        domains=domains,
        source=str(path),
    )
