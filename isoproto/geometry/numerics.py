"""Small functions that several modules of ``isoproto.geometry`` share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from isoproto.errors import FrameError

COINCIDE = 1e-12  # rows whose spread is below this share of their squared lengths count as one point


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a / b``, and 0 where ``b`` is 0."""
    return torch.where(b != 0, a / torch.where(b != 0, b, 1), 0)


def standardised(vectors: Tensor, present: Tensor) -> Tensor:
    """Centre the present rows and scale them to root-mean-square length 1; set absent rows to zero."""
    mask, count = present.unsqueeze(1), present.sum().clamp(min=1)
    vectors = torch.where(mask, vectors, 0)
    energy = vectors.square().sum()
    vectors = torch.where(mask, vectors - vectors.sum(0) / count, 0)
    left = vectors.square().sum()
    return ratio(vectors, (left / count).sqrt() * (left > COINCIDE * energy))


@contextlib.contextmanager
def decomposing(what: str) -> Iterator[None]:
    """Turn a failed matrix decomposition into a ``FrameError`` that names the function ``what``."""
    try:
        yield
    except torch.linalg.LinAlgError as err:  # type: ignore[attr-defined]
        raise FrameError(
            f"{what}: class means cannot be decomposed ({err}); look for a client whose prototypes are not finite or "
            "grow without bound"
        ) from err
