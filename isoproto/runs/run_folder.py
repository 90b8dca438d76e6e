"""Writing the folder of a run. ``isoproto.report`` reads it."""

import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from isoproto.client_names import client_order
from isoproto.config import RunConfig, Scalar
from isoproto.errors import ConfigError, StateError
from isoproto.paths import write_atomically
from isoproto.toml import to_toml

_log = logging.getLogger("isoproto")

# File with the number under which the SuperLink knows the run; 0 if there is no SuperLink.
FLOWER_RUN = "flower-run"
# File that the process of a run holds locked and that names it, and file with the clients that must not come back.
_LOCK, _FORGOTTEN = "lock", "forgotten.json"


class RunFolder:
    """The folder of one run: settings, metrics line by line, log, checkpoints.

    Attributes:
        path: The folder.
        experiment: Id under which clients store their state, so that two runs never mix.
    """

    def __init__(self, path: Path, experiment: str) -> None:
        self.path = path
        self.experiment = experiment
        self._lines: list[dict[str, Any]] = []

    @classmethod
    def create(cls, output_dir: Path, config: RunConfig) -> Self:
        """Make a new folder and write the settings into it.

        Raises:
            StateError: If the folder cannot be made.
        """
        experiment = secrets.token_hex(4)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.strategy}-{experiment}"
        folder = cls(output_dir / name, experiment)
        folder.write_text("experiment", experiment + "\n")
        folder.write_text("config.toml", to_toml(config.to_mapping()))
        return folder

    @classmethod
    def reopen(cls, output_dir: Path, name: str) -> tuple[Self, RunConfig]:
        """Open the folder of an interrupted run. It is named by its path, or by the end of its name in ``output_dir``.

        Raises:
            ConfigError: If no run has this name, or several.
            StateError: If its settings cannot be read.
        """
        path = find_run(output_dir, name)
        try:
            values: dict[str, Scalar] = tomllib.loads((path / "config.toml").read_text("utf8"))
            experiment = (path / "experiment").read_text("utf8").strip()
            if not experiment:
                raise ValueError("the file `experiment` is empty")
        except (OSError, ValueError) as err:
            raise StateError(f"cannot read the settings of the run {path}: {err!r}") from err
        return cls(path, experiment), RunConfig.from_mapping(values)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoint"

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep other processes from changing the run while the block lasts. A process that dies lets go.

        Raises:
            StateError: If another process has the run.
        """
        path = self.path / _LOCK
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                file.seek(0)
                raise StateError(
                    f"the run {self.path.name} goes on in another process ({file.read().strip() or 'not named'}), "
                    f"which has locked {path}; wait until it has ended, or stop it first"
                ) from err
            file.truncate(0)
            file.write(f"{_here()}, process {os.getpid()}\n")
            file.flush()
            yield

    @property
    def forgotten(self) -> tuple[str, ...]:
        """Names of the clients that were forgotten and must not come back, sorted.

        Raises:
            StateError: If they cannot be read.
        """
        path = self.path / _FORGOTTEN
        try:
            return tuple(json.loads(path.read_text("utf8"))) if path.exists() else ()
        except (OSError, ValueError) as err:
            raise StateError(
                f"cannot read {path}, the names of clients that must not come back: {err}. Write it again, as "
                '["name", "name"]'
            ) from err

    def keep_out(self, clients: Iterable[str]) -> None:
        """Set the names of the clients that must not come back."""
        self.write_text(_FORGOTTEN, json.dumps(sorted(set(clients), key=client_order)) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a small file atomically: a reader sees the old text or the new one, never a part."""
        write_atomically(self.path / name, text.encode())

    def remove(self, name: str) -> None:
        """Remove a small file, if there is one."""
        (self.path / name).unlink(missing_ok=True)

    def record(self, kind: str, **values: Any) -> None:  # noqa: ANN401 - whatever JSON holds
        """Keep one line of metrics in memory, until ``commit`` writes the lines of the round."""
        self._lines.append({"kind": kind, **values})

    def commit(self) -> None:
        """Append the recorded lines to ``metrics.jsonl``, and make sure that they are on the disk.

        Raises:
            StateError: If they cannot be written.
        """
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in self._lines)
        path = self.path / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a", encoding="utf8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as err:
            # The next attempt writes all lines again, so nothing of this attempt may stay.
            with contextlib.suppress(OSError):
                os.truncate(path, size)
            raise StateError(
                f"cannot append to {path}: {err.strerror}. Free some space, then `isoproto resume {self.path}`"
            ) from err
        self._lines.clear()

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``, without a last line that was cut off when the run was killed.

        Raises:
            StateError: If any other line cannot be read.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        lines = []
        for number, line in enumerate(path.read_text("utf8").split("\n")[:-1], start=1):
            try:
                lines.append(json.loads(line))
            except ValueError as err:
                raise StateError(f"line {number} of {path} cannot be read ({err}); mend it or take it out") from err
        return lines

    def cut_back(self, server_round: int | None) -> None:
        """Remove the lines of rounds after ``server_round``, which will be repeated; ``None`` removes all lines."""
        kept = [] if server_round is None else [line for line in self.lines() if line["round"] <= server_round]
        self._write_lines(kept)

    def mend(self) -> None:
        """Remove a last line that was cut off when the run was killed, so that lines can be appended."""
        self._write_lines(self.lines())

    def _write_lines(self, lines: Iterable[dict[str, Any]]) -> None:
        self.write_text("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    def open_log(self) -> logging.Handler:
        """Write the project's log into ``log.txt`` as well, until ``close_log``."""
        self.path.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(self.path / "log.txt", encoding="utf8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _log.addHandler(handler)
        return handler

    def close_log(self, handler: logging.Handler) -> None:
        """Stop writing the log into ``log.txt``."""
        _log.removeHandler(handler)
        handler.close()


def _here() -> str:
    return f"host {socket.gethostname()}"


def abandoned(folder: Path) -> bool:
    """Return whether a run that has not ended has lost its process, which was killed or whose machine was restarted.

    Only the machine that the process ran on can tell. Elsewhere, and before the process has begun, it is ``False``.
    """
    try:
        with (folder / _LOCK).open() as file:
            if not file.read().startswith(f"{_here()},"):
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # goes with the file
            return True
    except OSError:
        return False


def find_run(output_dir: Path, name: str) -> Path:
    """Return the folder of a run that is named by its path, its folder name, or the end of its folder name.

    Raises:
        ConfigError: If no run has this name, or several.
    """
    direct = Path(name).expanduser()
    if (direct / "config.toml").is_file():
        return direct.absolute()
    known = sorted(p.parent for p in output_dir.glob("*/config.toml"))
    found = [path for path in known if name and path.name.endswith(name)]
    if len(found) == 1:
        return found[0]
    what = f"several runs end in {name!r}: {[p.name for p in found]}" if found else f"there is no run {name!r}"
    raise ConfigError(f"{what}; looked in {output_dir}, whose newest runs are {[p.name for p in known[-5:]]}")


def show_log(level: int = logging.INFO) -> None:
    """Print the project's log on standard output, which Flower streams to users. A second call does nothing."""
    if not any(isinstance(handler, _Console) for handler in _log.handlers):
        handler = _Console()
        handler.setFormatter(logging.Formatter("%(message)s"))
        _log.addHandler(handler)
        _log.setLevel(level)
        _log.propagate = False


class _Console(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that looks up ``sys.stdout`` for each line, because Flower replaces it during a run."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)
