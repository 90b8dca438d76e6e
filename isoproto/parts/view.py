"""What one client sees of the server's frame, in the coordinates of its own features."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isoproto.geometry.similarity import Similarity, similarity_map
from isoproto.parts.base import Arrays

CPU = torch.device("cpu")
Rows = tuple[Tensor, Tensor]
"""A row (or several) for each class, ``[C, ..., d]``, and which classes have some, ``[C]`` bool."""


class OwnMeans(NamedTuple):
    """What a client knows of its own features: class means of its last pass over its training data.

    Attributes:
        means: Shape ``[C, d]``, float32; zero for classes that the client lacks.
        counts: Samples of each class, shape ``[C]``, int64.
        scatter: Variance of the features about their class means.
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
    """What the server sent to a client, and what the client knows of its own features.

    Attributes:
        client: The client's name.
        server_round: The round of the message.
        frame: The setting `frame`.
        arrays: What the server sent, by the names of the parts' fields.
        modules: Modules that parts keep on the client, by name.
        own_means: The client's class means; ``None`` before its first pass, or where no part needs them.
        num_classes: C.
        feature_dim: d.
        device: Where the client computes. What the server sent and ``own`` are on the CPU.
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

    @property
    def sent(self) -> Rows | None:
        """The global prototypes in the server's coordinates, or ``None`` before there are any."""
        if "prototypes" not in self.arrays:
            return None
        return self.arrays["prototypes"], self.arrays["present"]

    @functools.cached_property
    def map(self) -> Similarity | None:
        """The map from the client's coordinates into the server's frame.

        ``None`` in the shared frame, where none is needed, and below two common classes, where there is none.
        """
        if self.frame == "shared" or self.own_means is None or self.sent is None:
            return None
        prototypes, present = self.sent
        common = self.own_means.present & present
        return similarity_map(self.own_means.means[common], prototypes[common], self.own_means.counts[common])

    def prototypes(self) -> Rows | None:
        """Return the global prototypes in the client's coordinates, or ``None`` if it has no map to them."""
        if self.frame == "shared" or self.sent is None:
            return self.sent
        return (self.map.backward(self.sent[0]), self.sent[1]) if self.map else None
