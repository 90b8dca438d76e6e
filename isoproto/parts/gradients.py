"""Gradients of cross-entropy that clients measure: through which head, of which samples, and when."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isoproto.matching.feature_gradients import gradient_limit, prototype_head
from isoproto.parts.base import Limit
from isoproto.parts.server_head import LinearHead, server_head
from isoproto.parts.state import ServerState
from isoproto.parts.view import View
from isoproto.seeding import torch_generator

if TYPE_CHECKING:
    from isoproto.config import RunConfig


@dataclass(frozen=True)
class GradientHead:
    """The linear head that feature gradients are taken through.

    Attributes:
        kind: The setting `hyper.head`: ``shared``, ``server`` or ``prototype``.
        early: Whether clients take gradients before training; otherwise they take them after training.
        seed: The run's seed.
    """

    kind: str
    early: bool
    seed: int

    @classmethod
    def of(cls, config: RunConfig) -> GradientHead:
        """Return the head under a run's settings."""
        return cls(config.hyper__head, config.hyper__grad_point == "before-training", config.seed)

    def from_server(self, state: ServerState) -> LinearHead | None:
        """Return the head that clients get from the server, or make of its prototypes; ``None`` before that."""
        if self.kind == "server":
            return server_head(state, self.seed)
        if self.kind == "prototype" and state.present.any():
            return prototype_head(state.prototypes, state.present)
        return None

    def used_in_round(self, before: ServerState, after: ServerState) -> LinearHead | None:
        """Return the head that clients took gradients through in a round, or the average of their heads."""
        return self.averaged(before, after) if self.kind == "shared" else self.from_server(before)

    def averaged(self, before: ServerState, after: ServerState) -> LinearHead | None:
        """Return the averaged classifier for the point in the round at which clients took gradients.

        If they took them before training, it is the classifier that the server sent, if it sent one. Otherwise it is
        the average of the classifiers that the clients sent back.
        """
        return (_classifier(before.shared) if self.early else None) or _classifier(after.shared)

    def of_client(self, view: View, classifier: Callable[[], LinearHead]) -> LinearHead | None:
        """Return the head that a client takes gradients through; ``None`` if there is none yet.

        Args:
            view: What the server sent.
            classifier: Returns the classifier of the client's model.
        """
        if self.kind == "shared":
            return classifier()
        if self.kind == "server" and "head-weight" in view.arrays:
            return view.arrays["head-weight"], view.arrays["head-bias"]
        if self.kind == "prototype" and view.global_prototypes is not None:
            return prototype_head(*view.global_prototypes)
        return None

    def limit(self, state: ServerState) -> Callable[[Mapping[str, Tensor]], Limit] | None:
        """Return the limit of a gradient through the head; ``None`` if there is no head yet."""
        if self.kind == "shared":
            broadcast = state.shared.get("head.weight") if self.early else None
            if broadcast is None:
                return lambda reply: _limit(reply.get("head.weight"))
        elif (head := self.from_server(state)) is None:
            return None
        else:
            broadcast = head[0]
        limit = _limit(broadcast)  # once for all replies
        return lambda reply: limit


def _limit(weight: Tensor | None) -> Limit:
    longest = math.inf if weight is None else gradient_limit(weight)
    return Limit(longest, "but no gradient through its head is longer than {:.3g}")


def _classifier(shared: Mapping[str, Tensor]) -> LinearHead | None:
    return (shared["head.weight"], shared["head.bias"]) if {"head.weight", "head.bias"} <= shared.keys() else None


@dataclass(frozen=True)
class Samples:
    """The choice of the training samples that gradients are taken of.

    Attributes:
        most: Most samples of a class; 0 takes all.
        seed: The run's seed.
    """

    most: int
    seed: int

    @classmethod
    def of(cls, config: RunConfig) -> Samples:
        """Return the choice under a run's settings."""
        most = config.hyper__grad_samples
        return cls(max(most, config.min_class_samples) if most else 0, config.seed)

    def chosen(self, features: Tensor, labels: Tensor, view: View) -> tuple[Tensor, Tensor]:
        """Return the features and labels of the chosen samples, on the features' device."""
        if self.most:
            generator = torch_generator(self.seed, "gradients", view.server_round, view.client)
            index = some_of_each(labels, self.most, generator)
            features, labels = features[index.to(features.device)], labels[index]
        return features, labels.to(features.device)


def some_of_each(labels: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return the indices of at most ``most`` samples of each class, drawn at random."""
    order = torch.randperm(len(labels), generator=generator)
    sorted_labels, position = labels[order].sort(stable=True)
    start = torch.searchsorted(sorted_labels, sorted_labels)
    return order[position[torch.arange(len(labels)) - start < most]]
