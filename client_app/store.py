"""A client's own model between rounds: files that survive a kill, a restart and a full disk."""

import logging
import urllib.parse
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from isoproto.errors import StateError
from isoproto.paths import write_atomically

_log = logging.getLogger("isoproto")

_WHOLE, _DAMAGED = ".safetensors", ".damaged"
_ANY_ROUND = 2**31  # after every round there is

# The server may die in round r + 1, find its checkpoint of round r damaged, and go on from the one before it.
_GENERATIONS = 3


class ClientStore:
    """Model generations of one client in one experiment, tagged with their round.

    A train message for round r starts from the newest generation with a tag < r. So a round that is repeated
    after a crash starts from the same model as the first time, and nobody trains twice.

    Args:
        root: The state folder.
        experiment: Id of the experiment.
        client: The client's stable name.
    """

    def __init__(self, root: Path, experiment: str, client: str) -> None:
        self.client = client
        self.folder = root / _file_name(experiment) / _file_name(client)

    def load(self, before: int = _ANY_ROUND) -> dict[str, Tensor] | None:
        """Return the newest model that was saved in a round < ``before``, or ``None`` if there is none.

        A file that cannot be read is set aside with a warning, and the one before it is taken.

        Raises:
            StateError: If there were models, and none of them can be read.
        """
        for tag in self._rounds(before):
            path = self._path(tag)
            try:
                return safetensors.torch.load(path.read_bytes())
            except (OSError, safetensors.SafetensorError) as err:
                _log.warning("client %s: cannot read its model %s (%s); set aside", self.client, path, err)
                path.replace(path.with_suffix(_DAMAGED))
        # Also when they were set aside earlier: nobody starts anew without a word.
        if damaged := self._rounds(before, _DAMAGED):
            raise StateError(
                f"client {self.client}: none of its saved models in {self.folder} can be read (rounds {damaged}). "
                "Restore the folder from a backup, or delete it to let the client start anew"
            )
        return None

    def save(self, server_round: int, tensors: dict[str, Tensor]) -> None:
        """Save the model after training in ``server_round``, and drop generations no longer needed.

        Raises:
            StateError: If it cannot be written, for example on a full disk; earlier generations stay.
        """
        content = safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        write_atomically(self._path(server_round), content)
        for tag in self._rounds()[_GENERATIONS:]:
            self._path(tag).unlink(missing_ok=True)

    def _path(self, tag: int) -> Path:
        return self.folder / f"round-{tag:06d}{_WHOLE}"

    def _rounds(self, before: int = _ANY_ROUND, suffix: str = _WHOLE) -> list[int]:
        """Tags on disk that are < ``before``, newest first."""
        tags = (int(path.stem.removeprefix("round-")) for path in self.folder.glob(f"round-*{suffix}"))
        return sorted((tag for tag in tags if tag < before), reverse=True)


def _file_name(name: str) -> str:
    """Return ``name`` as one component of a path; ``..`` is none that leads out of the folder."""
    return urllib.parse.quote(name, safe="").replace(".", "%2E")
