"""Cosine distance: features in the direction of the prototypes."""

from __future__ import annotations

import torch
from torch import Tensor

from isoproto.losses import mse
from isoproto.losses.base import AlignmentLoss, check_width, directions, full_precision_pair
from isoproto.precision import outside_autocast


@outside_autocast
def pair(a: Tensor, b: Tensor) -> Tensor:
    r"""One minus the mean cosine of the rows.

    .. math::
        1 - \frac{1}{n} \sum_i \frac{\langle a_i, b_i \rangle}{\|a_i\| \|b_i\|}

    Reference: the coordinate baseline of FedSAF.

    Args:
        a: Features, shape ``[n, d]``.
        b: What row ``i`` of ``a`` is compared with, shape ``[n, d]``.

    Returns:
        Loss, shape ``[]``, in [0, 2]. Rows of zero length, in either argument, are left out.

    Example:
        >>> import torch
        >>> pair(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 0.0], [5.0, 0.0]]))
        tensor(0.5000)
    """
    a, b = full_precision_pair(a, b, any_width=False)
    return _weighted(a.unsqueeze(0), b, a.new_ones(1, len(a)))[0]


@outside_autocast
def target(prototypes: Tensor, present: Tensor) -> Tensor:
    """Directions ``[C, d]`` of the prototypes; absent rows and those of zero length are zero."""
    rows, keep = directions(mse.target(prototypes, present), noise=0)
    return rows * keep.unsqueeze(1)


def prepare(rows: Tensor, means: Tensor, weights: Tensor, prototypes: Tensor) -> tuple[Tensor, ...]:
    """First half of the batch form, see ``AlignmentLoss``."""
    return means, weights, prototypes[rows]


def compare(x: Tensor, means: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """Second half: the loss of ``x`` ``[n, d]`` at both levels, shape ``[2]``."""
    check_width(x, wanted)
    # What does not count must not decide which lengths are noise.
    samples = x * (weights[1] > 0).unsqueeze(1)
    return _weighted(torch.stack([means @ x, samples]), wanted, weights)


def _weighted(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of 1 - cosine over the rows of ``a`` ``[L, n, d]`` and ``b`` ``[n, d]`` that have a direction."""
    (a, a_keep), (b, b_keep) = directions(a), directions(b)
    weights = weights * (a_keep & b_keep)
    return (weights * (1 - (a * b).sum(2))).sum(1) / weights.sum(1).clamp(min=1e-20)


COSINE = AlignmentLoss(
    kind="coordinates",
    weights=(0.1, 0.1),
    pair=pair,
    target=target,
    prepare=prepare,
    compare=compare,
)
