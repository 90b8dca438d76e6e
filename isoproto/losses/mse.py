"""Mean squared error: pulls features to the coordinates of the prototypes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.losses.base import AlignmentLoss, check_width, full_precision_pair, present_rows
from isoproto.precision import outside_autocast


@outside_autocast
def pair(a: Tensor, b: Tensor) -> Tensor:
    r"""Mean squared difference over rows and columns.

    .. math::
        \frac{1}{n d} \sum_{ij} (a_{ij} - b_{ij})^2

    Reference: the coordinate baseline of FedSAF. The paper writes a sum, but its weights refer to the element mean.

    Args:
        a: Features, shape ``[n, d]``.
        b: Prototypes, shape ``[n, d]``. Row ``i`` is compared with row ``i`` of ``a``.

    Returns:
        Loss, shape ``[]``, >= 0.

    Example:
        >>> pair(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
        tensor(4.2500)
    """
    return functional.mse_loss(*full_precision_pair(a, b, any_width=False))


def prepare(rows: Tensor, means: Tensor, weights: Tensor, prototypes: Tensor) -> tuple[Tensor, ...]:
    """Compute the weight of each row and its prototype; see ``AlignmentLoss.prepare``."""
    share = weights / weights.sum(2, keepdim=True).clamp(min=1)
    return means, share, prototypes[rows]


def compare(x: Tensor, means: Tensor, share: Tensor, wanted: Tensor) -> Tensor:
    """Return the losses of ``x`` ``[n, d]`` at both levels, shape ``[2]``; see ``AlignmentLoss.compare``."""
    check_width(x, wanted)
    residual = x - wanted
    both = torch.stack([means @ residual, residual])  # [2, n, d]
    return (both.square().mean(2) * share).sum(1)


MSE = AlignmentLoss(
    kind="coordinates",
    weights=(0.01, 0.01),
    pair=pair,
    target=present_rows,
    prepare=prepare,
    compare=compare,
)
