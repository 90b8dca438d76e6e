"""What a client has when a round begins: what the server sent, and the client's own class means."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isoproto.common.samples import FrameSamples
from isoproto.geometry.similarity import Similarity, similarity_map
from isoproto.parts.base import Arrays

CPU = torch.device("cpu")
Rows = tuple[Tensor, Tensor]
"""One or several vectors for each class, ``[C, ..., d]``, and which classes have any, ``[C]`` bool."""


class OwnMeans(NamedTuple):
    """A client's class means, from its last pass over its training data.

    Attributes:
        means: Mean feature of each class, shape ``[C, d]``, float32; zero for classes that the client lacks.
        counts: Training samples of each class, shape ``[C]``, int64.
        scatter: Mean squared distance of a feature from its class mean.
    """

    means: Tensor
    counts: Tensor
    scatter: float

    @property
    def present(self) -> Tensor:
        """Classes that the client holds, shape ``[C]``, bool."""
        return self.counts > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """What the server sent to a client, and the client's own class means.

    Attributes:
        client: The client's name.
        server_round: The round of the message.
        frame: The setting `frame`.
        arrays: What the server sent, by the names of the parts' fields.
        modules: Modules that parts keep on the client, by name.
        samples: The client's samples in the common frame; ``None`` if the run has none.
        own_means: The client's class means; ``None`` before its first pass, or where no part needs them.
        num_classes: Number of classes C.
        feature_dim: Feature width d.
        device: Where the client computes. ``arrays`` and ``own_means`` are on the CPU.
    """

    client: str
    server_round: int
    frame: str
    arrays: Arrays
    own_means: OwnMeans | None
    num_classes: int
    feature_dim: int
    device: torch.device = CPU
    modules: Mapping[str, nn.Module] = dataclasses.field(default_factory=dict)
    samples: FrameSamples | None = None

    @property
    def global_prototypes(self) -> Rows | None:
        """The global prototypes in the server's coordinates, and the classes that have one; ``None`` before any."""
        if "prototypes" not in self.arrays:
            return None
        return self.arrays["prototypes"], self.arrays["present"]

    @functools.cached_property
    def map(self) -> Similarity | None:
        """The map from the client's coordinates into the server's frame.

        It is ``None`` in the shared frame, which needs no map. It is also ``None`` if fewer than two classes have both
        a global prototype and a class mean of the client, since no map can be made of them.
        """
        if self.frame == "shared" or self.own_means is None or self.global_prototypes is None:
            return None
        prototypes, present = self.global_prototypes
        common = self.own_means.present & present
        return similarity_map(self.own_means.means[common], prototypes[common], self.own_means.counts[common])

    def prototypes(self) -> Rows | None:
        """Return the global prototypes in the client's coordinates, or ``None`` without prototypes or a map."""
        if self.frame == "shared" or self.global_prototypes is None:
            return self.global_prototypes
        return (self.map.backward(self.global_prototypes[0]), self.global_prototypes[1]) if self.map else None
