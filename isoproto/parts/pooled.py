"""Statistics in the common frame of which the server learns the sum alone, or only with noise."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from isoproto.common.pooled import MOST, Packing, Pooled
from isoproto.common.samples import FrameSamples
from isoproto.parts.base import Answer, Arrays, Field, Part, Sent
from isoproto.parts.pooled_client import Own, answer
from isoproto.parts.pooled_fields import DOWN, OPEN_UP, SECURE_UP
from isoproto.parts.pooled_server import Folded, Pool, fold_open, fold_secure
from isoproto.parts.state import ServerState
from isoproto.parts.view import View
from isoproto.privacy.accountant import Release, epsilon_of

if TYPE_CHECKING:
    from isoproto.config import RunConfig

_log = logging.getLogger("isoproto")

UNIT = "one training sample"


@dataclass(frozen=True, kw_only=True)
class PooledStatistics(Part):
    """Clients put the statistics of their samples into one sum, by the secure sum, with noise, or both.

    Under the secure sum, four rounds make a sum: keys, shares, vectors under masks, and what takes the masks off. A
    client with nothing new is not in it. Samples that are held out are never put in.

    Attributes:
        secure: Whether the secure sum is used.
        packing: How statistics become a vector, and the noise in it.
        delta: Chance that epsilon does not hold.
        smallest: Fewest clients of a sum.
        minimum: Least samples of a class that a client sends statistics of.
    """

    secure: bool
    packing: Packing
    delta: float
    smallest: int
    minimum: int

    uses_means = False
    remembers = "statistics"
    down = DOWN
    up = (*OPEN_UP, *SECURE_UP)

    @classmethod
    def of(cls, config: RunConfig) -> PooledStatistics | None:
        """Return the part if the run has the secure sum or noise."""
        if not config.pooled:
            return None
        smallest = config.min_contributors if config.common__secure else 1
        return cls(
            secure=config.common__secure,
            packing=Packing(config.common__clip, config.common__noise, smallest),
            delta=config.common__delta,
            smallest=smallest,
            minimum=config.min_class_samples,
        )

    @classmethod
    def conflict(cls, config: RunConfig) -> str:
        """Refuse what would undo the protection, or what it cannot do yet."""
        wanted = [name for name, on in (("secure", config.common__secure), ("noise", config.common__noise)) if on]
        rules = {"secure": _SECURE, "noise": _NOISE}
        for name in wanted:
            for rule in (*_BOTH, *rules[name]):
                if rule.broken(config):
                    return f"`common.{name} = {_shown(config, name)}` {rule.why}; set {rule.remedy}"
        return ""

    @property
    def sends(self) -> tuple[Field, ...]:
        """The steps of the secure sum, or the vector with noise."""
        return SECURE_UP if self.secure else OPEN_UP

    @property
    def measures(self) -> str:
        """It measures nothing of a network."""
        return "after"

    # The server's half

    def downlink(self, state: ServerState) -> Arrays:
        """Send what the server waits for, and what of each client is in the sum."""
        return self._pool(state).downlink()

    def fault(self, arrays: Arrays, declared: Sequence[int]) -> str:
        """Return what no statistics can be."""
        vector = arrays.get("pool-vector")
        if vector is not None and bool(((vector >= MOST) | (vector <= -MOST)).any()):
            return f"array 'pool-vector': a number is not below {MOST} in magnitude, so a sum could overflow"
        if "pool-mark" in arrays and int(arrays["pool-mark"]) < 1:
            return f"array 'pool-mark': expected a number >= 1, got {int(arrays['pool-mark'])}"
        if "secure-width" in arrays and not 1 <= int(arrays["secure-width"]) < 2**15:
            return f"array 'secure-width': expected 1..{2**15 - 1} coordinates, got {int(arrays['secure-width'])}"
        if "secure-blamed" in arrays and len(arrays["secure-blamed"]) != 1:
            return f"array 'secure-blamed': expected one client, got {len(arrays['secure-blamed'])}"
        return ""

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Add to the sum, or take the next step of the secure sum."""
        pool, classes = self._pool(before), len(after.present)
        if self.secure:
            folded = fold_secure(
                pool, sent, num_classes=classes, minimum=self.smallest, server_round=before.server_round + 2
            )
        else:
            folded = fold_open(pool, sent)
        if folded.failed:
            _log.warning("the secure sum starts again: %s", folded.failed)
        for client, reason in folded.left_out.items():
            _log.warning("client %s is left out of the secure sum: %s", client, reason)
        return folded.pool.put(dataclasses.replace(after, figures={**after.figures, **self._figures(folded)}))

    def _pool(self, state: ServerState) -> Pool:
        """Return what is kept. Before the first round, the secure sum waits for keys."""
        kept = Pool.of(state)
        return kept or (Pool.empty().begun(state.server_round + 1) if self.secure else Pool.empty())

    def _figures(self, folded: Folded) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.packing.noise_multiplier:
            releases = folded.pool.releases
            epsilon = _epsilon(self.packing.noise_multiplier, releases, self.delta)
            found["privacy"] = {"epsilon": epsilon, "delta": self.delta, "unit": UNIT, "releases": releases}
        if self.secure:
            found["secure"] = {
                "waits_for": folded.pool.step.name.lower(),
                "in_sum": len(folded.pool.pool_members),
                "left_out": dict(folded.left_out),
                "failed": folded.failed,
            }
        return found

    # The client's half

    def answer(self, view: View, memory: Arrays) -> Answer:
        """Return the client's message in the present step."""
        samples = view.samples
        if samples is None:
            raise ValueError("a run with a common frame needs the client's samples in it; the client app gives them")
        return answer(self._own(view.client, samples), view.arrays, memory)

    def _own(self, client: str, samples: FrameSamples) -> Own:
        labels = samples.fit_labels
        enough = torch.bincount(labels, minlength=samples.num_classes)[labels] >= self.minimum
        return Own(
            client=client,
            digest=samples.digests[0] if bool(enough.any()) else 0,
            width=samples.fit.shape[2],
            num_classes=samples.num_classes,
            packing=self.packing,
            packed=lambda: self.packing.packed(samples.fit[enough], labels[enough], samples.num_classes),
            minimum=self.smallest,
        )


