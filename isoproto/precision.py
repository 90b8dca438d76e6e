"""Float32 or float64 for the few computations that half precision would spoil."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(x: Tensor) -> Tensor:
    """Return ``x`` in float32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()


def wide(tensor: Tensor) -> torch.dtype:
    """Return the dtype for sums of many squares: float64, or float32 on Apple's GPUs, which have no float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def outside_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap ``function`` so that it runs with autocast off on the device of its first tensor.

    Gram entries are products of products: their norm overflows float16, and bfloat16 has too few digits left
    after centring. TF32 matrix products need no such guard, since PyTorch leaves them off by default.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(arg.device.type for arg in args if isinstance(arg, Tensor))
        if not torch.is_autocast_enabled(device):  # entering the context costs more than this test
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return wrapped
