"""What a client remembers between the steps of a secure sum, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from isoproto.errors import SecureSumError, StateError
from isoproto.secure.messages import KEY_BYTES, Circle, Ids, Octets, Roster, Terms
from isoproto.secure.shamir import SHARE_BYTES


def _no_clients() -> Ids:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClientState:
    """What a client must remember between the steps of one sum. It is secret; delete it after the last step.

    Attributes:
        terms: The terms of the sum.
        client: This client's id.
        secret: 32 random bytes, from which all its secrets are derived.
        ids: The clients on the roster, ``[n]``, int64; empty before step 2.
        keys: Their public keys, ``[n, 64]``, uint8.
        table: The clients that sent shares, ``[m]``, int64; empty before step 3.
        held: Shares that others sent to this client, ``[j, 66]``, uint8: 33 bytes of the own mask's seed, then 33 of
            the key for pair masks.
        seen: Digests of what it sent in step 2, of the table, the vector and the list of survivors, ``[4, 32]``, uint8;
            zero where it has not got there.
    """

    terms: Terms
    client: int
    secret: bytes = field(repr=False)
    ids: Ids = field(default_factory=_no_clients)
    keys: Octets = field(default_factory=lambda: np.zeros((0, 2 * KEY_BYTES), np.uint8))
    table: Ids = field(default_factory=_no_clients)
    held: Octets = field(repr=False, default_factory=lambda: np.zeros((0, 2 * SHARE_BYTES), np.uint8))
    seen: Octets = field(default_factory=lambda: np.zeros((4, 32), np.uint8))

    def circle(self) -> Circle:
        """Return the clients of the sum and who holds shares of whom.

        Raises:
            SecureSumError: If the client has not answered a roster.
        """
        if not len(self.ids):
            raise SecureSumError(
                f"secure sum: client {self.client} has not sent shares in session {self.terms.session!r}; its state "
                f"may be lost. It takes part again in the next sum",
                self.client,
            )
        return Circle.of(self.terms, Roster(self.ids, self.keys))

    def saw(self, place: int, said: bytes, what: str) -> ClientState:
        """Remember the digest of a message.

        Raises:
            SecureSumError: If the client has answered a different one.
        """
        new = np.frombuffer(said, dtype=np.uint8)
        if self.seen[place].any() and not np.array_equal(self.seen[place], new):
            raise SecureSumError(
                f"secure sum: client {self.client} has answered with another {what} in session {self.terms.session!r}. "
                f"It answers only once, since two answers together could show its vector. Start a new session",
                self.client,
            )
        seen = self.seen.copy()
        seen[place] = new
        return replace(self, seen=seen)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Write the state as arrays of uint8 and int64, for a file or a record.

        Example:
            >>> state = ClientState(terms=Terms(session="a", length=3, minimum=2), client=7, secret=bytes(32))
            >>> ClientState.from_arrays(state.to_arrays()).client
            7
        """
        about = json.dumps({"client": self.client, **asdict(self.terms)}).encode()
        return {
            "about": np.frombuffer(about, dtype=np.uint8),
            "secret": np.frombuffer(self.secret, dtype=np.uint8),
            "ids": self.ids,
            "keys": self.keys,
            "table": self.table,
            "held": self.held,
            "seen": self.seen,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ClientState:
        """Read a state that :meth:`to_arrays` wrote.

        Raises:
            StateError: If something is missing or cannot be read.
        """
        try:
            about = json.loads(arrays["about"].tobytes())
            rest = {name: arrays[name] for name in ("ids", "keys", "table", "held", "seen")}
            client = about.pop("client")
            return cls(terms=Terms(**about), client=client, secret=arrays["secret"].tobytes(), **rest)
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise StateError(
                f"secure sum: the saved state of a client cannot be read ({err!r}); delete it, and the client takes "
                f"part again in the next sum"
            ) from err
