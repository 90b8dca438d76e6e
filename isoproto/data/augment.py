"""Augmentation: random changes of training pictures, drawn for each sample and applied to a whole batch."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_PADDING = 4  # pixels; the largest shift of the crops in both papers

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""Changes pictures ``[B, channels, H, W]``, uint8, on any device; shape and type stay the same."""


def keep(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the pictures as they are; nothing is drawn from the generator."""
    return x


def flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each picture left to right with probability 1/2.

    Args:
        x: Pictures, shape ``[B, channels, H, W]``.
        generator: Must be on the CPU, on whatever device ``x`` is.

    Example:
        >>> x = torch.arange(3, dtype=torch.uint8).expand(4, 1, 1, 3)
        >>> flip(x, torch.Generator().manual_seed(0))[:, 0, 0].tolist()
        [[2, 1, 0], [0, 1, 2], [2, 1, 0], [2, 1, 0]]
    """
    chosen = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(_to_device_of(x, chosen)[:, None, None, None], x.flip(3), x)


def _to_device_of(x: Tensor, drawn: Tensor) -> Tensor:
    """Copy numbers that were drawn on the CPU to the device of ``x``, without waiting for a GPU to catch up."""
    # An Apple GPU would read the source after it was freed, so there the copy must be complete before we return.
    return drawn.to(x.device, non_blocking=x.device.type != "mps")


def crop_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Crop each picture at random to its own size out of a black margin of four pixels, then ``flip`` it.

    This shifts a picture by up to four pixels in each direction; uncovered pixels are black.

    Args:
        x: Pictures, shape ``[B, channels, H, W]``.
        generator: Must be on the CPU.

    Example:
        >>> x = torch.full((64, 1, 8, 8), 9, dtype=torch.uint8)
        >>> crop_flip(x, torch.Generator().manual_seed(0)).flatten(1).count_nonzero(1).unique().tolist()[::6]
        [16, 32, 49]
    """
    samples, _, height, width = x.shape
    padded = functional.pad(x, [_PADDING] * 4)
    top, left = _to_device_of(x, torch.randint(0, 2 * _PADDING + 1, (2, samples), generator=generator))
    rows = top[:, None] + torch.arange(height, device=x.device)  # [B, H]
    columns = left[:, None] + torch.arange(width, device=x.device)  # [B, W]
    sample = torch.arange(samples, device=x.device)[:, None, None]
    # The slice stands between the index arrays, so torch puts their axes first: [B, H, W, channels].
    shifted = padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return flip(shifted, generator)


def crop_flip_batch(x: Tensor, generator: torch.Generator) -> Tensor:
    """Do as ``crop_flip``, but with the same shift and mirroring for all pictures of a batch.

    FedHPro's published code augments in this way.

    Args:
        x: Pictures, shape ``[B, channels, H, W]``.
        generator: Must be on the CPU.

    Example:
        >>> x = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8).expand(5, 1, 8, 8)
        >>> len(crop_flip_batch(x, torch.Generator().manual_seed(0)).unique(dim=0))
        1
    """
    return crop_flip(x.flatten(0, 1).unsqueeze(0), generator).view(x.shape)


def warp(x: Tensor, generator: torch.Generator) -> Tensor:
    """Turn each picture by up to 15 degrees, shift it by up to a tenth, and scale it by up to 15 per cent.

    Pixels in between are interpolated; those beyond a border are the border's.

    Args:
        x: Pictures, shape ``[B, channels, H, W]``.
        generator: Must be on the CPU.

    Example:
        >>> x = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8).expand(4, 3, 8, 8)
        >>> changed = warp(x, torch.Generator().manual_seed(0))
        >>> changed.shape, bool((changed[:, 0] == changed[:, 1]).all()), len(changed.unique(dim=0))
        (torch.Size([4, 3, 8, 8]), True, 4)
    """
    turn, across, down, size = 2 * torch.rand(4, len(x), generator=generator) - 1
    turn, size = turn * math.radians(15), 1 + 0.15 * size
    rows = [turn.cos() / size, -turn.sin() / size, 0.2 * across, turn.sin() / size, turn.cos() / size, 0.2 * down]
    matrices = _to_device_of(x, torch.stack(rows, 1).view(-1, 2, 3))
    places = functional.affine_grid(matrices, list(x.shape), align_corners=False)
    moved = functional.grid_sample(x.float(), places, padding_mode="border", align_corners=False)
    return moved.round_().to(torch.uint8)


def warp_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Change each picture as ``warp`` does, then ``flip`` it."""
    return flip(warp(x, generator), generator)


def autoaugment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Change each picture by a random one of the 25 pairs of operations in AutoAugment's policy for CIFAR-10.

    Policy, probabilities and operations are torchvision's. Torchvision draws one pair for a whole batch; this function
    draws one for each picture, and applies each operation to all the pictures that drew it at once.

    Reference: Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data", CVPR 2019.

    Args:
        x: Pictures, shape ``[B, channels, H, W]``.
        generator: Must be on the CPU.

    Example:
        >>> x = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8).expand(50, 3, 8, 8)
        >>> changed = autoaugment(x, torch.Generator().manual_seed(0))
        >>> changed.shape, int((changed != x).flatten(1).any(1).sum())
        (torch.Size([50, 3, 8, 8]), 29)
    """
    pairs, space, apply = _cifar_policy(x.shape[2], x.shape[3])
    which = torch.randint(len(pairs), (len(x),), generator=generator)
    chance = torch.rand(len(x), 2, generator=generator)
    negative = torch.rand(len(x), 2, generator=generator) < 0.5
    x = x.clone()
    for step in (0, 1):
        for number, pair in enumerate(pairs):
            name, probability, level = pair[step]
            magnitudes, signed = space[name]
            magnitude = 0.0 if level is None else float(magnitudes[level])
            drawn = (which == number) & (chance[:, step] < probability)
            groups = ((drawn & ~negative[:, step], 1), (drawn & negative[:, step], -1)) if signed else ((drawn, 1),)
            for chosen, sign in groups:
                if index := chosen.nonzero().flatten().tolist():
                    x[index] = apply(x[index], name, sign * magnitude)
    return x


@functools.cache
def _cifar_policy(height: int, width: int) -> tuple[Any, Any, Callable[[Tensor, str, float], Tensor]]:
    """Return the policy's pairs, the meaning of their levels for this picture size, and a function that applies one.

    Each half of a pair is (operation, probability, level).
    """
    from torchvision.transforms import InterpolationMode, autoaugment  # slow to import, and most runs need none of it

    policy = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
    apply = functools.partial(autoaugment._apply_op, interpolation=InterpolationMode.NEAREST, fill=None)
    return policy.policies, policy._augmentation_space(10, (height, width)), apply


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": keep,
    "flip": flip,
    "crop_flip": crop_flip,
    "crop_flip_batch": crop_flip_batch,
    "autoaugment": autoaugment,
    "warp": warp,
    "warp_flip": warp_flip,
}
