"""Reading a run folder, finished or in progress."""

import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoproto.errors import StateError
from isoproto.runs.metrics import Line, summarise
from isoproto.runs.run_folder import abandoned

logger = logging.getLogger("isoproto")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The part of a run folder that a list of runs shows.

    Attributes:
        folder: The run folder.
        config: The effective run config, flat, as in ``config.toml``.
        summary: The content of ``summary.json``. As long as that file is missing, the same fields computed from
            ``metrics.jsonl``, with the status ``running``.
    """

    folder: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder's name: ``<time>-<strategy>-<run id>``."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class ClientShare:
    """One client's part of the data: samples of each class, train and test."""

    client: str
    model: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    domain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(RunSummary):
    """The whole content of a run folder.

    Attributes:
        classes: Names of the classes; empty as long as ``partition.json`` is missing.
        clients: The clients' parts of the data, in the file's order.
        metrics: The lines of ``metrics.jsonl``, in the file's order.
    """

    classes: tuple[str, ...]
    clients: tuple[ClientShare, ...]
    metrics: tuple[Line, ...]


def read_run(folder: Path | str) -> Run:
    """Read the whole content of a run folder.

    A last line of ``metrics.jsonl`` that was cut off is left out. A run without ``summary.json`` is in progress, or was
    killed: then its status is ``stopped``, if this machine can tell.

    Raises:
        StateError: If the folder is no run folder, or one of its files cannot be understood.
    """
    folder = Path(folder)
    config, metrics = _config(folder), _metrics(folder / "metrics.jsonl")
    classes, clients = _partition(folder / "partition.json")
    return Run(
        folder=folder,
        config=config,
        summary=_summary(folder, config) or _running(folder, config, metrics),
        classes=classes,
        clients=clients,
        metrics=metrics,
    )


def read_summary(folder: Path | str) -> RunSummary:
    """Read what a list of runs shows; ``metrics.jsonl`` only when there is no ``summary.json``.

    Raises:
        StateError: If the folder is no run folder, or one of its files cannot be understood.
    """
    folder = Path(folder)
    config = _config(folder)
    summary = _summary(folder, config) or _running(folder, config, _metrics(folder / "metrics.jsonl"))
    return RunSummary(folder=folder, config=config, summary=summary)


def list_runs(output_dir: Path | str) -> list[RunSummary]:
    """The runs of ``output_dir``, newest first; their names start with the time.

    Other folders are ignored. Runs that cannot be read are logged and left out. A folder that does not exist holds no
    runs.
    """
    runs = []
    for config in sorted(Path(output_dir).glob("*/config.toml"), reverse=True):
        try:
            runs.append(read_summary(config.parent))
        except StateError as error:
            logger.warning("left out of the list of runs: %s", error)
    return runs


def hyper_figures(line: Line) -> Line:
    """Return the figures of hyper-prototypes in a line; empty in runs without them."""
    return line.get("hyper") or {}


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.toml"
    if not path.is_file():
        raise StateError(
            f"{folder} is no run folder: it has no config.toml. "
            "Give the folder that a run names at its start and end; `isoproto runs` lists them."
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise _broken(path, f"is not TOML ({error})") from error


def _metrics(path: Path) -> tuple[Line, ...]:
    if not path.exists():
        return ()
    *whole, rest = path.read_bytes().split(b"\n")
    lines = [_line(path, number, text) for number, text in enumerate(whole, 1) if text.strip()]
    if rest.strip():
        try:
            lines.append(_line(path, len(whole) + 1, rest))
        except StateError:
            logger.debug("%s: the last line is cut off and left out", path)
    return tuple(lines)


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        line = json.loads(text)
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
        raise _broken(path, f"line {number} is not JSON ({error})") from error
    if not (isinstance(line, dict) and {"kind", "round"} <= line.keys()):
        raise _broken(path, f"line {number} must be an object with `kind` and `round`, got {text[:60]!r}")
    return line


def _partition(path: Path) -> tuple[tuple[str, ...], tuple[ClientShare, ...]]:
    if not path.exists():
        return (), ()
    partition = _json(path)
    try:
        clients = tuple(
            ClientShare(
                str(entry["client"]),
                str(entry["model"]),
                tuple(map(int, entry["train"])),
                tuple(map(int, entry["test"])),
                str(entry.get("domain", "")),
            )
            for entry in partition["clients"]
        )
        classes = tuple(map(str, partition["classes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"lacks a field or holds a wrong one ({error!r})") from error
    for share in clients:
        if not len(share.train) == len(share.test) == len(classes):
            raise _broken(
                path,
                f"client {share.client!r} must have {len(classes)} counts, "
                f"got {len(share.train)} for train and {len(share.test)} for test",
            )
    return classes, clients


def _summary(folder: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of ``summary.json``, None if it is missing. Missing fields are filled in as unknown."""
    path = folder / "summary.json"
    if not path.exists():
        return None
    content, nothing = _json(path), summarise(())
    parts = {part: {**figures, **content.get(part, {})} for part, figures in nothing.items()}
    return {**_running(folder, config, ()), **content, **parts}


def _running(folder: Path, config: Mapping[str, Any], metrics: tuple[Line, ...]) -> dict[str, Any]:
    """Return the fields of ``summary.json`` for a run in progress, or whose process is gone."""
    return {
        "strategy": config.get("strategy", ""),
        "settings": config,
        "seed": config.get("seed"),
        "rounds": sum(line["kind"] == "round" for line in metrics),
        "status": "stopped" if abandoned(folder) else "running",
        "reason": "",
        **summarise(metrics),
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise _broken(path, f"is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise _broken(path, f"must hold an object, got {type(content).__name__}")
    return content


def _broken(path: Path, what: str) -> StateError:
    return StateError(f"{path} {what}. It was damaged after it was written; restore it, or repeat the run.")
