"""Cosine distance: turns features into the direction of the prototypes."""

from __future__ import annotations

import torch
from torch import Tensor

from isoproto.losses.base import AlignmentLoss, check_width, directions, full_precision_pair, present_rows
from isoproto.precision import outside_autocast


@outside_autocast
def pair(a: Tensor, b: Tensor) -> Tensor:
    r"""One minus the mean cosine of the rows.

    .. math::
        1 - \frac{1}{n} \sum_i \frac{\langle a_i, b_i \rangle}{\|a_i\| \|b_i\|}

    Reference: the coordinate baseline of FedSAF.

    Args:
        a: Features, shape ``[n, d]``.
        b: Prototypes, shape ``[n, d]``. Row ``i`` is compared with row ``i`` of ``a``.

    Returns:
        Loss, shape ``[]``, in [0, 2]. A row that has zero length in either argument is left out.

    Example:
        >>> import torch
        >>> pair(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 0.0], [5.0, 0.0]]))
        tensor(0.5000)
    """
    a, b = full_precision_pair(a, b, any_width=False)
    return _weighted(a.unsqueeze(0), b, a.new_ones(1, len(a)))[0]


@outside_autocast
def target(prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the directions of the prototypes, ``[C, d]``. Rows of absent classes and of zero length are zero."""
    rows, keep = directions(present_rows(prototypes, present), noise=0)
    return rows * keep.unsqueeze(1)


def prepare(rows: Tensor, means: Tensor, weights: Tensor, prototypes: Tensor) -> tuple[Tensor, ...]:
    """Look up the prototype of each row; see ``AlignmentLoss.prepare``."""
    return means, weights, prototypes[rows]


def compare(x: Tensor, means: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """Return the losses of ``x`` ``[n, d]`` at both levels, shape ``[2]``; see ``AlignmentLoss.compare``."""
    check_width(x, wanted)
    # Zero the samples that do not count: `directions` judges by the mean length which rows are noise.
    samples = x * (weights[1] > 0).unsqueeze(1)
    return _weighted(torch.stack([means @ x, samples]), wanted, weights)


def _weighted(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of 1 - cosine over rows of ``a`` ``[L, n, d]`` and ``b`` ``[n, d]`` with a direction."""
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
