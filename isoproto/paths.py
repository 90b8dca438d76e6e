"""Where things lie on this machine when no setting says otherwise."""

import contextlib
import os
import sys
import urllib.parse
from functools import partial
from pathlib import Path

from isoproto.errors import StateError

_MARK = ".same-folder"


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


def component(name: str) -> str:
    """Return ``name`` as one component of a path; ``..`` is none that leads out of the folder."""
    return urllib.parse.quote(name, safe="").replace(".", "%2E")


def experiment_dir(state: Path, experiment: str) -> Path:
    """Return the folder of the client models of an experiment under a state folder."""
    return state / component(experiment)


def mark_experiment(state: Path, experiment: str) -> None:
    """Leave a mark in an experiment's folder, by which processes of other machines know that it is the same one.

    Raises:
        StateError: If it cannot be written.
    """
    write_atomically(experiment_dir(state, experiment) / _MARK, b"")


def is_marked(state: Path, experiment: str) -> bool:
    """Whether :func:`mark_experiment` has been here."""
    return (experiment_dir(state, experiment) / _MARK).exists()


def keys_dir() -> Path:
    """Return the folder of a deployment's keys: ``keys`` in ``home()``."""
    return home() / "keys"


def private_folder(path: Path) -> None:
    """Make a folder that no other user can look into; one that is there stays as it is.

    Raises:
        StateError: If it cannot be made, or a file is there.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise StateError(
            f"cannot make the folder {path}: {err.strerror}; choose another one, or mend this one"
        ) from err


def drop_leftovers(path: Path) -> None:
    """Remove temporary files that :func:`write_atomically` left beside ``path``, of names that sort before its own.

    A process that is killed while it writes leaves one, and nobody else takes its name again.
    """
    for name in os.listdir(path.parent):
        if name.endswith(".tmp") and name < f".{path.name}":
            (path.parent / name).unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666, overwrite: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new one, whatever happens in between.

    The content goes to a temporary name in the same folder, is flushed to the disk, and is renamed. The folder is not
    flushed, which takes 5 ms more on ext4: after a power cut the old content may be back, and it is whole; a run goes
    on from a round before just as well.

    Args:
        path: The file.
        content: What it shall hold.
        mode: Its permissions from its first moment, less the process's umask.
        overwrite: Replace a file that is there.

    Raises:
        StateError: If it cannot be written, or is there and shall stay; the old content is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # left by a process that was killed: its mode is not ours
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, fails where a file is
            temporary.unlink()
    except OSError as err:
        with contextlib.suppress(OSError):  # where its folder cannot be made, there is none
            temporary.unlink(missing_ok=True)
        raise StateError(
            f"cannot write {path}: {err.strerror} ({len(content)} bytes); nothing was lost, the previous file is "
            "untouched. Free some space or fix the permissions, or choose another folder"
        ) from err
