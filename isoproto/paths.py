"""Folders of this machine that are used when no setting says otherwise, and safe writing of files."""

import contextlib
import hashlib
import os
import sys
import urllib.parse
from functools import partial
from pathlib import Path

from isoproto.errors import StateError

_MARK = ".same-folder"
_LONGEST = 200  # characters of a name in a path


def home() -> Path:
    """Return ``$ISOPROTO_HOME``, else the platform's folder for user data.

    Raises:
        StateError: If the user has no home folder.
    """
    if chosen := os.environ.get("ISOPROTO_HOME"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return _user() / "Library" / "Application Support" / "isoproto"
    return Path(os.environ.get("XDG_DATA_HOME") or _user() / ".local" / "share") / "isoproto"


def _user() -> Path:
    try:
        return Path.home()
    except RuntimeError as err:  # a container's user may have no entry
        raise StateError(
            "this user has no home folder; name a folder for runs and models in the environment variable ISOPROTO_HOME"
        ) from err


def output_dir(setting: str = "") -> Path:
    """Return the folder that holds run folders: the setting, else ``runs`` in ``home()``."""
    return Path(setting).expanduser() if setting else home() / "runs"


def state_dir(setting: str = "") -> Path:
    """Return the folder that holds client models: the setting, else ``state`` in ``home()``."""
    return Path(setting).expanduser() if setting else home() / "state"


def component(name: str) -> str:
    """Return ``name`` as one component of a path; it is quoted, so ``..`` cannot lead out of the folder.

    A long name keeps its beginning, and a checksum stands for the rest: file systems take 255 bytes.
    """
    quoted = urllib.parse.quote(name, safe="").replace(".", "%2E")
    if len(quoted) <= _LONGEST:
        return quoted
    return f"{quoted[: _LONGEST - 33]}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def experiment_dir(state: Path, experiment: str) -> Path:
    """Return the folder, inside a state folder, that holds the client models of one experiment."""
    return state / component(experiment)


def mark_experiment(state: Path, experiment: str) -> None:
    """Write an empty file into an experiment's folder, so that other machines can see whether they share the folder.

    Raises:
        StateError: If the file cannot be written.
    """
    write_atomically(experiment_dir(state, experiment) / _MARK, b"")


def is_marked(state: Path, experiment: str) -> bool:
    """Return whether :func:`mark_experiment` has marked the experiment's folder."""
    return (experiment_dir(state, experiment) / _MARK).exists()


def keys_dir() -> Path:
    """Return the folder that holds the keys of a deployment: ``keys`` in ``home()``."""
    return home() / "keys"


def private_folder(path: Path) -> None:
    """Make a folder that no other user can look into; an existing folder keeps its permissions.

    Raises:
        StateError: If the folder cannot be made, or a file has its name.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise StateError(
            f"cannot make the folder {path}: {err.strerror}; choose another one, or mend this one"
        ) from err


def drop_leftovers(path: Path) -> None:
    """Remove temporary files that killed processes left next to ``path``, if their names sort before its name.

    A process that is killed in :func:`write_atomically` leaves such a file, and no other process reuses its name.
    """
    for name in os.listdir(path.parent):
        if name.endswith(".tmp") and name < f".{path.name}":
            (path.parent / name).unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666, overwrite: bool = True) -> None:
    """Write a file so that a reader always sees either the old content or the new one, even after a crash.

    The content is written under a temporary name in the same folder, flushed to the disk, and renamed. The folder is
    not flushed, since that takes 5 ms more on ext4. After a power cut the complete old content may therefore be back.
    That is harmless: a run then continues from an earlier round.

    Args:
        path: The file.
        content: The new content.
        mode: Permissions of the file from its first moment, less the process's umask.
        overwrite: Whether an existing file is replaced.

    Raises:
        StateError: If the file cannot be written, or it exists and ``overwrite`` is false. An old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # a killed process may have left it, with another mode
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, this fails if the file exists
            temporary.unlink()
    except OSError as err:
        with contextlib.suppress(OSError):  # without the folder there is no temporary file
            temporary.unlink(missing_ok=True)
        raise StateError(
            f"cannot write {path}: {err.strerror} ({len(content)} bytes); nothing was lost, the previous file is "
            "untouched. Free some space or fix the permissions, or choose another folder"
        ) from err
