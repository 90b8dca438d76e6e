"""The server's side of pooled statistics: the sum so far, and the steps of the secure sum that adds to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isoproto.common.pooled import Whole, vector_length
from isoproto.errors import SecureSumError
from isoproto.parts.base import Arrays, PartState, Sent
from isoproto.parts.pooled_fields import Step, id_of, terms_of
from isoproto.secure import server as secure
from isoproto.secure.messages import Circle, Reveal, Roster, Shares, Table


def _ids(values: Sequence[int] = ()) -> Tensor:
    return torch.tensor(sorted(values), dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class Pool(PartState):
    """What the server keeps of pooled statistics.

    Attributes:
        pool_plan: The step, and the round in which the sum began, ``[2]``, int64.
        pool_width: Coordinates D; 0 before they are known, ``[1]``, int64.
        pool_total: Sum of the vectors that clients have put in, ``[L]``, int64; empty before the first.
        pool_added: Vectors in it, ``[1]``, int64.
        pool_members: Clients that are in the sum, ``[n]``, int64.
        pool_since: Mark of what each put in last, ``[n]``, int64.
        pool_sent: Clients that ever sent a vector, ``[k]``, int64.
        pool_times: How many vectors each sent, ``[k]``, int64.
        pool_left_out: Clients that are left out for what they did, ``[b]``, int64.
        secure_ids: Clients of the present sum, ``[n]``, int64.
        secure_keys: Their keys, ``[n, 64]``, uint8.
        secure_shared: Clients that sent shares, ``[m]``, int64.
        secure_rows: Their shares, ``[m, h, 114]``, uint8.
        secure_seals: Their seals, ``[m, 32]``, uint8.
        secure_survivors: Clients whose vector came, ``[a]``, int64.
        secure_dropped: The others that sent shares, ``[b]``, int64.
        secure_masked: Sum of the vectors under masks, ``[L]``, int64.
    """

    pool_plan: Tensor
    pool_width: Tensor
    pool_total: Tensor
    pool_added: Tensor
    pool_members: Tensor
    pool_since: Tensor
    pool_sent: Tensor
    pool_times: Tensor
    pool_left_out: Tensor
    secure_ids: Tensor
    secure_keys: Tensor
    secure_shared: Tensor
    secure_rows: Tensor
    secure_seals: Tensor
    secure_survivors: Tensor
    secure_dropped: Tensor
    secure_masked: Tensor

    @classmethod
    def empty(cls) -> Pool:
        """Return the pool that nothing was put into, without a secure sum."""
        bytes_ = {"secure_keys": (0, 64), "secure_rows": (0, 1, 114), "secure_seals": (0, 32)}
        numbers = {"pool_plan": 2, "pool_width": 1, "pool_added": 1}
        fields = {f.name: torch.zeros(numbers.get(f.name, 0), dtype=torch.int64) for f in dataclasses.fields(cls)}
        return cls(**{**fields, **{name: torch.zeros(shape, dtype=torch.uint8) for name, shape in bytes_.items()}})

    @property
    def step(self) -> Step:
        """What the server waits for."""
        return Step(int(self.pool_plan[0]))

    @property
    def start(self) -> int:
        """The round in which the present sum began."""
        return int(self.pool_plan[1])

    @property
    def releases(self) -> int:
        """Most vectors that any client sent."""
        return int(self.pool_times.max()) if len(self.pool_times) else 0

    @property
    def roster(self) -> Roster:
        """The clients of the present sum."""
        return Roster(self.secure_ids.numpy(), self.secure_keys.numpy())

    @property
    def table(self) -> Table:
        """The shares of the present sum."""
        return Table(self.secure_shared.numpy(), self.secure_rows.numpy(), self.secure_seals.numpy())

    @property
    def asked(self) -> Reveal:
        """Whose vector is in the present sum."""
        return Reveal(self.secure_survivors.numpy(), self.secure_dropped.numpy())

    def downlink(self) -> Arrays:
        """Return the arrays to send."""
        names = ["pool_plan", "pool_members", "pool_since", *_TABLES.get(self.step, ())]
        return {name.replace("_", "-"): getattr(self, name) for name in names}

    def length(self, num_classes: int) -> int:
        """Return the length of the vectors, L."""
        return vector_length(num_classes, int(self.pool_width))

    def counted(self, clients: Sequence[int]) -> Pool:
        """Return the pool after some clients sent a vector."""
        times = dict(zip(self.pool_sent.tolist(), self.pool_times.tolist(), strict=True))
        times |= {client: times.get(client, 0) + 1 for client in clients}
        return dataclasses.replace(self, pool_sent=_ids(list(times)), pool_times=_ordered(times))

    def with_vectors(self, total: Tensor, marks: Mapping[int, int]) -> Pool:
        """Return the pool with the sum of some clients' vectors added.

        Args:
            total: The sum, ``[L]``, int64.
            marks: The clients' marks.
        """
        since = {**dict(zip(self.pool_members.tolist(), self.pool_since.tolist(), strict=True)), **marks}
        return dataclasses.replace(
            self,
            pool_total=self.pool_total + total if len(self.pool_total) else total,
            pool_added=self.pool_added + len(marks),
            pool_members=_ids(list(since)),
            pool_since=_ordered(since),
        )

    def begun(self, server_round: int) -> Pool:
        """Return the pool when it waits for the keys of a new secure sum."""
        fresh = Pool.empty()
        empty = {f.name: getattr(fresh, f.name) for f in dataclasses.fields(Pool) if f.name.startswith("secure_")}
        return dataclasses.replace(self, pool_plan=torch.tensor([Step.KEYS, server_round]), **empty)

    def moved(self, step: Step, **tables: Any) -> Pool:  # noqa: ANN401 - arrays of any type
        """Return the pool in the next step, with the arrays that the step needs."""
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in tables.items()}
        return dataclasses.replace(self, pool_plan=torch.tensor([step, self.start]), **tensors)

    def without(self, clients: Sequence[int]) -> Pool:
        """Return the pool with some clients left out of all sums to come."""
        return dataclasses.replace(self, pool_left_out=_ids([*{*self.pool_left_out.tolist(), *clients}]))


def _ordered(numbers: Mapping[int, int]) -> Tensor:
    """Return numbers in the order of their keys."""
    return torch.tensor([numbers[key] for key in sorted(numbers)], dtype=torch.int64)


# What clients are sent in each step beside the plan.
_TABLES = {
    Step.SHARES: ("secure_ids", "secure_keys"),
    Step.VECTOR: ("secure_shared", "secure_rows", "secure_seals"),
    Step.REVEAL: ("secure_survivors", "secure_dropped"),
}


class Folded(NamedTuple):
    """The pool after a round.

    Attributes:
        pool: The pool.
        left_out: Clients that were left out, each with the reason.
        failed: Why the secure sum failed; empty if it did not.
    """

    pool: Pool
    left_out: Mapping[str, str]
    failed: str = ""


def fold_open(pool: Pool, sent: Sequence[Sent]) -> Folded:
    """Add the vectors that came. Each has the client's own noise, so the server may see it."""
    came = [each for each in sent if "pool-vector" in each.arrays]
    if not came:
        return Folded(pool, {})
    marks = {id_of(each.client): int(each.arrays["pool-mark"]) for each in came}
    total = torch.stack([each.arrays["pool-vector"] for each in came]).sum(0)
    return Folded(pool.counted(list(marks)).with_vectors(total, marks), {})


