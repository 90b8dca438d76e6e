"""The server replaces the averaged classifier by one that it trains on made-up features (CReFF)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isoproto.geometry.prototypes import average_prototypes
from isoproto.matching.classifier_retrain import classifier_gradients, fit_meta_features, train_classifier
from isoproto.matching.hyperproto import initial_vectors
from isoproto.parts.base import Arrays, Field, Measured, Part, PartState, Sent
from isoproto.parts.gradients import GradientHead, Samples
from isoproto.parts.state import ServerState
from isoproto.seeding import torch_generator

if TYPE_CHECKING:
    from isoproto.config import RunConfig

_META_FEATURES = 50  # made-up features per class, as in the published code


@dataclass(frozen=True)
class MetaFeatures(PartState):
    """Features fitted to the clients' classifier gradients ``[C, m, d]``, and which classes have any ``[C]``."""

    meta: Tensor
    meta_known: Tensor


@dataclass(frozen=True)
class Retrain(Part):
    """Clients send each class's mean gradient with respect to their classifier; the server trains a balanced one."""

    head: GradientHead
    samples: Samples
    weighting: str
    minimum: int
    seed: int

    up = (
        Field(
            name="grad-weight",
            shape="P C d",
            rounded=True,
            together="classifier",
            may_send="gradients",
            noun="classifier gradients",
        ),
        Field(name="grad-bias", shape="P C", together="classifier", may_send="gradients", noun="classifier gradients"),
    )

    @classmethod
    def of(cls, config: RunConfig) -> Retrain | None:
        """Return the part if the setting `hyper.retrain` asks for it."""
        if config.hyper__retrain == "none":
            return None
        return cls(
            GradientHead.of(config), Samples.of(config), config.hyper__grad_weight, config.min_contributors, config.seed
        )

    @property
    def sends(self) -> tuple[Field, ...]:
        """Classifier gradients, in every round."""
        return self.up

    @property
    def measures(self) -> str:
        """Gradients are measured before or after training, as the settings say."""
        return "before" if self.head.early else "after"

    def measure(self, measured: Measured) -> Arrays:
        """Return the mean gradient of each class with respect to the client's classifier."""
        features, labels = self.samples.chosen(measured.features, measured.labels, measured.view)
        of_weight, of_bias = classifier_gradients(features, labels, *measured.head())
        return {"grad-weight": of_weight.cpu(), "grad-bias": of_bias.cpu()}

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Fit features to this round's gradients, and train a fresh classifier on them."""
        head = self.head.averaged(before, after)
        weights = [row for s in sent if (row := s.rows("grad-weight")) is not None]
        biases = [row for s in sent if (row := s.rows("grad-bias")) is not None]
        if head is None or not weights:
            return after
        classes, width = after.prototypes.shape
        of_weight = average_prototypes(weights, classes, classes * width, weighting=self.weighting)
        of_bias = average_prototypes(biases, classes, classes, weighting=self.weighting)
        enough = of_weight.present & (of_weight.holders >= self.minimum)
        kept = MetaFeatures.of(after)
        start = kept.meta if kept else self._start(classes, width)
        fitted = fit_meta_features(
            start, *head, of_weight.vectors.view(classes, classes, width), of_bias.vectors, enough
        )
        known = enough | (kept.meta_known if kept else torch.zeros_like(enough))
        if not known.any():
            return after
        generator = torch_generator(self.seed, "creff", before.server_round)
        weight, bias = train_classifier(fitted, known, generator=generator)
        after = dataclasses.replace(after, shared={**after.shared, "head.weight": weight, "head.bias": bias})
        return MetaFeatures(fitted, known).put(after)

    def _start(self, classes: int, width: int) -> Tensor:
        return initial_vectors(classes, _META_FEATURES, width, torch_generator(self.seed, "creff"))
