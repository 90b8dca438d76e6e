r"""Scattering of pictures: how strong edges of each direction and scale are in each part of the picture.

.. math::
    S_0 = x, \qquad S_1 = |x \star \psi_{j,l}|, \qquad S_2 = \bigl||x \star \psi_{0,l}| \star \psi_{1,m}\bigr|

Each is averaged over a 4 by 4 grid of cells, and the logarithm of 0.01 more is taken. :math:`\psi_{j,l}` are Morlet
wavelets of 2 scales and 8 directions: complex waves under a round Gaussian, made to have zero mean. They have no
learned weight. Reference: Bruna and Mallat, "Invariant Scattering Convolution Networks", IEEE TPAMI 2013.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.errors import ConfigError
from isoproto.maps.base import fixed_pictures

_CPU = torch.device("cpu")
_ANGLES, _GRID = 8, 4
# Deviation in pixels of the first scale's Gaussian, and the wave's phase per pixel. The second is twice as wide.
_SIGMA, _WAVE = 1.2, 0.55 * math.pi
_FLOOR = 0.01
# Pictures are worked at one of these sizes.
_SMALL, _LARGE = 32, 64
# Pixels that are worked together: the filtered pictures of more do not fit into the cache of a core.
_PIXELS = 12 * 32 * 32
_PER_CHANNEL = (1 + 2 * _ANGLES + _ANGLES * _ANGLES) * _GRID * _GRID


class _Bank(NamedTuple):
    """Wavelets of one scale as matrices. A round Gaussian times a wave is a product of one filter for each axis.

    A filter of n pixels gives m numbers: one for each pixel, or for every second one.

    Attributes:
        columns: Filters along rows of a picture, ``[n, (2 * angles + 1) * m]``: real and imaginary parts of each
            direction, then the Gaussian.
        rows: Filters along columns, ``[angles, 2 * m, 2 * n]``: multiplication by a complex matrix.
        gaussian: The Gaussian along columns, ``[m, n]``.
        mean: Mean of each wave under the Gaussian, ``[angles, 1, 1, 1]``, which is taken off.
    """

    columns: Tensor
    rows: Tensor
    gaussian: Tensor
    mean: Tensor

    @classmethod
    def of(cls, size: int, scale: int, step: int = 1) -> _Bank:
        """Make the wavelets of a scale for pictures of ``size`` pixels a side, at every ``step``-th pixel."""
        sigma, wave = _SIGMA * 2**scale, _WAVE / 2**scale
        angles = torch.arange(_ANGLES, dtype=torch.float64) * math.pi / _ANGLES
        gaussian, total = _line(size, sigma, torch.zeros(1, dtype=torch.float64))
        across, sum_across = _line(size, sigma, wave * angles.cos())
        down, sum_down = _line(size, sigma, wave * angles.sin())
        gaussian, across, down = (filters[:, ::step] for filters in (gaussian, across, down))
        columns = torch.stack([across.real, across.imag], 1).flatten(0, 1)  # [2 * angles, m, n]
        rows = torch.cat([torch.cat([down.real, -down.imag], 2), torch.cat([down.imag, down.real], 2)], 1)
        mean = (sum_across * sum_down / total**2).real.view(-1, 1, 1, 1)
        together = torch.cat([columns, gaussian.real]).permute(2, 0, 1).reshape(size, -1)
        return cls(*(t.float().contiguous() for t in (together, rows, gaussian[0].real, mean)))

    def to(self, device: torch.device) -> _Bank:
        """Return the matrices on a device."""
        return _Bank(*(t.to(device) for t in self))

    def moduli(self, x: Tensor) -> Tensor:
        """Return the absolute values of all directions, ``[angles, m, B, m]``, of pictures ``[B, n, n]``."""
        count, size = x.shape[:2]
        out = len(self.gaussian)
        filtered = (x.reshape(-1, size) @ self.columns).view(count, size, 2 * _ANGLES + 1, out)
        low = (self.gaussian @ filtered[:, :, -1].transpose(0, 1).reshape(size, -1)).view(out, count, out)
        waves = filtered[:, :, :-1].unflatten(2, (_ANGLES, 2)).permute(2, 3, 1, 0, 4).reshape(_ANGLES, 2 * size, -1)
        real, imaginary = torch.bmm(self.rows, waves).view(_ANGLES, 2, out, count, out).unbind(1)
        return torch.addcmul(imaginary.square(), *(real - self.mean * low,) * 2).sqrt_()


def _line(size: int, sigma: float, wave: Tensor) -> tuple[Tensor, Tensor]:
    """Return filters along a line as matrices ``[filters, size, size]``, and the sum of each; borders are mirrored."""
    reach = min(size - 1, math.ceil(4 * sigma))
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weight = torch.exp(-(offset**2) / (2 * sigma**2))
    taps = weight / weight.sum() * torch.exp(1j * wave.unsqueeze(1) * offset)
    source = (torch.arange(size).unsqueeze(1) + offset.long()).abs()
    source = torch.where(source < size, source, 2 * size - 2 - source)
    matrix = torch.zeros(len(wave), size, size, dtype=torch.complex128)
    index = source.expand(len(wave), -1, -1)
    matrix.scatter_add_(2, index, taps.unsqueeze(1).expand(-1, size, -1).contiguous())
    return matrix, taps.sum(1)


@dataclass(frozen=True)
class Scattering:
    """The map for pictures ``[B, channels, H, W]``, uint8.

    Sides below 64 pixels are brought to 32, others to 64.

    Attributes:
        shape: Channels, height and width of the pictures.
        device: Where it is computed.

    Example:
        A picture without edges has none in any direction; ``log(0.01)`` is -4.6:

        >>> flat = torch.full((1, 1, 32, 32), 51, dtype=torch.uint8)
        >>> found = Scattering((1, 32, 32), torch.device("cpu"))(flat)
        >>> found.shape, found[0, :16].exp().unique(), found[0, 16:].round(decimals=2).unique()
        (torch.Size([1, 1296]), tensor([0.2100]), tensor([-4.6100]))
    """

    shape: tuple[int, ...]
    device: torch.device

    name = "scattering"
    usual = (512, 1024)
    standardise = True

    @property
    def width(self) -> int:
        """Number of features: 1,296 for each channel."""
        return self.shape[0] * _PER_CHANNEL

    def probed(self) -> Tensor:
        """Return the features of eight fixed pictures, computed on the CPU, since other devices round differently."""
        return Scattering(self.shape, _CPU)(fixed_pictures(self.shape))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features ``[B, width]``, float32, on the CPU, of pictures ``[B, channels, H, W]``, uint8."""
        if not len(x):
            return torch.zeros(0, self.width)
        size = _SMALL if max(self.shape[1:]) < _LARGE else _LARGE
        # Averages over cells need only every second pixel of the coarse scale, and of the fine scale's edges.
        banks = [bank.to(self.device) for bank in (_Bank.of(size, 0), _Bank.of(size, 1, 2), _Bank.of(size // 2, 0))]
        at_once = max(1, _PIXELS // (self.shape[0] * size**2))
        some = [_scattered(part.flatten(0, 1), size, banks) for part in x.split(at_once)]
        return torch.cat(some).view(len(x), -1).cpu()


def scattering_map(shape: tuple[int, ...], device: torch.device) -> Scattering:
    """Return the map.

    Args:
        shape: Channels, height and width of the pictures.
        device: Where it is computed.

    Raises:
        ConfigError: If the samples are texts.

    Example:
        >>> scattering_map((1, 28, 28), torch.device("cpu")).width
        1296
    """
    if not shape:
        raise ConfigError("common.map 'scattering' is a map of pictures; the samples are texts. Use 'words'")
    return Scattering(shape, device)


def _scattered(x: Tensor, size: int, banks: list[_Bank]) -> Tensor:
    """Return the features ``[B, 1296]`` of channels ``[B, H, W]``."""
    fine, coarse, second = banks
    pictures = _resized(x.to(fine.rows.device).float().div_(255), size)
    edges = fine.moduli(pictures)
    half = functional.avg_pool2d(edges.permute(0, 2, 1, 3).flatten(0, 1), 2)  # [angles * B, n/2, n/2]
    parts = [_cells(pictures.unsqueeze(0).permute(0, 2, 1, 3)), _cells(edges), _cells(coarse.moduli(pictures))]
    twice = _cells(second.moduli(half))  # [angles, angles * B, cells]
    twice = twice.view(_ANGLES, _ANGLES, len(x), -1).flatten(0, 1)
    return torch.cat([*parts, twice]).permute(1, 0, 2).flatten(1).add_(_FLOOR).log_()


def _cells(maps: Tensor) -> Tensor:
    """Return the mean over each cell, ``[filters, B, cells]``, of maps ``[filters, n, B, n]``."""
    filters, size, count, _ = maps.shape
    side = size // _GRID
    mean = torch.eye(_GRID, device=maps.device).repeat_interleave(side, 0) / side**2  # faster than a mean over an axis
    cells = (maps.reshape(-1, size) @ mean).view(filters, _GRID, side, count, _GRID).sum(2)
    return cells.permute(0, 2, 1, 3).flatten(2)


def _resized(x: Tensor, size: int) -> Tensor:
    """Return pictures ``[B, H, W]`` of ``size`` a side: averaged down, or enlarged."""
    if x.shape[1:] == (size, size):
        return x
    smaller = tuple(min(side, size) for side in x.shape[1:])
    x = functional.interpolate(x.unsqueeze(1), size=smaller, mode="area")
    return functional.interpolate(x, size=(size, size), mode="bilinear", align_corners=False).squeeze(1)
