"""The common frame's coordinates: features of a fixed map, standardised, projected, and extended by random features.

Every node computes the same function, since all that is random in it comes from the run's seed. No client's data is in
it, so two nodes need to agree on nothing but the map and the settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isoproto.seeding import torch_generator

# Slope of the random features before they are cut off at zero.
_SLOPE = 1.5


@dataclass(frozen=True)
class Frame:
    r"""Turns W features of a map into D coordinates.

    .. math::
        z = P \frac{f - \mu}{\sigma}, \qquad
        \phi = \frac{1}{\sqrt{D}} \left[z, \mathrm{relu}(1.5\, G z + b)\right]

    :math:`P`, :math:`G` and :math:`b` are Gaussian. A sample whose :math:`\phi` is longer than ``clip`` is scaled down
    to that length, so that no sample counts for more in a sum.

    Attributes:
        centre: :math:`\mu`, mean of each feature over made-up samples, ``[W]``.
        scale: :math:`\sigma`, deviation of each feature over made-up samples, ``[W]``.
        projection: :math:`P`, ``[W, dim]``; ``None`` if W is not above ``dim`` and features are kept as they are.
        directions: :math:`G`, ``[dim, features]``.
        offsets: :math:`b`, ``[features]``.
        clip: Largest length of :math:`\phi`.

    Example:
        >>> made_up = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
        >>> frame = Frame.of(made_up, width=2, dim=2, features=0, clip=9.0, seed=0)
        >>> [round(x, 2) for x in (frame(torch.tensor([[3.0, 3.0]])) * 2**0.5)[0].tolist()]
        [1.41, 0.0]
    """

    centre: Tensor
    scale: Tensor
    projection: Tensor | None
    directions: Tensor
    offsets: Tensor
    clip: float

    @classmethod
    def of(cls, made_up: Tensor | None, *, width: int, dim: int, features: int, clip: float, seed: int) -> Frame:
        """Make the frame of a map.

        Args:
            made_up: Features of made-up samples, ``[n, W]``, which set the scale of each feature; ``None`` for features
                that are used as they are, of about unit length.
            width: Number of features W.
            dim: Number of coordinates that are linear in the features; never more than W.
            features: Number of random features.
            clip: Largest length of a sample's coordinates.
            seed: The run's seed.
        """
        generator = torch_generator(seed, "common-frame")
        if made_up is None:
            centre, scale = torch.zeros(width), torch.full((width,), 1 / math.sqrt(width))
        else:
            centre, scale = made_up.mean(0), made_up.std(0)
            scale = scale + 1e-3 * scale.mean() + 1e-12  # a feature that never changes must not blow up
        dim = min(dim, width)
        projection = torch.randn(width, dim, generator=generator) / math.sqrt(width) if dim < width else None
        directions = torch.randn(dim, features, generator=generator) / math.sqrt(dim)
        offsets = torch.randn(features, generator=generator)
        return cls(centre, scale, projection, directions, offsets, clip)

    @property
    def dim(self) -> int:
        """Number of coordinates D."""
        return sum(self.directions.shape)

    def __call__(self, features: Tensor) -> Tensor:
        """Return the coordinates ``[n, D]`` of features ``[n, W]``."""
        z = (features.cpu() - self.centre) / self.scale
        if self.projection is not None:
            z = z @ self.projection
        phi = torch.cat([z, torch.relu(_SLOPE * z @ self.directions + self.offsets)], 1) / math.sqrt(self.dim)
        length = phi.norm(dim=1, keepdim=True)
        clipped: Tensor = phi * (self.clip / length.clamp(min=self.clip))
        return clipped
