"""Where data lies on this machine, and a cache for what is slow to decode."""

import functools
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isoproto import paths
from isoproto.errors import DataError

logger = logging.getLogger("isoproto")

_BROKEN = (OSError, ValueError, EOFError)  # numpy's errors for a file that was cut short


def data_folder(data_dir: str = "") -> Path:
    """Return the folder that relative paths of data sets start from.

    Args:
        data_dir: The setting ``data-dir``, ``~`` allowed; if empty, ``data`` in ``paths.home()``.
    """
    return Path(data_dir).expanduser() if data_dir else paths.home() / "data"


def find(name: str, argument: str, folder: Path) -> Path:
    """Return the existing path that ``argument`` of data set ``name`` means, ``~`` and ``folder`` applied.

    Raises:
        DataError: If no path is given or nothing is there.
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


def cache_folder() -> Path:
    """Return the folder of decoded pictures: ``$ISOPROTO_HOME/cache``, else the platform's user cache."""
    if "ISOPROTO_HOME" in os.environ:
        return paths.home() / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "isoproto"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isoproto"


def content_key(name: str, content: object) -> str:
    """Return a file name for what is made from ``content``, the same in every process.

    Example:
        >>> content_key("pets", [("a.png", 12, 345)])
        'pets-8d7a7344a102ef4b'
    """
    return f"{name}-{hashlib.sha256(repr(content).encode()).hexdigest()[:16]}"


def cached_array(key: str, make: Callable[[], npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Return ``make()``, kept on disk under ``key`` and mapped into memory, shared by all processes.

    Several processes may call this at once: each writes a file of its own and renames it, so that nobody reads
    half a file. Where nothing can be written, the array stays in memory and one warning is logged.

    Args:
        key: File name without suffix; it must change when what ``make`` returns would change.
        make: Called if the cache has no readable entry.
    """
    path = cache_folder() / f"{key}.npy"
    try:
        return _map(path)
    except FileNotFoundError:
        pass
    except _BROKEN as err:
        logger.info("cached pictures %s cannot be read (%s) and are decoded anew", path, err)
    array = make()
    try:
        _write(path, array)
        return _map(path)
    except _BROKEN as err:
        _warn_not_kept(path.parent, str(err))
        return array


def _map(path: Path) -> npt.NDArray[np.uint8]:
    # "c" (copy on write) shares pages between processes as "r" does; torch warns about read-only arrays.
    array: npt.NDArray[np.uint8] = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


def _write(path: Path, array: npt.NDArray[np.uint8]) -> None:
    # Not paths.write_atomically: that wants all bytes in memory once more, and a cache needs no fsync.
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array, allow_pickle=False)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


@functools.cache
def _warn_not_kept(folder: Path, reason: str) -> None:
    """Log once per process and reason, hence the cache."""
    logger.warning(
        "decoded pictures cannot be kept in %s (%s): they stay in memory and are decoded again by every process. "
        "Set ISOPROTO_HOME to a folder with free space",
        folder,
        reason,
    )