class _GuiltyError(SecureSumError):
    """Names clients whose shares do not give their secret back. No other client can have caused that."""


@dataclass
class _Round:
    """The replies of one round of a secure sum, and who is left out in it."""

    pool: Pool
    sent: Sequence[Sent]
    num_classes: int
    minimum: int
    left_out: dict[str, str]

    @property
    def circle(self) -> Circle:
        return Circle.of(terms_of(self.pool.start, self.pool.length(self.num_classes), self.minimum), self.pool.roster)

    def came(self, *names: str) -> dict[int, Sent]:
        """Return the clients that sent all of some arrays, but for those that are left out."""
        out = set(self.pool.pool_left_out.tolist())
        return {c: s for s in self.sent if all(n in s.arrays for n in names) and (c := id_of(s.client)) not in out}

    def good(self, came: Mapping[int, Sent], check: Callable[[int, Sent], Any]) -> dict[int, Any]:
        """Return what ``check`` makes of each client's reply. A reply that it refuses counts as not sent."""
        found = {}
        for client, each in came.items():
            try:
                found[client] = check(client, each)
            except SecureSumError as err:
                self.left_out[each.client] = str(err)
        return found


def fold_secure(pool: Pool, sent: Sequence[Sent], *, num_classes: int, minimum: int, server_round: int) -> Folded:
    """Take the next step of a secure sum, or begin a new one if it failed.

    Args:
        pool: The pool that the clients were sent.
        sent: The good replies.
        num_classes: Classes C.
        minimum: Fewest clients of a sum.
        server_round: The next round, in which a new sum would begin.
    """
    now = _Round(pool, sent, num_classes, minimum, {})
    blamed = _blamed(now)
    try:
        if blamed:
            raise SecureSumError("shares could not be read; the clients concerned are left out of the next sum")
        found = _STEPS[pool.step](now)
        failed = ""
    except SecureSumError as err:
        guilty = sorted({*blamed, *(err.clients if isinstance(err, _GuiltyError) else ())})
        names = {id_of(each.client): each.client for each in sent}
        now.left_out.update({names.get(client, f"number {client}"): str(err) for client in guilty})
        found, failed = pool.without(guilty).begun(server_round), str(err)
    if found.step == Step.KEYS:
        found = found.begun(server_round)
    return Folded(found, now.left_out, failed)


