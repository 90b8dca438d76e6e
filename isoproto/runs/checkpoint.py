"""Checkpoints of the server. A round is one file with tensors and JSON, so that one rename commits all of it."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from isoproto.errors import StateError
from isoproto.paths import drop_leftovers, write_atomically

_log = logging.getLogger("isoproto")

FORMAT = 1
_KEPT = 2  # the newest checkpoint, and the one before it in case the newest is damaged


class Checkpoint(NamedTuple):
    """The server's state after a round.

    Attributes:
        server_round: The round that was completed; 0 before the first.
        tensors: The tensors of the state by name.
        values: The rest of the state, in types that JSON can hold.
    """

    server_round: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into ``folder``, and delete those that are no longer needed.

    Raises:
        StateError: If the file cannot be written. The earlier checkpoints stay.
    """
    header = {"format": FORMAT, "round": checkpoint.server_round, "values": checkpoint.values}
    content = safetensors.torch.save(
        {name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()},
        metadata={"isoproto": json.dumps(header)},
    )
    path = folder / f"round-{checkpoint.server_round:06d}.safetensors"
    write_atomically(path, content)
    drop_leftovers(path)
    for old in _files(folder)[_KEPT:]:
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that can be read; ``None`` if the folder holds none.

    Raises:
        StateError: If the folder holds checkpoints and none of them can be read.
    """
    problems = []
    for path in _files(folder):
        try:
            return _read(path)
        except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as err:
            problems.append(f"{path.name}: {err}")
            _log.warning("cannot read the checkpoint %s (%s); trying the one before it", path, err)
    if problems:
        raise StateError(
            f"no checkpoint in {folder} can be read ({'; '.join(problems)}). Restore the folder from a backup, or "
            "start a new run"
        )
    return None


def rewrite_checkpoints(folder: Path, change: Callable[[Checkpoint], Checkpoint]) -> None:
    """Replace every checkpoint by what ``change`` makes of it, each atomically, and delete those that are damaged.

    If this is interrupted, some checkpoints are changed and others are not; call it again.

    Raises:
        StateError: If a file cannot be written. It stays as it was.
    """
    for path in _files(folder):
        try:
            found = _read(path)
        except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as err:
            _log.warning("deleted the checkpoint %s, which cannot be read (%s)", path, err)
            path.unlink(missing_ok=True)
        else:
            save_checkpoint(folder, change(found))


def _read(path: Path) -> Checkpoint:
    with safetensors.safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {})["isoproto"])
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}, this version reads {FORMAT}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    return Checkpoint(int(header["round"]), tensors, header["values"])


def _files(folder: Path) -> list[Path]:
    """Return the files of the checkpoints, newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
