"""Relations between classes, averaged over clients, and the frame that is made from them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isoproto.errors import FrameError
from isoproto.geometry.embedding import embed
from isoproto.geometry.prototypes import ClassRows
from isoproto.geometry.relations import Relations, average_dissimilarities, average_relations, centre, shrink
from isoproto.geometry.similarity import align
from isoproto.losses import structural
from isoproto.parts.base import Arrays, Part, PartState, Sent
from isoproto.parts.mean import PROTOTYPES, published, send_prototypes
from isoproto.parts.state import ServerState

if TYPE_CHECKING:
    from isoproto.config import RunConfig

_log = logging.getLogger("isoproto")


@dataclass(frozen=True)
class Distances(PartState):
    """Averaged squared distances between classes, and which pairs of classes a client has held; ``[C, C]`` each."""

    distances: Tensor
    seen: Tensor


@dataclass(frozen=True)
class Directions(PartState):
    """Averaged dissimilarities of the classes' directions, and which pairs a client has held; ``[C, C]`` each."""

    directions_distances: Tensor
    directions_seen: Tensor


@dataclass(frozen=True)
class CommonFrame(Part):
    """Average relations between classes, and bring all prototypes into one frame.

    With `frame = gram` prototypes are points that have the averaged relations. With `frame = procrustes` they are the
    clients' class means, each client's mapped onto the prototypes of the round before.
    """

    frame: str
    directions: bool
    shrink: float
    debias: bool
    minimum: int
    stale: str

    down = PROTOTYPES

    @property
    def needs_means(self) -> bool:
        """Every client needs its class means for the map between its coordinates and the frame."""
        return True

    @classmethod
    def conflict(cls, config: RunConfig) -> str:
        """Only averaged class means are brought into a frame."""
        if config.frame == "shared" or config.prototypes in ("none", "mean", "hyper"):
            return ""
        return (
            f"`frame = {config.frame}` brings the mean of the clients' class means into common coordinates, and "
            f"`prototypes = {config.prototypes}` makes prototypes of another kind; set frame = 'shared', or "
            "prototypes = 'mean' or 'hyper'"
        )

    @classmethod
    def of(cls, config: RunConfig) -> CommonFrame | None:
        """Return the part if prototypes are means in a frame that is not the clients' own coordinates."""
        if config.prototypes not in ("mean", "hyper") or config.frame == "shared":
            return None
        loss = structural(config.terms)
        return cls(
            frame=config.frame,
            directions=loss is not None and loss.kind == "dissimilarities",
            shrink=config.relation__shrink,
            debias=config.relation__debias,
            minimum=config.min_contributors,
            stale=config.stale,
        )

    def downlink(self, state: ServerState) -> Arrays:
        """Send the prototypes."""
        return send_prototypes(state)

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Average this round's relations, and place the prototypes by them."""
        rows = published([s.means for s in sent], len(after.present), self.minimum)
        relations = self._relations(after, rows, [s.scatter for s in sent])
        figures: dict[str, Any] = dict(after.figures)
        try:
            prototypes = self._placed(after, relations, rows, figures)
        except FrameError as err:
            _log.warning("round %d: the frame of the round before is kept: %s", after.server_round + 1, err)
            return dataclasses.replace(after, age=after.age + 1)
        present = relations.present
        fresh = torch.zeros_like(present)
        fresh[torch.cat([torch.zeros(0, dtype=torch.int64), *(c.class_ids for c in rows)])] = True
        state = Distances(relations.distances, relations.seen).put(after)
        if self.directions:
            previous = Directions.of(after)
            tensors = (previous.directions_distances, previous.directions_seen) if previous else None
            averaged = average_dissimilarities(
                rows, len(present), previous=self._remembered(after, tensors), minimum=self.minimum
            )
            state = Directions(averaged.distances, averaged.seen).put(state)
        return dataclasses.replace(
            state,
            prototypes=prototypes * present.unsqueeze(1),
            present=present,
            age=torch.where(fresh, 0, after.age + 1),
            figures=figures,
        )

    def _relations(self, state: ServerState, rows: Sequence[ClassRows], scatter: Sequence[float]) -> Relations:
        previous = Distances.of(state)
        return average_relations(
            rows,
            scatter,
            len(state.present),
            debias=self.debias,
            previous=self._remembered(state, (previous.distances, previous.seen) if previous else None),
            minimum=self.minimum,
        )

    def _placed(
        self, state: ServerState, relations: Relations, rows: Sequence[ClassRows], figures: dict[str, Any]
    ) -> Tensor:
        """Return the prototypes in the frame, and note in ``figures`` what part of the relations is lost."""
        prototypes, width = state.prototypes, state.prototypes.shape[1]
        gram = centre(relations.distances, relations.present)
        if self.frame == "gram":
            gram = shrink(gram, self.shrink, relations.present)
        new = bool((relations.present & ~state.present).any())
        if self.frame == "gram" or new:
            embedding = embed(gram, relations.present, width, onto=prototypes if state.present.any() else None)
            prototypes, figures["cut"] = embedding.vectors, embedding.cut
        if self.frame == "procrustes":
            # A reference without a class shows that class only in projection. So a new class makes a new reference.
            known = relations.present if new else state.present
            prototypes = align(rows, prototypes, known, iterations=8 if new else 2, minimum=self.minimum).vectors
        return prototypes

    def _remembered(self, state: ServerState, previous: tuple[Tensor, Tensor] | None) -> Relations | None:
        return None if previous is None or self.stale == "drop" else Relations(*previous, state.present)
