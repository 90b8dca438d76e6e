"""Where things lie on this machine when no setting says otherwise."""

import contextlib
import os
import sys
from pathlib import Path

from isoproto.errors import StateError


def home() -> Path:
    """Return ``$ISOPROTO_HOME``, else the platform's folder for user data."""
    if chosen := os.environ.get("ISOPROTO_HOME"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "isoproto"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "isoproto"


def output_dir(setting: str = "") -> Path:
    """Return the folder of run folders: the setting, else ``runs`` in ``home()``."""
    return Path(setting).expanduser() if setting else home() / "runs"


def state_dir(setting: str = "") -> Path:
    """Return the folder of client models: the setting, else ``state`` in ``home()``."""
    return Path(setting).expanduser() if setting else home() / "state"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, whatever happens in between.

    The content goes to a temporary name in the same folder, is flushed to the disk, and is renamed.

    Raises:
        StateError: If it cannot be written; the old content is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as err:
        with contextlib.suppress(OSError):  # where its folder cannot be made, there is none
            temporary.unlink(missing_ok=True)
        raise StateError(
            f"cannot write {path}: {err.strerror} ({len(content)} bytes); nothing was lost, the previous file is "
            "untouched. Free some space or fix the permissions, or choose another folder"
        ) from err
