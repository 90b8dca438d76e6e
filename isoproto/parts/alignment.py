"""The alignment loss: clients align their features with global prototypes, or with relations between classes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.geometry.prototypes import ClassRows
from isoproto.geometry.relations import (
    average_dissimilarities,
    average_relations,
    centre,
    shrink,
    shrink_dissimilarities,
)
from isoproto.losses import AlignmentLoss, BatchTarget, batch_targets, structural
from isoproto.parts.base import Arrays, Batch, Compare, Field, LossTerm, Part
from isoproto.parts.relations import Directions, Distances
from isoproto.parts.state import ServerState
from isoproto.parts.view import OwnMeans, Rows, View

if TYPE_CHECKING:
    from isoproto.config import RunConfig

NAMES = ("prototype", "instance")


@dataclass(frozen=True, kw_only=True)
class AlignmentTerm(LossTerm):
    r"""The loss that aligns a client's features with a target: :math:`\lambda L_{proto} + \gamma L_{inst}`.

    Reference: FedSAF, Eq. 19.

    Attributes:
        loss: Entry of ``LOSSES``.
        target: What the features are compared with; ``loss.target`` or ``loss.relations`` makes it once a round.
        present: Which classes have a target, ``[C]``, bool.
        lambda_: Weight of the prototype-level term.
        gamma: Weight of the instance-level term.
        missing: What happens to samples without a target, see ``batch_targets``.
    """

    loss: AlignmentLoss
    target: Tensor
    present: Tensor
    lambda_: float
    gamma: float
    missing: Literal["mask", "self"] = "mask"

    names = NAMES

    @property
    def weights(self) -> Tensor:
        """Weights of the two terms, shape ``[2]``."""
        return torch.tensor([self.lambda_, self.gamma], device=self.target.device)

    def batches(self, labels: Sequence[Tensor]) -> Iterator[Compare]:
        """Yield the comparison of each batch of an epoch with the target."""
        targets = batch_targets(self.loss, labels, self.target, self.present, missing=self.missing)
        return (functools.partial(_compare, target) for target in targets)


def _compare(target: BatchTarget, batch: Batch) -> Tensor:
    return target(batch.features)


@dataclass(frozen=True, kw_only=True)
class Alignment(Part):
    """Align a client's features with global prototypes, by coordinates or by relations between classes.

    A relational loss compares with the relations of the prototypes that the server sends, or, if `frame` or
    `relation.shrink` asks for it, with averaged relations that the server sends too.
    """

    loss: AlignmentLoss
    lambda_: float
    gamma: float
    missing: Literal["mask", "self"]
    anchors: str
    frame: str
    shrink: float
    debias: bool

    needs_prototypes = True
    down = (Field(name="relations", shape="C C", rounded=True, symmetric=True),)
    reports = NAMES

    @classmethod
    def of(cls, config: RunConfig) -> Alignment | None:
        """Return the part if the setting `alignment` names a loss."""
        loss = structural(config.terms)
        if loss is None:
            return None
        return cls(
            loss=loss,
            lambda_=config.lambda_,
            gamma=config.gamma,
            missing="self" if config.missing == "self" else "mask",
            anchors=config.anchors,
            frame=config.frame,
            shrink=config.relation__shrink,
            debias=config.relation__debias,
        )

    @property
    def needs_means(self) -> bool:
        """Whether the client aligns to its own class means."""
        return self.anchors == "own"

    @property
    def sends_relations(self) -> bool:
        """Whether the server sends relations, too, and not only prototypes."""
        relational = self.loss.relations is not None and self.anchors == "global"
        return relational and (self.frame != "shared" or self.shrink > 0)

    # The server's half

    def downlink(self, state: ServerState) -> Arrays:
        """Send relations if the loss needs them."""
        return {"relations": self.relations(state).float()} if self.sends_relations else {}

    def relations(self, state: ServerState) -> Tensor:
        """Return what clients align to, ``[C, C]``: the federation's relations, pulled towards the simplex."""
        present, known = state.present, bool(state.present.any())
        beta = self.shrink if known else 1.0  # without prototypes all classes are equally far apart
        present = present if known else torch.ones_like(present)
        return self._shrunk(self._distances(state), beta, present)

    def _distances(self, state: ServerState) -> Tensor:
        """Return the relations as averaged over clients, or those of the prototypes if none were averaged."""
        if self.loss.kind == "gram" and (kept := Distances.of(state)):
            return kept.distances
        if self.loss.kind == "dissimilarities" and (directions := Directions.of(state)):
            return directions.directions_distances
        if not state.present.any():  # classes are as far apart as orthogonal directions
            return _simplex(len(state.present)).double()
        p = state.prototypes.double()
        rows = p if self.loss.kind == "gram" else functional.normalize(p, dim=1)
        return torch.cdist(rows, rows).square()

    def _shrunk(self, distances: Tensor, beta: float, present: Tensor) -> Tensor:
        if self.loss.kind == "dissimilarities":
            return shrink_dissimilarities(distances, beta, present)
        return shrink(centre(distances, present), beta, present)

    # The client's half

    def terms(self, view: View) -> Sequence[LossTerm]:
        """Return the term, unless there is nothing to align to yet."""
        relations = None if self.loss.relations is None else self.own_relations(view)
        if relations is not None and self.loss.relations is not None:
            present = relations.any(dim=1)
            target = self.loss.relations(relations, present)
        elif (rows := self.rows(view)) is not None:
            prototypes, present = rows
            target = self.loss.target(prototypes, present)
        else:
            return ()
        return [
            AlignmentTerm(
                loss=self.loss,
                target=target.to(view.device),
                present=present.to(view.device),
                lambda_=self.lambda_,
                gamma=self.gamma,
                missing=self.missing,
            )
        ]

    def rows(self, view: View) -> Rows | None:
        """Return the prototypes to align to in the client's coordinates, or ``None`` if there are none."""
        if self.anchors == "own":
            return None if view.own_means is None else (view.own_means.means, view.own_means.present)
        return view.prototypes()

    def own_relations(self, view: View) -> Tensor | None:
        """Return the relations to align to, ``[C, C]``, or ``None`` to take those of the prototypes."""
        if self.anchors == "global":
            return view.arrays.get("relations")
        if self.anchors == "private":
            everything = torch.ones(view.num_classes, dtype=torch.bool)
            return self._shrunk(_simplex(view.num_classes), 1.0, everything).float()
        if view.own_means is None:
            return None
        present, distances = self._of_one_client(view.own_means)
        return self._shrunk(distances, self.shrink, present).float()

    def _of_one_client(self, means: OwnMeans) -> tuple[Tensor, Tensor]:
        """Return the classes that a client holds, and the distances between them."""
        classes, held = len(means.counts), torch.nonzero(means.present).flatten()
        alone = [ClassRows(held, means.means[held], means.counts[held], int(means.counts.sum()))]
        if self.loss.kind == "dissimilarities":
            relations = average_dissimilarities(alone, classes)
        else:
            relations = average_relations(alone, [means.scatter], classes, debias=self.debias)
        return relations.present, relations.distances


def _simplex(classes: int) -> Tensor:
    """Return the squared distances between orthogonal unit vectors, ``[C, C]``."""
    return 2.0 - 2.0 * torch.eye(classes)
