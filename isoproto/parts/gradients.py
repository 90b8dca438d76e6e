"""Gradients of cross-entropy that clients measure: through which head, on which samples, and when."""

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
        early: Whether clients take gradients before they train.
        seed: The run's seed.
    """

    kind: str
    early: bool
    seed: int

    @classmethod
    def of(cls, config: RunConfig) -> GradientHead:
        """Return the head under a run's settings."""
        return cls(config.hyper__head, config.hyper__grad_point == "before-training", config.seed)

    def sent(self, state: ServerState) -> LinearHead | None:
        """Return the head that clients can make of what they are sent, or ``None`` if they cannot make one."""
        if self.kind == "server":
            return server_head(state, self.seed)
        if self.kind == "prototype" and state.present.any():
            return prototype_head(state.prototypes, state.present)
        return None

    def used(self, before: ServerState, after: ServerState) -> LinearHead | None:
        """Return the head that stands for those which clients took gradients through in a round."""
        return self.averaged(before, after) if self.kind == "shared" else self.sent(before)

    def averaged(self, before: ServerState, after: ServerState) -> LinearHead | None:
        """Return the averaged classifier nearest to those that clients took gradients through.

        Before training that is the one that they were sent, if they were sent one. After training it is the average of
        those that they send.
        """
        return (_classifier(before.shared) if self.early else None) or _classifier(after.shared)

    def seen(self, view: View, own: Callable[[], LinearHead]) -> LinearHead | None:
        """Return the head as a client sees it; ``own`` gives the client's classifier."""
        if self.kind == "shared":
            return own()
        if self.kind == "server" and "head-weight" in view.arrays:
            return view.arrays["head-weight"], view.arrays["head-bias"]
        if self.kind == "prototype" and view.sent is not None:
            return prototype_head(*view.sent)
        return None

    def limit(self, state: ServerState) -> Callable[[Mapping[str, Tensor]], Limit] | None:
        """Return how long a gradient through the head may be; ``None`` if there is no head to take one through."""
        if self.kind == "shared":
            sent = state.shared.get("head.weight") if self.early else None
            return lambda reply: _limit(reply.get("head.weight") if sent is None else sent)
        head = self.sent(state)
        return None if head is None else lambda reply: _limit(head[0])


def _limit(weight: Tensor | None) -> Limit:
    longest = math.inf if weight is None else gradient_limit(weight)
    return Limit(longest, "but no gradient through its head is longer than {:.3g}")


def _classifier(shared: Mapping[str, Tensor]) -> LinearHead | None:
    return (shared["head.weight"], shared["head.bias"]) if {"head.weight", "head.bias"} <= shared.keys() else None


@dataclass(frozen=True)
class Samples:
    """Which training samples gradients are taken of.

    Attributes:
        most: Samples of a class at most; 0 takes all.
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
        """Return the features and labels that were chosen, on the features' device."""
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
