"""A client's side of pooled statistics: what it has put into the sum, and its answer in each step."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isoproto.common.pooled import Packing, Whole, vector_length
from isoproto.errors import SecureSumError, WireError
from isoproto.parts.base import Answer, Arrays
from isoproto.parts.pooled_fields import Step, id_of, terms_of
from isoproto.secure import client as secure
from isoproto.secure.client_state import ClientState
from isoproto.secure.messages import Reveal, Roster, Table

_SESSION = "session."


class Put(NamedTuple):
    """Statistics that a client has put into the sum, or is about to.

    Attributes:
        mark: Number by which the server says that they are in: the round in which the secure sum began, or a random
            number; 0 for nothing.
        digest: Checksum of the samples.
        statistics: What all that the client has put in adds up to then, without noise, ``[L]``, int64.
        vector: What it sends for that: the difference from before, with noise, ``[L]``, int64.
    """

    mark: int
    digest: int
    statistics: Tensor
    vector: Tensor

    @classmethod
    def nothing(cls) -> Put:
        """Return what a client has put in at first."""
        return cls(0, 0, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))

    def as_done(self) -> Put:
        """Return it without the vector, which nobody asks for again once a newer one is made."""
        return self._replace(vector=self.vector[:0])


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a client remembers of pooled statistics. It is secret: it holds the statistics and the keys of a sum.

    Attributes:
        done: What was in the sum when ``pending`` was made.
        pending: What was sent last. It stays here when it is in the sum, since the server may go back to a state in
            which it was not.
        session: The secure sum that the client takes part in.
    """

    done: Put = field(default_factory=Put.nothing)
    pending: Put = field(default_factory=Put.nothing)
    session: ClientState | None = None

    @classmethod
    def of(cls, arrays: Arrays) -> Memory:
        """Read what :meth:`to_arrays` wrote; the empty memory if there is nothing."""
        if not arrays:
            return cls()
        puts = [Put(*n, arrays[f"{i}.statistics"], arrays[f"{i}.vector"]) for i, n in enumerate(_numbers(arrays))]
        session = {n.removeprefix(_SESSION): t.numpy() for n, t in arrays.items() if n.startswith(_SESSION)}
        return cls(done=puts[0], pending=puts[1], session=ClientState.from_arrays(session) if session else None)

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the memory as named tensors."""
        arrays: dict[str, Tensor] = {"numbers": torch.tensor([[p.mark, p.digest] for p in (self.done, self.pending)])}
        for number, put in enumerate((self.done, self.pending)):
            arrays |= {f"{number}.statistics": put.statistics, f"{number}.vector": put.vector}
        session = self.session.to_arrays() if self.session else {}
        return arrays | {_SESSION + name: torch.from_numpy(np.array(array)) for name, array in session.items()}

    def known(self, mark: int) -> Put:
        """Return what is in the sum, after the mark that the server has of this client; 0 stands for nothing.

        Raises:
            SecureSumError: If the server has another mark than this client remembers.
        """
        if mark and mark == self.pending.mark:
            return self.pending
        if mark == self.done.mark:
            return self.done
        raise SecureSumError(
            f"the server has statistics of this client with mark {mark}, and the client remembers {self.done.mark} and "
            f"{self.pending.mark}. It sends nothing more, since a difference from them would be wrong. Its memory or "
            f"the server's newest checkpoints were lost; start a new run"
        )


def _numbers(arrays: Arrays) -> list[tuple[int, int]]:
    return [(int(mark), int(digest)) for mark, digest in arrays["numbers"].tolist()]


@dataclass(frozen=True, kw_only=True)
class Own:
    """A client's samples as far as pooled statistics need them.

    Attributes:
        client: The client's name.
        digest: Checksum of the samples; 0 if there are none to send.
        width: Coordinates D.
        num_classes: Classes C.
        packing: How statistics become a vector.
        packed: Computes the vector of all samples, ``[L]``, int64.
        minimum: Fewest clients of a sum.
        entropy: Gives so many secret random bytes; only tests replace it.
    """

    client: str
    digest: int
    width: int
    num_classes: int
    packing: Packing
    packed: Callable[[], Whole]
    minimum: int
    entropy: Callable[[int], bytes] = os.urandom

    @property
    def length(self) -> int:
        """Numbers in the vector, L."""
        return vector_length(self.num_classes, self.width)

    def put(self, done: Put, mark: int, seed: bytes) -> Put:
        """Return what to put in now: the difference from before, with noise."""
        now = self.packed()
        before = done.statistics.numpy() if len(done.statistics) else np.zeros_like(now)
        sent = now - before
        if self.packing.noise_multiplier:
            sent = sent + self.packing.noise(len(now), seed)
        return Put(mark, self.digest, torch.from_numpy(now), torch.from_numpy(sent))


def answer(own: Own, sent: Arrays, memory: Arrays) -> Answer:
    """Return what a client sends, and what it remembers.

    Args:
        own: The client's samples.
        sent: What the server sent; empty before the first round that has a plan.
        memory: What the client remembers.
    """
    if "pool-plan" not in sent:
        return Answer({}, memory)
    before = Memory.of(memory)
    step, start = (int(number) for number in sent["pool-plan"])
    marks = dict(zip(sent["pool-members"].tolist(), sent["pool-since"].tolist(), strict=True))
    kept = before
    if step not in _STEPS:
        raise WireError(f"array 'pool-plan': expected a step from 0 to {max(_STEPS)}, got {step}")
    try:
        known = before.known(marks.get(id_of(own.client), 0))
        kept = _current(before, start)
        after, arrays = _STEPS[Step(step)](Turn(own, kept, known, start, sent))
        problem = ""
    except SecureSumError as err:
        blamed = sorted(set(err.clients) - {id_of(own.client)})[:1]
        after, arrays, problem = kept, {"secure-blamed": torch.tensor(blamed)} if blamed else {}, str(err)
    return Answer(arrays, memory if after is before else after.to_arrays(), problem)


def _current(kept: Memory, start: int) -> Memory:
    """Return the memory without the keys of a sum that is over."""
    if kept.session is None or kept.session.terms.session == terms_of(start, 1, 2).session:
        return kept
    return dataclasses.replace(kept, session=None)


class Turn(NamedTuple):
    """A client's turn in a step.

    Attributes:
        own: Its samples.
        kept: What it remembers.
        known: What is in the sum of it.
        start: Round in which the secure sum began.
        sent: What the server sent.
    """

    own: Own
    kept: Memory
    known: Put
    start: int
    sent: Arrays

    @property
    def new(self) -> bool:
        """Whether the client has something to put in."""
        return self.own.digest not in (0, self.known.digest)

    def session(self, ids: str) -> ClientState | None:
        """Return the client's state in the sum; ``None`` if the sum is without it, by the ids in this array."""
        session = self.kept.session
        return session if session is not None and session.client in self.array(ids).tolist() else None

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array of the server.

        Raises:
            SecureSumError: If it did not come.
        """
        if name not in self.sent:
            raise SecureSumError(f"secure sum: the server's message lacks the array '{name}', which this step needs")
        return self.sent[name].numpy()

    def with_session(self, session: ClientState, **others: Put) -> Memory:
        """Return the memory with a new state in the sum."""
        return dataclasses.replace(self.kept, session=session, **others)


_Said = tuple[Memory, dict[str, Tensor]]


def _open(turn: Turn) -> _Said:
    """Send the statistics, each client with all of its noise."""
    own, kept = turn.own, turn.kept
    if not turn.new:
        return kept, {}
    if kept.pending.digest != own.digest:  # else the same message again, with the same noise
        mark = int.from_bytes(own.entropy(8), "little") >> 2 or 1
        kept = dataclasses.replace(kept, done=turn.known.as_done(), pending=own.put(turn.known, mark, own.entropy(32)))
    return kept, {"pool-vector": kept.pending.vector, "pool-mark": torch.tensor([kept.pending.mark])}


def _keys(turn: Turn) -> _Said:
    """Take part in the sum that begins, if there is something new to put in."""
    own, session = turn.own, turn.kept.session
    if not turn.new:
        return turn.kept, {}
    if session is None:
        session = secure.begin(terms_of(turn.start, own.length, own.minimum), id_of(own.client), own.entropy)
    keys = torch.from_numpy(secure.public_keys(session))
    return turn.with_session(session), {"secure-key": keys, "secure-width": torch.tensor([own.width])}


def _shares(turn: Turn) -> _Said:
    """Share the secrets out."""
    session = turn.session("secure-ids")
    if session is None:
        return turn.kept, {}
    session, dealt = secure.share(session, Roster(turn.array("secure-ids"), turn.array("secure-keys")))
    found = {"secure-row": torch.from_numpy(dealt.rows), "secure-seal": torch.from_numpy(dealt.seal)}
    return turn.with_session(session), found


def _vector(turn: Turn) -> _Said:
    """Send the statistics under masks, with this client's part of the noise."""
    session, kept, known = turn.session("secure-shared"), turn.kept, turn.known
    if session is None or not len(session.ids):
        return kept, {}
    puts = {"done": kept.done, "pending": kept.pending}
    if kept.pending.mark != turn.start:
        puts = {"done": known.as_done(), "pending": turn.own.put(known, turn.start, secure.noise_seed(session))}
    table = Table(*(turn.array(name) for name in ("secure-shared", "secure-rows", "secure-seals")))
    session, masked = secure.mask(session, table, puts["pending"].vector.numpy())
    return turn.with_session(session, **puts), {"secure-masked": torch.from_numpy(masked)}


def _reveal(turn: Turn) -> _Said:
    """Reveal one share of each client."""
    session = turn.kept.session
    if session is None or not len(session.table):
        return turn.kept, {}
    asked = Reveal(turn.array("secure-survivors"), turn.array("secure-dropped"))
    session, shares = secure.reveal(session, asked)
    return turn.with_session(session), {"secure-answer": torch.from_numpy(shares)}


_STEPS: Mapping[Step, Callable[[Turn], _Said]] = {
    Step.OPEN: _open,
    Step.KEYS: _keys,
    Step.SHARES: _shares,
    Step.VECTOR: _vector,
    Step.REVEAL: _reveal,
}
