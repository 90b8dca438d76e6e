"""Hyper-prototypes: vectors per class that the server learns from the gradients of clients' real samples (FedHPro)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.geometry.prototypes import ClassRows, average_prototypes
from isoproto.geometry.relations import average_relations, centre
from isoproto.matching.feature_gradients import linear_gradients
from isoproto.matching.hyperproto import anchor_cosines, match_gradients, movement, summaries
from isoproto.matching.starts import Start
from isoproto.parts.anchors import learns_hyper_prototypes, start_of, uses_hyper_prototypes
from isoproto.parts.base import Arrays, Field, LimitOf, Measured, Part, PartState, Sent
from isoproto.parts.gradients import GradientHead, Samples
from isoproto.parts.relations import Distances
from isoproto.parts.state import ServerState

if TYPE_CHECKING:
    from isoproto.config import RunConfig

# With more classes than this, the metrics hold no similarity matrices.
_MOST_SHOWN = 30


@dataclass(frozen=True)
class Learned(PartState):
    """The sum of all steps of gradient matching, ``[C, I, d]``. Hyper-prototypes are their start plus this sum."""

    learned: Tensor


@dataclass(frozen=True, kw_only=True)
class HyperPrototypes(Part):
    r"""Send hyper-prototypes, and move them so that gradients at them point as at the clients' real samples.

    .. math::
        S \leftarrow S - \eta \nabla_S L_{GM}, \qquad L_{GM} = \sum_c 1 - \cos(g^c, g_{HP}^c)

    Reference: FedHPro, Eqs. (7) to (9). Clients send the mean feature gradient of each class that they hold, Eq. (6).
    In the shared frame clients get two summaries per class; in another frame they get the vectors and map them.
    """

    used: bool
    learns: bool
    frame: str
    start: Start
    head: GradientHead
    samples: Samples
    steps: int
    learning_rate: float
    optimizer: str
    distance: str
    weighting: str
    minimum: int

    makes = ("hyper",)
    down = (
        Field(name="anchor-dir", shape="C d", rounded=True, together="anchors"),
        Field(name="anchor-mean", shape="C d", rounded=True, together="anchors"),
        Field(name="hyper", shape="C I d", rounded=True),
    )
    up = (Field(name="grad", shape="P d", rounded=True, may_send="gradients", noun="gradients"),)

    @classmethod
    def of(cls, config: RunConfig) -> HyperPrototypes | None:
        """Return the part if there are hyper-prototypes."""
        if config.prototypes != "hyper":
            return None
        return cls(
            used=uses_hyper_prototypes(config),
            learns=learns_hyper_prototypes(config),
            frame=config.frame,
            start=start_of(config),
            head=GradientHead.of(config),
            samples=Samples.of(config),
            steps=config.hyper__steps,
            learning_rate=config.hyper__learning_rate,
            optimizer=config.hyper__optimizer,
            distance=config.hyper__distance,
            weighting=config.hyper__grad_weight,
            minimum=config.min_contributors,
        )

    @property
    def sends(self) -> tuple[Field, ...]:
        """Feature gradients, if hyper-prototypes are learned from them."""
        return self.up if self.learns else ()

    @property
    def measures(self) -> str:
        """Gradients are measured before or after training, as the settings say."""
        if not self.learns:
            return ""
        return "before" if self.head.early else "after"

    # The server's half

    def vectors(self, state: ServerState) -> Tensor:
        """Return the hyper-prototypes ``[C, I, d]``: their start plus all steps so far."""
        return self._start(state) + self._learned(state)

    def _start(self, state: ServerState) -> Tensor:
        return self.start.vectors(state.prototypes, state.present)

    @staticmethod
    def _learned(state: ServerState) -> Tensor:
        kept = Learned.of(state)
        return torch.zeros(()) if kept is None else kept.learned

    def downlink(self, state: ServerState) -> Arrays:
        """Send two summaries per class in the shared frame. In another frame, send the vectors after the first step."""
        if not self.used:
            return {}
        if self.frame == "shared" and (self.start.noise or bool(state.present.any())):
            directions, means = summaries(self.vectors(state))
            return {"anchor-dir": directions.float(), "anchor-mean": means.float()}
        if self.frame != "shared" and Learned.of(state):
            return {"hyper": self.vectors(state).float()}
        return {}

    def limits(self, state: ServerState) -> Mapping[str, LimitOf | None]:
        """Limit gradients by the weights of the head. While there is no head, no gradients may come."""
        limit = self.head.limit(state) if self.learns else None
        return {} if limit is None else {"grad": limit}

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Move the hyper-prototypes by this round's gradients, and add figures that describe them."""
        if self.learns:
            after = self._matched(before, after, sent)
        return dataclasses.replace(after, figures={**after.figures, **self._described(after, sent)})

    def _matched(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        head = self.head.used_in_round(before, after)
        rows = [row for s in sent if (row := s.rows("grad")) is not None]
        if head is None or not rows:
            return after
        base = after if self.head.kind == "shared" or not before.present.any() else before
        gradients = average_prototypes(rows, *after.prototypes.shape, weighting=self.weighting)
        start = self.vectors(base)
        matching = match_gradients(
            start,
            *head,
            gradients.vectors,
            gradients.present & (gradients.holders >= self.minimum),
            steps=self.steps,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            distance=self.distance,
        )
        learned = self._learned(after)
        moved = learned + (matching.vectors - start).float()
        moved = torch.where(moved.isfinite().flatten(1).all(1).view(-1, 1, 1), moved, learned)
        matched = int(matching.used.sum())
        figures = {
            "agreement": agreement(rows, len(after.present)),
            "matched_classes": matched,
            "matching": [round(value, 9) for value in (matching.losses / max(1, matched)).tolist()],
        }
        return dataclasses.replace(Learned(moved).put(after), figures={**after.figures, **figures})

    def _described(self, state: ServerState, sent: Sequence[Sent]) -> dict[str, Any]:
        """Return figures of the hyper-prototypes: how far they moved, and how similar they are."""
        figures: dict[str, Any] = {}
        now = self.vectors(state)
        figures["movement"] = movement(now, self._start(state))
        held = torch.ones_like(state.present) if self.start.noise else state.present
        if (cosines := anchor_cosines(now, held)) is not None:
            figures["anchor_cosine"] = {"min": cosines[0], "mean": cosines[1]}
        if len(held) <= _MOST_SHOWN:
            means = summaries(now)[1].double()
            kept = Distances.of(state)
            distances = kept.distances if kept else _relations(sent, len(held))
            figures["similarity"] = {
                "hyper": _similarity(centre(torch.cdist(means, means).square(), held)),
                "clients": _similarity(centre(distances, state.present)),
            }
        return figures

    # The client's half

    def measure(self, measured: Measured) -> Arrays:
        """Return the mean feature gradient of each class in the server's frame, once there is a head and a map."""
        view = measured.view
        head = self.head.of_client(view, measured.head)
        if not self.learns or head is None or (self.frame != "shared" and view.map is None):
            return {}
        features, labels = self.samples.chosen(measured.features, measured.labels, view)
        if view.map is not None:
            features = view.map.forward(features)
        weight, bias = (t.to(features.device) for t in head)
        return {"grad": linear_gradients(features, labels, weight, bias).mean().cpu()}


def _relations(sent: Sequence[Sent], classes: int) -> Tensor:
    return average_relations([s.means for s in sent], [s.scatter for s in sent], classes).distances


def _similarity(gram: Tensor) -> list[list[float]]:
    """Return the cosines between classes, measured from the mean of all classes; 0 for absent classes."""
    inverse = gram.diagonal().clamp(min=1e-30).rsqrt() * (gram.diagonal() > 0)
    cosines = (gram * inverse.unsqueeze(1) * inverse).clamp(-1, 1)
    return [[round(value, 4) for value in row] for row in cosines.tolist()]


def agreement(rows: Sequence[ClassRows], classes: int) -> float | None:
    """Return the mean cosine of two clients' gradients of a class, over the classes that at least two clients sent."""
    if not rows:
        return None
    ids = torch.cat([row.class_ids for row in rows])
    units = functional.normalize(torch.cat([row.rows for row in rows]).double(), dim=1)
    total = torch.zeros(classes, units.shape[1], dtype=torch.float64).index_add_(0, ids, units)
    holders = torch.bincount(ids, minlength=classes)
    pairs = holders * (holders - 1)
    if not pairs.any():
        return None
    with_itself = torch.zeros(classes, dtype=torch.float64).index_add_(0, ids, units.square().sum(1))
    return float(((total.square().sum(1) - with_itself)[pairs > 0] / pairs[pairs > 0]).mean())
