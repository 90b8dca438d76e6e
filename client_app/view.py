"""How one client sees what the server sent: in the coordinates of its own features."""

import dataclasses
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from isoproto.config import RunConfig
from isoproto.geometry.frames import (
    Similarity,
    average_dissimilarities,
    average_relations,
    centre,
    shrink,
    shrink_dissimilarities,
    similarity_map,
)
from isoproto.geometry.prototypes import Contribution
from isoproto.losses import LOSSES
from isoproto.losses.anchors import Anchors, client_margin
from isoproto.matching.feature_gradients import prototype_head
from isoproto.matching.hyperproto import summaries
from isoproto.matching.starts import hyper_start
from isoproto.wire import Broadcast

Rows = tuple[Tensor, Tensor]
"""One row (or several) per class, ``[C, ..., d]``, and which classes have some, ``[C]`` bool."""


class Own(NamedTuple):
    """What a client knows of its own features: class means of its last pass over its training data.

    Attributes:
        means: Shape ``[C, d]``, float32; zero for classes it lacks.
        counts: Samples of each class, shape ``[C]``, int64.
        scatter: Variance of the features about their class means.
    """

    means: Tensor
    counts: Tensor
    scatter: float

    @property
    def present(self) -> Tensor:
        """Classes it holds, shape ``[C]``, bool."""
        return self.counts > 0


def wants_gradients(config: RunConfig) -> bool:
    """Whether the server asks for gradients of any kind."""
    return config.learns or config.hyper__retrain != "none"


def needs_own(config: RunConfig) -> bool:
    """Whether a client has to look at its own class means before it trains."""
    margin = bool(config.anchored) and config.hyper__margin != "none"
    return config.frame != "shared" or config.anchors == "own" or margin


@dataclasses.dataclass(frozen=True)
class View:
    """What the server sent, and what the client knows of its own features.

    Attributes:
        config: The run's settings, resolved.
        client: The client's name.
        broadcast: What the server sent.
        own: What the client knows; ``None`` before its first pass, or where the settings do not need it.
    """

    config: RunConfig
    client: str
    broadcast: Broadcast
    own: Own | None

    @functools.cached_property
    def map(self) -> Similarity | None:
        """Return the map into the server's frame; ``None`` in the shared frame, and below two common classes."""
        sent = self._sent
        if self.config.frame == "shared" or self.own is None or sent is None:
            return None
        prototypes, present = sent
        common = self.own.present & present
        return similarity_map(self.own.means[common], prototypes[common], self.own.counts[common])

    def prototypes(self) -> Rows | None:
        """Return the global prototypes in the client's coordinates, or ``None`` if it has no map to them."""
        sent = self._sent
        if self.config.frame == "shared" or sent is None:
            return sent
        there = self.map
        return (there.backward(sent[0]), sent[1]) if there else None

    def targets(self) -> Rows | None:
        """Return the prototypes to align to in the client's coordinates, or ``None`` if there are none."""
        if self.config.anchors == "own":
            return None if self.own is None else (self.own.means, self.own.present)
        return self.prototypes()

    def relations(self, classes: int) -> Tensor | None:
        """Return relations between classes to align to, ``[C, C]``, or ``None`` to take those of the prototypes."""
        config, own = self.config, self.own
        beta, dissimilarities = float(config.relation__shrink), LOSSES[config.structural].kind == "dissimilarities"
        if config.anchors == "global":
            return self.broadcast.relations
        if config.anchors == "private":  # the simplex, which needs no data: all classes are equally far apart
            present, distances, beta = torch.ones(classes, dtype=torch.bool), 2.0 - 2.0 * torch.eye(classes), 1.0
        elif own is None:
            return None
        else:
            held = torch.nonzero(own.present).flatten()
            alone = [Contribution(held, own.means[held], own.counts[held], int(own.counts.sum()))]
            if dissimilarities:
                found = average_dissimilarities(alone, classes)
            else:
                found = average_relations(alone, [own.scatter], classes, debias=config.relation__debias)
            present, distances = found.present, found.distances
        if dissimilarities:
            return shrink_dissimilarities(distances, beta, present).float()
        return shrink(centre(distances, present), beta, present).float()

    def anchors(self, classes: int, width: int) -> Anchors | None:
        """Return what HPCL and HPAL compare features with, or ``None`` if there is nothing yet."""
        config = self.config
        found = self._summaries(classes, width) if config.anchored else None
        if found is None:
            return None
        margin = torch.zeros(())
        if self.own is not None and config.hyper__margin != "none":
            true_mean = config.hyper__margin == "present"
            margin = client_margin(self.own.means, self.own.present, norm="present" if true_mean else "literal")
        return Anchors.of(
            *found,
            temperature=config.hyper__temperature,
            margin=margin,
            additive=config.hyper__margin == "additive",
            form=config.hyper__form,  # type: ignore[arg-type] # checked with the settings
        )

    def head(self) -> Rows | None:
        """Return the server's head that gradients are taken through; ``None`` for the client's own, or before any."""
        if self.config.hyper__head == "server":
            return self.broadcast.head
        if self.config.hyper__head == "prototype" and self._sent is not None:
            return prototype_head(*self._sent)
        return None

    @property
    def _sent(self) -> Rows | None:
        prototypes, present = self.broadcast.prototypes, self.broadcast.present
        return None if prototypes is None or present is None else (prototypes, present)

    def _summaries(self, classes: int, width: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Mean directions and means of the anchors, ``[C, d]`` each, and the classes that have some."""
        config, own, sent = self.config, self.own, self.broadcast
        everything = torch.ones(classes, dtype=torch.bool)
        if config.anchors == "private":
            # What is left of the method when nothing is exchanged: random vectors of the client's own.
            noise = dataclasses.replace(config, hyper__init="normal")
            vectors = hyper_start(noise, torch.zeros(classes, width), everything, "private", self.client)
            return *summaries(vectors), everything
        if config.anchors == "own":
            if own is None:
                return None
            about = dataclasses.replace(config, hyper__init="prototypes")  # noise would know nothing of the client
            return *summaries(hyper_start(about, own.means, own.present, "own", self.client)), own.present
        if sent.directions is not None and sent.means is not None:  # the shared frame: the server made them
            present = everything if config.hyper__init == "normal" or sent.present is None else sent.present
            return sent.directions, sent.means, present
        if self._sent is None:
            return None
        prototypes, present = self._sent
        if config.prototypes == "mean":
            seen = self.prototypes()
            return None if seen is None else (*summaries(seen[0].unsqueeze(1)), present)
        there = self.map
        if there is None:
            return None
        vectors = hyper_start(config, prototypes, present) if sent.hyper is None else sent.hyper
        return *summaries(there.backward(vectors)), present
