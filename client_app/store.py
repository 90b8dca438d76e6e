"""Saves a client's model between rounds, in files that survive a kill, a restart and a full disk."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.numpy
import safetensors.torch
from torch import Tensor

from isoproto.errors import StateError
from isoproto.paths import component, drop_leftovers, experiment_dir, write_atomically

_log = logging.getLogger("isoproto")

_WHOLE, _DAMAGED = ".safetensors", ".damaged"
_NOTE = "note"
_ANY_ROUND = 2**31  # later than every round


class Saved(NamedTuple):
    """A model as it was saved: its tensors by name, and a note on it."""

    tensors: dict[str, Tensor]
    note: str


class ClientStore:
    """Model generations of one client in one experiment, tagged with their round.

    Training in round r starts from the newest generation with a tag < r. So a round that is repeated after a crash
    starts from the same model as the first time, and no model is trained twice in a round.

    Args:
        root: The state folder.
        experiment: Id of the experiment.
        client: The client's stable name.

    What parts remember lies beside the models, one file for each part. It is never set back to an earlier round.
    """

    def __init__(self, root: Path, experiment: str, client: str) -> None:
        self.client = client
        self.folder = experiment_dir(root, experiment) / component(client)

    def load(self, before: int = _ANY_ROUND) -> Saved | None:
        """Return the newest model that was saved in a round < ``before``, or ``None`` if there is none.

        A damaged file is renamed with a warning, and the generation before it is taken.

        Raises:
            StateError: If there were models, and all of them are damaged. Also if the machine cannot read a file now;
                the file stays.
        """
        for tag in self._rounds(before):
            path = self._path(tag)
            try:
                content = path.read_bytes()
            except OSError as err:  # too many open files, a share that is away: the file may be intact
                raise StateError(
                    f"client {self.client}: cannot read its model {path} now: {err.strerror}. The file stays and is "
                    "tried again next time; if that fails too, mend the disk or the permissions, or restore a backup"
                ) from err
            try:
                return Saved(safetensors.torch.load(content), _note(content))
            except (ValueError, safetensors.SafetensorError) as err:
                _log.warning("client %s: cannot read its model %s (%s); set aside", self.client, path, err)
                path.replace(path.with_suffix(_DAMAGED))
        # Damaged files of earlier rounds count too: a client that has lost its model must not start anew silently.
        if damaged := self._rounds(before, _DAMAGED):
            raise StateError(
                f"client {self.client}: none of its saved models in {self.folder} can be read (rounds {damaged}). "
                "Restore the folder from a backup, or delete it to let the client start anew"
            )
        return None

    def save(self, server_round: int, tensors: dict[str, Tensor], note: str = "") -> None:
        """Save the model after training in ``server_round``, and drop generations no longer needed.

        Raises:
            StateError: If it cannot be written, for example on a full disk; earlier generations stay.
        """
        self.prepare(server_round, tensors, note)()

    def prepare(self, server_round: int, tensors: dict[str, Tensor], note: str = "") -> Callable[[], None]:
        """Copy the model, and return a function that saves the copy. It may run in another thread."""
        # NumPy's writer takes a third of the time of torch's, and writes the same bytes.
        arrays = {name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()}
        content = safetensors.numpy.save(arrays, {_NOTE: note})

        def write() -> None:
            path = self._path(server_round)
            write_atomically(path, content, mode=0o600)  # only the owner of the device may read what it has learned
            drop_leftovers(path)
            # The server may die in this round, find its checkpoint of the round before damaged, go on from that of
            # round r - 2, and ask for a model from before round r - 1 again.
            for tag in self._rounds(server_round - 1)[1:]:
                self._path(tag).unlink(missing_ok=True)

        return write

    def recall(self, name: str) -> dict[str, Tensor]:
        """Return what a part remembers, as it was last saved; empty if nothing was.

        Raises:
            StateError: If the file cannot be read. It stays: without it, the client would send things twice.
        """
        path = self._memory(name)
        if not path.exists():
            return {}
        try:
            return safetensors.torch.load(path.read_bytes())
        except (OSError, ValueError, safetensors.SafetensorError) as err:
            raise StateError(
                f"client {self.client}: cannot read what it remembers of {name} in {path} ({err}). Restore the file "
                "from a backup, or start a new run: the client cannot tell any more what it has sent"
            ) from err

    def prepare_memory(self, name: str, tensors: Mapping[str, Tensor]) -> Callable[[], None]:
        """Copy what a part remembers, and return a function that saves the copy in place of what was there."""
        arrays = {key: t.detach().cpu().contiguous().numpy() for key, t in tensors.items()}
        content = safetensors.numpy.save(arrays)

        def write() -> None:
            path = self._memory(name)
            write_atomically(path, content, mode=0o600)  # keys are in it, and what the client has sent
            drop_leftovers(path)

        return write

    def _memory(self, name: str) -> Path:
        return self.folder / f"memory-{name}{_WHOLE}"

    def _path(self, tag: int) -> Path:
        return self.folder / f"round-{tag:06d}{_WHOLE}"

    def _rounds(self, before: int = _ANY_ROUND, suffix: str = _WHOLE) -> list[int]:
        """Tags on disk that are < ``before``, newest first."""
        tags = (int(path.stem.removeprefix("round-")) for path in self.folder.glob(f"round-*{suffix}"))
        return sorted((tag for tag in tags if tag < before), reverse=True)


def _note(content: bytes) -> str:
    """Read the note from the header of a file's content. The library reads it only from files on disk."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return str(header.get("__metadata__", {}).get(_NOTE, ""))