def new_sum(part: PooledStatistics, before: ServerState, after: ServerState) -> Pooled | None:
    """Return the sum of all clients' statistics if it has changed in this round.

    Args:
        part: The part that adds up.
        before: The state that clients were sent.
        after: The state after the part folded the replies.
    """
    old, new = Pool.of(before), Pool.of(after)
    if new is None or not len(new.pool_total) or (old is not None and old.pool_total.equal(new.pool_total)):
        return None
    return part.packing.pooled(new.pool_total.numpy(), len(after.present), int(new.pool_added))


@functools.lru_cache(maxsize=64)
def _epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return epsilon of a number of messages; the accountant takes a while."""
    return epsilon_of([Release(noise_multiplier, releases)], delta) if releases else 0.0


# Which settings go together


@dataclass(frozen=True)
class _Rule:
    """Settings that the secure sum or noise does not go with: when, why, and what to set."""

    broken: Callable[[RunConfig], bool]
    why: str
    remedy: str


def _shown(config: RunConfig, name: str) -> str:
    return "true" if name == "secure" else f"{config.common__noise:g}"


_BOTH = (
    _Rule(
        lambda c: not c.framed,
        "protects statistics in the common frame, and this run has no common frame",
        "strategy = 'isoproto', or common.map = 'standard'",
    ),
    _Rule(
        lambda c: (c.prototypes, c.alignment, c.share) != ("none", "none", "none"),
        "protects statistics in the common frame alone, and this run also sends class means, weights or logits",
        "prototypes = 'none', alignment = 'none' and share = 'none', as strategy = 'isoproto' does",
    ),
    _Rule(
        lambda c: c.common__rounds > 0,
        "does not cover the gradients that clients send after their statistics",
        "common.rounds = 0",
    ),
)

_SECURE = (
    _Rule(
        lambda c: c.min_contributors < 2,
        "needs the fewest clients whose sum the server may learn; a sum of one is that client's",
        "min-contributors = 3, or more",
    ),
    _Rule(
        lambda c: c.fraction < 1 or c.over_sample > 0,
        "asks the same clients in four rounds in a row",
        "fraction = 1.0 and over-sample = 0.0",
    ),
)

_NOISE = (
    _Rule(
        lambda c: not (c.common__shrink and c.common__temperature),
        "does not cover the held-out losses that would choose the classifier",
        "common.shrink and common.temperature above 0, such as 0.3 and 0.5",
    ),
    _Rule(
        lambda c: c.common__holdout > 0,
        "does not cover what clients report of samples that they hold out",
        "common.holdout = 0",
    ),
    _Rule(
        lambda c: c.min_class_samples > 1,
        "needs every sample to count by itself, and `min-class-samples` makes some depend on others",
        "min-class-samples = 1",
    ),
    _Rule(
        lambda c: c.common__copies > 0,
        "needs every sample to count by itself, and which changed copies are made depends on the samples beside it",
        "common.copies = 0",
    ),
    _Rule(
        lambda c: importlib.util.find_spec("dp_accounting") is None,
        "needs the package dp-accounting on the server, which computes epsilon",
        "common.noise = 0, or install it: pip install 'isoproto[privacy]'",
    ),
)
