"""What a feature map is, its checksum, and made-up samples to scale its features by."""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Protocol

import torch
from torch import Tensor

from isoproto.seeding import torch_generator

# Made-up samples that the scale of features is taken from, and those that a checksum is made of.
_SAMPLES, PROBES = 400, 8
# Sides in pixels of the squares that the pictures of a checksum are sums of, so that they have edges of all scales.
_BLOCKS = (1, 3, 9)
# Features are rounded to this part of their deviation for the checksum: machines differ by less, other maps by more.
_COARSE, _SUMS = 0.05, 4


class FeatureMap(Protocol):
    """A function of samples that every node computes for itself; no client's weight is in it.

    Attributes:
        name: Its name in ``MAPS``, or the own function's.
        width: Number of features W.
        usual: How many linear coordinates and random features of a common frame suit it.
        standardise: Whether features are scaled by those of made-up samples. Otherwise they are used as they are.
        shape: Channels, height and width of pictures; empty for texts.
    """

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def width(self) -> int:
        """Number of features W."""
        ...

    @property
    def usual(self) -> tuple[int, int]:
        """How many linear coordinates and random features suit it."""
        ...

    @property
    def standardise(self) -> bool:
        """Whether features are scaled by those of made-up samples."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of pictures; empty for texts."""
        ...

    def __hash__(self) -> int:
        """Equal maps have equal hashes."""
        ...

    def probed(self) -> Tensor:
        """Return the features of a few fixed samples, ``[n, W]``."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features ``[B, W]``, float32, on the CPU, of pictures (uint8) or token ids (int32)."""
        ...


def made_up_pictures(shape: tuple[int, ...], count: int = _SAMPLES) -> Tensor:
    """Return smooth random pictures ``[count, channels, H, W]``, uint8, always the same ones.

    Their power falls with the square of the frequency, as that of natural pictures does; brightness and contrast vary.

    Example:
        >>> made_up_pictures((1, 32, 32), count=2).shape
        torch.Size([2, 1, 32, 32])
    """
    channels, height, width = shape
    generator = torch_generator(0, "made-up pictures")
    noise = torch.randn(count, channels, height, width, generator=generator)
    frequency = (torch.fft.fftfreq(height).square()[:, None] + torch.fft.fftfreq(width).square()).sqrt()
    smooth = torch.fft.ifft2(torch.fft.fft2(noise) / frequency.clamp(min=1 / max(height, width))).real
    one_pixel = height * width == 1  # has no deviation
    smooth /= smooth.std(dim=(2, 3), keepdim=True, correction=0 if one_pixel else 1) + 1e-6
    contrast, brightness = torch.rand(2, count, 1, 1, 1, generator=generator)
    pictures: Tensor = ((smooth * contrast / 2 + brightness).clamp(0, 1) * 255).round()
    return pictures.to(torch.uint8)


def fixed_pictures(shape: tuple[int, ...]) -> Tensor:
    """Return the eight pictures ``[8, channels, H, W]``, uint8, that a checksum is made of.

    They are sums of whole numbers, so they are the same on every processor. Smooth pictures are not: a pixel that is
    rounded up on one processor and down on another changes the checksum of a map of small pictures.

    Args:
        shape: Channels, height and width.

    Example:
        >>> fixed_pictures((1, 8, 8)).shape, fixed_pictures((1, 8, 8))[0, 0, 0, :4].tolist()
        (torch.Size([8, 1, 8, 8]), [203, 197, 228, 153])
    """
    channels, height, width = shape
    generator = torch_generator(0, "fixed pictures")
    pictures = torch.zeros(PROBES, channels, height, width, dtype=torch.int64)
    for side in _BLOCKS:
        size = (PROBES, channels, math.ceil(height / side), math.ceil(width / side))
        blocks = torch.randint(0, 256 // len(_BLOCKS) + 1, size, generator=generator)
        pictures += blocks.repeat_interleave(side, 2).repeat_interleave(side, 3)[:, :, :height, :width]
    return pictures.to(torch.uint8)


@functools.lru_cache(maxsize=8)
def made_up(feature_map: FeatureMap) -> Tensor:
    """Return the features of made-up samples, ``[n, W]``, which the scale of each feature is taken from."""
    return feature_map(made_up_pictures(feature_map.shape))


@functools.lru_cache(maxsize=8)
def fingerprint(feature_map: FeatureMap) -> str:
    """Return a checksum of what the map does with a few fixed samples, 12 hex digits.

    It is made of four random sums of the features of each sample, rounded to a twentieth of their deviation. So
    machines whose last bits differ agree, and maps that differ in more do not.
    """
    features = feature_map.probed().double()
    directions = torch.randn(features.shape[1], _SUMS, generator=torch_generator(0, "checksum"), dtype=torch.float64)
    sums = (features - features.mean()) @ directions
    coarse = (sums / (sums.std() + 1e-12) / _COARSE).round().long().tolist()
    return hashlib.sha256(f"{feature_map.name} {feature_map.width} {coarse}".encode()).hexdigest()[:12]
