"""Server checkpoints: one file a round, tensors and JSON together, so that one rename is the whole commit."""

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from isoproto.errors import StateError
from isoproto.paths import drop_leftovers, write_atomically

_log = logging.getLogger("isoproto")

FORMAT = 1
_KEPT = 2  # the newest and, should its file be damaged, the one before


class Checkpoint(NamedTuple):
    """State of a run after a round.

    Attributes:
        server_round: The round that is over; 0 before any.
        tensors: Tensors by name.
        values: Everything else, as JSON can hold it.
    """

    server_round: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into ``folder`` and drop the ones no longer needed.

    Raises:
        StateError: If it cannot be written; the checkpoints before it stay.
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
    """Return the newest checkpoint that can be read, or ``None`` if there are none.

    Raises:
        StateError: If there are some and none can be read.
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


def _read(path: Path) -> Checkpoint:
    with safetensors.safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {})["isoproto"])
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}, this version reads {FORMAT}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    return Checkpoint(int(header["round"]), tensors, header["values"])


def _files(folder: Path) -> list[Path]:
    """Checkpoints on disk, newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
