"""HPCL and HPAL: clients contrast features with, and pull them towards, anchors (FedHPro's losses)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isoproto.losses.anchors import Anchors, Form, client_margin
from isoproto.matching.hyperproto import summaries
from isoproto.matching.starts import Start
from isoproto.parts.base import Batch, Compare, LossTerm, Part
from isoproto.parts.view import View

if TYPE_CHECKING:
    from isoproto.config import RunConfig

NAMES = ("hpcl", "hpal")


@dataclass(frozen=True, kw_only=True)
class AnchorTerm(LossTerm):
    r"""The loss of a client's features against anchors: :math:`w_{pcl} HPCL + w_{pal} HPAL`.

    Reference: FedHPro, Eq. 15.

    Attributes:
        anchors: Computes both losses.
        pcl: Weight of HPCL.
        pal: Weight of HPAL.
    """

    anchors: Anchors
    pcl: float
    pal: float

    names = NAMES

    @property
    def weights(self) -> Tensor:
        """Weights of the two terms, shape ``[2]``."""
        return torch.tensor([self.pcl, self.pal], device=self.anchors.rows.device)

    def batches(self, labels: Sequence[Tensor]) -> Iterator[Compare]:
        """Yield the comparison, which is the same for all batches."""
        return itertools.repeat(functools.partial(_compare, self.anchors), len(labels))


def _compare(anchors: Anchors, batch: Batch) -> Tensor:
    return anchors(batch.features, batch.labels)


def start_of(config: RunConfig) -> Start:
    """Return how hyper-prototypes start under a run's settings."""
    return Start(
        seed=config.seed,
        size=config.hyper__size,
        noise=config.hyper__init == "normal",
        spread=config.hyper__spread,
    )


def anchored(config: RunConfig) -> tuple[str, ...]:
    """Return which of the two losses the setting `alignment` names."""
    return tuple(term for term in config.terms if term in NAMES)


def uses_hyper_prototypes(config: RunConfig) -> bool:
    """Return whether clients use hyper-prototypes of the server."""
    return config.prototypes == "hyper" and bool(anchored(config)) and config.anchors == "global"


def learns_hyper_prototypes(config: RunConfig) -> bool:
    """Return whether the server learns hyper-prototypes, so that clients have to send gradients."""
    return uses_hyper_prototypes(config) and config.hyper__learning_rate > 0


@dataclass(frozen=True, kw_only=True)
class AnchorLosses(Part):
    """Compare features with two vectors per class: the mean direction and the mean of its hyper-prototypes.

    Without hyper-prototypes, the global prototypes are the anchors.
    """

    pcl: float
    pal: float
    anchors: str
    hyper: bool
    start: Start
    margin: str
    temperature: float
    form: Form

    aligns = NAMES
    needs_prototypes = True
    reports = NAMES

    @classmethod
    def of(cls, config: RunConfig) -> AnchorLosses | None:
        """Return the part if the setting `alignment` names one of its losses."""
        names = anchored(config)
        if not names:
            return None
        return cls(
            pcl=config.hyper__pcl if "hpcl" in names else 0.0,
            pal=config.hyper__pal if "hpal" in names else 0.0,
            anchors=config.anchors,
            hyper=config.prototypes == "hyper",
            start=start_of(config),
            margin=config.hyper__margin,
            temperature=config.hyper__temperature,
            form=config.hyper__form,  # type: ignore[arg-type] # checked with the settings
        )

    @property
    def needs_means(self) -> bool:
        """Whether the anchors or the margin are made of the client's class means."""
        return self.anchors == "own" or self.margin != "none"

    def terms(self, view: View) -> Sequence[LossTerm]:
        """Return the term, unless there are no anchors yet."""
        losses = self.losses(view)
        if losses is None:
            return ()
        rows, table = losses.rows.to(view.device), losses.table.to(view.device)
        return [AnchorTerm(anchors=dataclasses.replace(losses, rows=rows, table=table), pcl=self.pcl, pal=self.pal)]

    def losses(self, view: View) -> Anchors | None:
        """Return both losses, or ``None`` if there are no anchors yet."""
        two_vectors = self._summaries(view)
        if two_vectors is None:
            return None
        margin = torch.zeros(())
        if view.own_means is not None and self.margin != "none":
            true_mean = self.margin == "present"
            margin = client_margin(
                view.own_means.means, view.own_means.present, norm="present" if true_mean else "literal"
            )
        return Anchors.of(
            *two_vectors,
            temperature=self.temperature,
            margin=margin,
            additive=self.margin == "additive",
            form=self.form,
        )

    def _summaries(self, view: View) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return mean directions and means of the anchors, ``[C, d]`` each, and which classes have anchors."""
        everything = torch.ones(view.num_classes, dtype=torch.bool)
        if self.anchors == "private":
            # A control in which nothing is exchanged: each client draws random vectors.
            noise = dataclasses.replace(self.start, noise=True)
            zeros = torch.zeros(view.num_classes, view.feature_dim)
            return *summaries(noise.vectors(zeros, everything, "private", view.client)), everything
        if self.anchors == "own":
            if view.own_means is None:
                return None
            start = dataclasses.replace(self.start, noise=False)  # vectors near the client's class means
            vectors = start.vectors(view.own_means.means, view.own_means.present, "own", view.client)
            return *summaries(vectors), view.own_means.present
        return self._from_the_server(view, everything)

    def _from_the_server(self, view: View, everything: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        if "anchor-dir" in view.arrays:  # in the shared frame the server computes the two vectors of each class
            present = everything if self.start.noise or view.global_prototypes is None else view.global_prototypes[1]
            return view.arrays["anchor-dir"], view.arrays["anchor-mean"], present
        if view.global_prototypes is None:
            return None
        prototypes, present = view.global_prototypes
        if not self.hyper:
            mapped = view.prototypes()
            return None if mapped is None else (*summaries(mapped[0].unsqueeze(1)), present)
        if view.map is None:
            return None
        learned = view.arrays.get("hyper")
        vectors = self.start.vectors(prototypes, present) if learned is None else learned
        return *summaries(view.map.backward(vectors)), present
