"""The folder of data files on this machine, and a cache for arrays that are slow to make."""

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from isoproto import paths
from isoproto.errors import DataError

Array = npt.NDArray[Any]

logger = logging.getLogger("isoproto")

_BROKEN = (OSError, ValueError, EOFError)  # numpy raises these for a file that was cut short


def data_folder(data_dir: str = "") -> Path:
    """Return the folder that relative paths of data sets start from.

    Args:
        data_dir: The setting ``data-dir``, which may start with ``~``; if empty, ``data`` in ``paths.home()``.
    """
    return Path(data_dir).expanduser() if data_dir else paths.home() / "data"


def find(name: str, argument: str, folder: Path) -> Path:
    """Return the path that ``argument`` of data set ``name`` means: relative to ``folder``, with ``~`` expanded.

    Raises:
        DataError: If no path is given, or the path does not exist.
    """
    if not argument:
        raise DataError(f"data '{name}' needs a path: write `data = \"{name}:PATH\"`")
    path = folder / Path(argument).expanduser()
    if not path.exists():
        raise DataError(
            f"data '{name}:{argument}': nothing found at {path}; give an absolute path, or one that starts from "
            "the folder `data-dir`"
        )
    return path


def lies_in(folder: Path, name: str, data_dir: str) -> bool:
    """Return whether every path that a data set's name can mean lies in a folder, after links are followed.

    No data is read.

    Args:
        folder: The folder.
        name: Name of the data set, such as ``npz:FILE``.
        data_dir: See ``data_folder``.

    Example:
        >>> [lies_in(Path("/srv"), name, "/srv/a") for name in ("npz:x", "npz:/srv/x", "csv:../../x", "npz:/etc/x")]
        [True, True, False, False]
    """
    start, argument = data_folder(data_dir), name.partition(":")[2]
    meant = [start / Path(part).expanduser() for part in ("", argument, split_number(argument)[0])]
    return all(path.resolve().is_relative_to(folder.resolve()) for path in meant)


def split_number(argument: str) -> tuple[str, int | None]:
    """Split a data set's argument at its ``@`` if a number > 0 follows; else return the argument and ``None``.

    Example:
        >>> split_number("photos@64"), split_number("photos")
        (('photos', 64), ('photos', None))
    """
    match = re.fullmatch(r"(.*)@([1-9]\d*)", argument)
    return (match[1], int(match[2])) if match else (argument, None)


def cache_folder() -> Path:
    """Return the folder of decoded pictures: ``$ISOPROTO_HOME/cache``, else the platform's user cache."""
    if "ISOPROTO_HOME" in os.environ:
        return paths.home() / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "isoproto"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isoproto"


def content_key(name: str, content: object) -> str:
    """Return a file name that depends on ``content`` alone, so that every process gets the same one.

    Example:
        >>> content_key("pets", [("a.png", 12, 345)])
        'pets-8d7a7344a102ef4b'
    """
    return f"{name}-{hashlib.sha256(repr(content).encode()).hexdigest()[:16]}"


def listing(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of each file, which identify the content without reading it.

    Raises:
        DataError: If a file cannot be found, such as behind a link that points to nothing.
    """
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in ((path, _stat(path)) for path in files)]


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as err:
        if path.is_symlink():
            raise DataError(
                f"{path}: a link to {path.readlink()}, where nothing can be read ({err.strerror}); fetch that file "
                "(if git-annex keeps it: `git annex get`), or remove the link"
            ) from err
        raise DataError(f"{path}: cannot be read ({err.strerror}); repair or remove it") from err


def named_below(root: Path, name: str, depth: int) -> Path | None:
    """Return the path below ``root`` of a name that was read from a list.

    Returns ``None`` if the name does not have ``depth`` parts, leads out of ``root`` or does not exist. A link that
    points to nothing counts as existing: ``listing`` then says what is wrong with it.
    """
    relative = Path(name)
    fits = len(relative.parts) == depth and not relative.is_absolute() and ".." not in relative.parts
    return root / relative if fits and os.path.lexists(root / relative) else None


def cached_array(
    key: str, make: Callable[[], Array], *, sound: Callable[[Array], bool] | None = None, what: str = "decoded pictures"
) -> Array:
    """Return the array that ``make`` makes, from a cache on disk that all processes share and map into memory.

    Several processes may call this at once: the first one makes the entry, and the others wait for it. An entry is
    written under a temporary name and renamed, so that no process reads half a file, even on a file system without
    locks. If nothing can be written, the array stays in memory and one warning is logged.

    Args:
        key: File name without suffix. It must change whenever the result of ``make`` would change.
        make: Called if the cache has no readable entry.
        sound: Returns whether an entry is undamaged; one that is not is made anew. By default every array is.
        what: What the array holds, for the log.
    """
    path = cache_folder() / f"{key}.npy"
    if (array := _kept(path, sound, what)) is not None:
        return array
    with _locked(path) as locked:
        if locked and (array := _kept(path, sound, what)) is not None:
            return array
        array = make()
        try:
            _write(path, array, tidy=locked)
            return _map(path)
        except _BROKEN as err:
            warn_once(
                f"{what} cannot be kept in {path.parent} ({err}): they stay in memory and are made again by every "
                "process. Set ISOPROTO_HOME to a folder with free space"
            )
            return array


def _kept(path: Path, sound: Callable[[Array], bool] | None, what: str) -> Array | None:
    """Return a cache entry, or ``None`` if it does not exist, cannot be read or is damaged."""
    try:
        array = _map(path)
        if sound is None or sound(array):
            return array
        raise ValueError("its checksum is wrong")
    except FileNotFoundError:
        return None
    except _BROKEN as err:
        logger.info("cached %s %s cannot be read (%s) and are made anew", what, path, err)
        return None


def _map(path: Path) -> Array:
    # "c" (copy on write) shares pages between processes as "r" does, but torch warns about the read-only arrays of "r".
    array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock of an entry, and yield whether this file system has locks; a lock ends with its process."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.with_suffix(".lock").open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
            locked = True
        except OSError:
            locked = False
        yield locked


def _write(path: Path, array: Array, *, tidy: bool) -> None:
    if tidy:  # we hold the lock, so a killed process must have left the temporary files that are there
        for left in path.parent.glob(f"{path.stem}.*.tmp"):
            left.unlink()
    with new_file(path) as file:
        np.save(file, array, allow_pickle=False)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that becomes ``path`` if the block succeeds and is removed if it fails, so nobody reads half of it.

    Unlike ``paths.write_atomically`` this does not need all bytes in memory and does not wait for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


@functools.cache
def warn_once(text: str, log: str = "isoproto") -> None:
    """Log a warning, but each text only once per process; the cache remembers which were logged."""
    logging.getLogger(log).warning("%s", text)
