"""Split a mismatch of coordinates into a difference of shape and a rotation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


@torch.no_grad()
def procrustes_split(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Split the squared distance of normalised rows into a part that no rotation removes, and the rest.

    .. math::
        \|\hat A - \hat B\|_F^2 = L_{shape} + L_{rigid}, \qquad
        L_{shape} = \min_{R \in O(d)} \|\hat A R - \hat B\|_F^2
                  = \|\hat A\|_F^2 + \|\hat B\|_F^2 - 2 \|\hat B^T \hat A\|_*

    Reference: FedSAF, Eqs. (7) to (10). Use it to see what training does: training with ``mse`` lowers
    :math:`L_{rigid}`, while training with ``gcsa`` leaves it and lowers :math:`L_{shape}`.

    Args:
        a: Features or a client's prototypes, shape ``[n, d]``.
        b: Prototypes, shape ``[n, d]``. Row ``i`` is compared with row ``i`` of ``a``. Rows of zero length stay zero.

    Returns:
        :math:`L_{shape}` and :math:`L_{rigid}`, shape ``[]`` each, float64, >= 0. Divide both by ``n`` before you
        compare matrices with different numbers of rows.

    Example:
        A quarter turn changes no shape:

        >>> procrustes_split(torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        (tensor(0., dtype=torch.float64), tensor(4., dtype=torch.float64))
    """
    a, b = (functional.normalize(x.double(), dim=1, eps=1e-300) for x in (a, b))
    # B^T A [d, d] has the same singular values as a product of triangular factors, which is at most [n, n].
    (_, r_a), (_, r_b) = (torch.linalg.qr(x.T, mode="r") for x in (a, b))
    nuclear = torch.linalg.svdvals(r_b @ r_a.T).sum()
    shape = a.square().sum() + b.square().sum() - 2 * nuclear
    rigid = 2 * (nuclear - (a * b).sum())
    return shape.clamp(min=0), rigid.clamp(min=0)
