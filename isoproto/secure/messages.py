"""What the server sends in a secure sum, as arrays, and the checks that both sides make of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from isoproto.errors import SecureSumError
from isoproto.secure.graph import Positions, holders, smallest_group
from isoproto.secure.shamir import SHARE_BYTES
from isoproto.secure.stream import digest

Octets = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]
S = TypeVar("S", bound=np.generic)

KEY_BYTES = 32
SEAL_BYTES = 32
MARK_BYTES = 16
CIPHER_BYTES = 2 * SHARE_BYTES + 16  # two shares and the tag of the cipher
ROW_BYTES = CIPHER_BYTES + 2 * MARK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What everybody agrees on before a sum. Server and clients make it from the run's settings.

    Attributes:
        session: Name of this sum, such as run, round and purpose. No two sums may share it.
        length: Numbers in each vector, L.
        minimum: Fewest clients whose sum the server may learn, >= 2.
        threshold: Part of a client's holders that must answer in the last step, in [0.5, 1).
        degree: How many others hold shares of a client, even and >= 2; fewer where there are fewer clients.

    Example:
        >>> terms = Terms(session="run-1/round-3", length=1000, minimum=5)
        >>> terms.needed(41), terms.needed(5), terms.needed(3)
        (25, 4, 2)
    """

    session: str
    length: int
    minimum: int
    threshold: float = 0.6
    degree: int = 40

    def __post_init__(self) -> None:
        problems = [
            text
            for wrong, text in [
                (not self.session, "`session` must not be empty"),
                (self.length < 1, f"`length` must be at least 1, got {self.length}"),
                (self.minimum < 2, f"`minimum` must be at least 2, got {self.minimum}: a sum of one is that client's"),
                # Below one half, two lists of drop-outs could give the server both secrets of a client.
                (not 0.5 <= self.threshold < 1, f"`threshold` must be in [0.5, 1), got {self.threshold}"),
                (self.degree < 2 or self.degree % 2, f"`degree` must be even and at least 2, got {self.degree}"),
            ]
            if wrong
        ]
        if problems:
            raise ValueError(f"secure sum: {'; '.join(problems)}")

    def needed(self, holders: int) -> int:
        """Return how many of a client's holders must answer: more than ``threshold`` of them."""
        return min(holders, math.floor(self.threshold * holders) + 1)

    def digest(self) -> bytes:
        """Return a digest of all terms, 32 bytes."""
        numbers = (self.length, self.minimum, self.degree)
        return digest(self.session.encode(), repr(float(self.threshold)).encode(), *numbers)


class Roster(NamedTuple):
    """Step 2, to all clients: who takes part.

    Attributes:
        ids: The clients, ascending, ``[n]``, int64.
        keys: Their public keys, ``[n, 64]``, uint8: 32 bytes for masks, 32 for encryption.
    """

    ids: Ids
    keys: Octets


class Shares(NamedTuple):
    """Step 2, from a client: encrypted shares of its two secrets.

    Attributes:
        rows: A row for each holder, in ascending order of their ids, ``[h, 114]``, uint8: 82 bytes that only the holder
            can read, and a mark of each of the two shares, 16 bytes each.
        seal: Digest of the secret behind its own mask, ``[32]``, uint8.
    """

    rows: Octets
    seal: Octets


class Table(NamedTuple):
    """Step 3, to all clients: the shares of all.

    Attributes:
        ids: The clients that sent shares, ascending, ``[m]``, int64.
        rows: Their rows, ``[m, h, 114]``, uint8.
        seals: Their seals, ``[m, 32]``, uint8.
    """

    ids: Ids
    rows: Octets
    seals: Octets


class Reveal(NamedTuple):
    """Step 4, to all clients: whose vector is in the sum.

    Attributes:
        survivors: Clients whose vector arrived, ascending, ``[a]``, int64.
        dropped: Clients that sent shares and no vector, ascending, ``[b]``, int64.
    """

    survivors: Ids
    dropped: Ids