def _blamed(now: _Round) -> set[int]:
    """Return clients that say, or of which it is said, that shares cannot be read. Nobody can tell who is lying."""
    known = set(now.pool.secure_ids.tolist())
    came = now.came("secure-blamed").items()
    pairs = [(client, each.arrays["secure-blamed"].tolist()[0]) for client, each in came if client in known]
    return {client for pair in pairs if pair[1] in known for client in pair}


def _keys(now: _Round) -> Pool:
    came = now.came("secure-key", "secure-width")
    widths = [int(each.arrays["secure-width"]) for each in came.values()]
    if len(came) < now.minimum:
        return now.pool  # nothing is wrong: too few clients have something new
    width = int(now.pool.pool_width) or max(set(widths), key=lambda w: (widths.count(w), w))
    keys = {
        client: each.arrays["secure-key"].numpy()
        for (client, each), own in zip(came.items(), widths, strict=True)
        if own == width
    }
    pool = dataclasses.replace(now.pool, pool_width=torch.tensor([width]))
    roster = secure.roster(terms_of(pool.start, pool.length(now.num_classes), now.minimum), keys)
    return pool.moved(Step.SHARES, secure_ids=roster.ids, secure_keys=roster.keys)


def _shares(now: _Round) -> Pool:
    circle = now.circle

    def check(client: int, each: Sent) -> Shares:
        shares = Shares(each.arrays["secure-row"].numpy(), each.arrays["secure-seal"].numpy())
        return secure.read_shares(circle, client, shares)

    table = secure.table(circle, now.good(now.came("secure-row", "secure-seal"), check))
    return now.pool.moved(Step.VECTOR, secure_shared=table.ids, secure_rows=table.rows, secure_seals=table.seals)


def _vectors(now: _Round) -> Pool:
    circle, shared = now.circle, now.pool.secure_shared.numpy()

    def check(client: int, each: Sent) -> Whole:
        return secure.read_vector(circle, shared, client, each.arrays["secure-masked"].numpy())

    vectors: dict[int, Whole] = now.good(now.came("secure-masked"), check)
    arrived = np.array(sorted(vectors), dtype=np.int64)
    asked = secure.reveal(circle, shared, arrived)
    masked = sum(vectors.values(), np.zeros(circle.terms.length, dtype=np.int64))  # it wraps round, as it should
    pool = now.pool.counted(list(vectors))
    tables = {"secure_survivors": asked.survivors, "secure_dropped": asked.dropped, "secure_masked": masked}
    return pool.moved(Step.REVEAL, **tables)


def _reveals(now: _Round) -> Pool:
    pool, circle = now.pool, now.circle

    def check(client: int, each: Sent) -> Any:  # noqa: ANN401 - an array of NumPy
        return secure.read_answer(circle, pool.table, pool.asked, client, each.arrays["secure-answer"].numpy())

    answers = now.good(now.came("secure-answer"), check)
    circle.check_holders(
        pool.table.ids, circle.among(np.array(sorted(answers), dtype=np.int64)), "revealed their shares"
    )
    try:
        total = secure.total(circle, pool.table, pool.asked, pool.secure_masked.numpy(), answers)
    except SecureSumError as err:
        raise _GuiltyError(str(err), *err.clients) from err
    marks = dict.fromkeys(pool.secure_survivors.tolist(), pool.start)
    return pool.with_vectors(torch.from_numpy(total), marks).moved(Step.KEYS)


_STEPS: Mapping[Step, Callable[[_Round], Pool]] = {
    Step.KEYS: _keys,
    Step.SHARES: _shares,
    Step.VECTOR: _vectors,
    Step.REVEAL: _reveals,
}
