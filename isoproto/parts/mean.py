"""Global prototypes as the mean of the clients' class means, in the clients' own coordinates (FedProto, FedSAF)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isoproto.geometry.prototypes import ClassRows, average_prototypes
from isoproto.parts.base import Arrays, Field, Part, Sent
from isoproto.parts.state import ServerState

if TYPE_CHECKING:
    from isoproto.config import RunConfig

PROTOTYPES = (
    Field(name="prototypes", shape="C d", rounded=True, together="prototypes", mask="present"),
    Field(name="present", shape="C", dtype=torch.bool, together="prototypes"),
)


def send_prototypes(state: ServerState) -> Arrays:
    """Return the arrays of the global prototypes to send; empty before there are any."""
    return {"prototypes": state.prototypes, "present": state.present} if bool(state.present.any()) else {}


def renewed(state: ServerState, vectors: Tensor, fresh: Tensor, *, stale: str) -> ServerState:
    """Replace the prototypes of some classes.

    Args:
        state: The state before.
        vectors: New prototypes ``[C, d]``; rows that are not ``fresh`` are never read.
        fresh: Which classes have a new one, ``[C]``, bool.
        stale: Whether the other classes ``keep`` or ``drop`` the prototype that they have.
    """
    present = fresh | (state.present & ~fresh & (stale == "keep"))
    vectors = torch.where(fresh.unsqueeze(1), vectors, state.prototypes)
    return dataclasses.replace(
        state,
        prototypes=vectors * present.unsqueeze(1),
        present=present,
        age=torch.where(fresh, 0, state.age + 1),
    )


def published(rows: Sequence[ClassRows], num_classes: int, minimum: int) -> list[ClassRows]:
    """Leave out classes that fewer than ``minimum`` clients have sent."""
    if minimum <= 1:
        return list(rows)
    ids = torch.cat([torch.zeros(0, dtype=torch.int64), *(c.class_ids for c in rows)])
    enough = torch.bincount(ids, minlength=num_classes) >= minimum
    return [
        c._replace(class_ids=c.class_ids[keep], rows=c.rows[keep], counts=c.counts[keep])
        for c in rows
        for keep in (enough[c.class_ids],)
    ]


@dataclass(frozen=True)
class Means(Part):
    r"""Average the clients' class means, coordinate by coordinate.

    .. math::
        P_g^c = \frac{\sum_{i: c \in C_i} \omega_i^c P_i^c}{\sum_{i: c \in C_i} \omega_i^c}

    Reference: FedSAF, Eq. 3. A class that too few clients sent keeps its prototype, or loses it if `stale` is ``drop``.
    """

    weighting: str
    minimum: int
    stale: str

    makes = ("mean",)
    down = PROTOTYPES

    @classmethod
    def of(cls, config: RunConfig) -> Means | None:
        """Return the part if prototypes are means in the clients' own coordinates."""
        if config.prototypes not in ("mean", "hyper") or config.frame != "shared":
            return None
        return cls(config.proto_weight, config.min_contributors, config.stale)

    def downlink(self, state: ServerState) -> Arrays:
        """Send the prototypes."""
        return send_prototypes(state)

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Average the class means of this round."""
        mean = average_prototypes([s.means for s in sent], *after.prototypes.shape, weighting=self.weighting)
        fresh = mean.present & (mean.holders >= self.minimum)
        return renewed(after, mean.vectors, fresh, stale=self.stale)