@dataclass(frozen=True, eq=False)
class Circle:
    """The clients of a sum, and who holds shares of whom. Server and clients compute the same from the roster.

    Attributes:
        terms: The terms of the sum.
        ids: The clients, ascending, ``[n]``, int64.
        keys: Their public keys, ``[n, 64]``, uint8.
        context: Digest of terms and roster. All secrets depend on it, so nobody can mix messages of two sums.
        holders: Holders of each client as positions in ``ids``, ``[n, h]``, int64.
    """

    terms: Terms
    ids: Ids
    keys: Octets
    context: bytes
    holders: Positions

    @classmethod
    def of(cls, terms: Terms, roster: Roster) -> Circle:
        """Check a roster and draw the holders.

        Raises:
            SecureSumError: If arrays have a wrong form, if clients are too few, or if two clients have the same key.
        """
        ids = ascending(roster.ids, "the roster's ids")
        keys = array(roster.keys, np.uint8, (len(ids), 2 * KEY_BYTES), "the roster's keys")
        enough(len(ids), terms, "are on the roster")
        own = keys.reshape(-1, KEY_BYTES)
        if len(np.unique(own, axis=0)) < len(own):
            raise SecureSumError("secure sum: two keys on the roster are equal; every client must make its own keys")
        context = digest(terms.digest(), ids.astype("<i8").tobytes(), keys.tobytes())
        return cls(terms, ids, keys, context, holders(len(ids), terms.degree, context))

    @property
    def needed(self) -> int:
        """How many holders of a client must answer in the last step."""
        return self.terms.needed(self.holders.shape[1])

    @cached_property
    def _position(self) -> dict[int, int]:
        return {int(client): position for position, client in enumerate(self.ids)}

    def position(self, client: int) -> int:
        """Return a client's place in ``ids``.

        Raises:
            SecureSumError: If the client is not on the roster.
        """
        if client not in self._position:
            raise SecureSumError(f"secure sum: client {client} is not on the roster of {len(self.ids)} clients", client)
        return self._position[client]

    def among(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Mark the clients ``ids`` in the roster, ``[n]``, bool."""
        marked = np.zeros(len(self.ids), dtype=bool)
        marked[[self.position(int(client)) for client in ids]] = True
        return marked

    def held(self, position: int, table: Ids) -> Positions:
        """Return the clients of ``table`` whose shares the client at ``position`` holds, ascending positions."""
        joined = self.holders[position]
        found: Positions = joined[self.among(table)[joined]]
        return found

    def check_table(self, table: Table) -> Table:
        """Check the shares of all: form, known clients, enough of them, and enough holders of each.

        Raises:
            SecureSumError: If one of these does not hold.
        """
        ids = ascending(table.ids, "the table's ids")
        rows = array(table.rows, np.uint8, (len(ids), self.holders.shape[1], ROW_BYTES), "the table's rows")
        seals = array(table.seals, np.uint8, (len(ids), SEAL_BYTES), "the table's seals")
        enough(len(ids), self.terms, "sent shares")
        self.check_holders(ids, self.among(ids), "sent shares")
        return Table(ids, rows, seals)

    def check_holders(self, ids: Ids, alive: npt.NDArray[np.bool_], did: str) -> None:
        """Check that each of ``ids`` has enough living holders."""
        for client in ids.tolist():
            count = int(alive[self.holders[self.position(client)]].sum())
            if count < self.needed:
                raise SecureSumError(
                    f"secure sum: of the {self.holders.shape[1]} holders of client {client}'s shares only {count} "
                    f"{did}, and {self.needed} are needed (`threshold` {self.terms.threshold:g}). Nothing is revealed; "
                    f"start the sum again, or lower the threshold",
                    client,
                )

    def check_reveal(self, reveal: Reveal, table: Ids) -> Reveal:
        """Check who is in the sum and who is not.

        Raises:
            SecureSumError: If a client is in both lists or in neither, if one is unknown, or if too few are in the sum.
        """
        survivors = ascending(reveal.survivors, "the survivors")
        dropped = ascending(reveal.dropped, "the clients that dropped out")
        both = np.intersect1d(survivors, dropped)
        if len(both):
            raise SecureSumError(
                f"secure sum: client {both[0]} is named both as survivor and as dropped out; with both of its secrets "
                f"the server could read its vector, so nothing is revealed",
                *both.tolist(),
            )
        named = np.union1d(survivors, dropped)
        wrong = np.setxor1d(named, table)
        if len(wrong):
            problem = "is named but sent no shares" if wrong[0] in named else "sent shares but is not named"
            raise SecureSumError(f"secure sum: client {wrong[0]} {problem}; nothing is revealed", *wrong.tolist())
        enough(len(survivors), self.terms, "sent a vector")
        self._check_groups(survivors)
        return Reveal(survivors, dropped)

    def _check_groups(self, survivors: Ids) -> None:
        """Check that the server learns no sum of fewer than ``minimum`` clients."""
        size = smallest_group(self.holders, self.among(survivors))
        enough(size, self.terms, "are joined by masks in one group of survivors")


def enough(count: int, terms: Terms, did: str) -> None:
    """Check that a number of clients is at least ``terms.minimum``.

    Raises:
        SecureSumError: If it is less.
    """
    if count < terms.minimum:
        raise SecureSumError(
            f"secure sum: only {count} clients {did}, and a sum needs at least {terms.minimum} (`minimum`). Nothing is "
            f"revealed; start the sum again with more clients"
        )


def array(values: object, dtype: type[S], shape: tuple[int, ...], what: str) -> npt.NDArray[S]:
    """Return ``values`` if it is an array of this type and shape.

    Raises:
        SecureSumError: If it is not.
    """
    if not isinstance(values, np.ndarray) or values.dtype != dtype or values.shape != shape:
        got = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise SecureSumError(f"secure sum: {what} must be {np.dtype(dtype)} {shape}, got {got}")
    return np.ascontiguousarray(values)


def ascending(values: object, what: str) -> Ids:
    """Return client ids if they are int64, ascending and without repetition.

    Raises:
        SecureSumError: If they are not.
    """
    length = len(values) if isinstance(values, np.ndarray) and values.ndim == 1 else 0
    ids: Ids = array(values, np.int64, (length,), what)
    if (np.diff(ids) <= 0).any():
        raise SecureSumError(f"secure sum: {what} must ascend without repetition, got {ids[:8].tolist()}...")
    return ids
