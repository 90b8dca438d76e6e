"""Gram-cosine structural alignment: do two centred Gram matrices point the same way?"""

from __future__ import annotations

import torch
from torch import Tensor

from isoproto.losses.base import (
    SMALL,
    AlignmentLoss,
    attach_gradient,
    both_levels,
    full_precision_pair,
    gather_pairs,
    gram_backward,
)
from isoproto.precision import full_precision, outside_autocast, wide

TINY = 1e-12  # energy of centred rows below which they are taken for one point


@outside_autocast
def pair(a: Tensor, b: Tensor) -> Tensor:
    r"""One minus the cosine of the centred Gram matrices of ``a`` and ``b``.

    .. math::
        1 - \frac{\langle K_A, K_B \rangle}{\|K_A\|_F \|K_B\|_F}, \qquad
        K_A = A_c A_c^T, \quad A_c = A - 1 \bar a^T

    Either argument may be rotated, reflected, shifted and scaled; the loss does not change.

    Reference: FedSAF, Eq. (13). It is one minus linear CKA.

    Args:
        a: Features, shape ``[n, d1]``.
        b: What row ``i`` of ``a`` is compared with, shape ``[n, d2]``.

    Returns:
        Loss, shape ``[]``, in [0, 1]. Value and gradient are 0 for ``n < 3`` (two points have one shape) and if all
        rows of an argument are equal.

    Example:
        Two pairs of points, each pair at the other's centre, have orthogonal Gram matrices:

        >>> a = torch.tensor([[1.0], [-1.0], [0.0], [0.0]])
        >>> pair(a, 3 * a + 1), pair(a, a.flip(0))
        (tensor(0.), tensor(1.))
    """
    a, b = full_precision_pair(a, b, any_width=True)
    (a, a_spread), (b, b_spread) = _standardised(a), _standardised(b)
    if len(a) > max(a.shape[1], b.shape[1]):  # the same three numbers from d x d products
        inner, norms = (a.T @ b).square().sum(), (a.T @ a).norm() * (b.T @ b).norm()
    else:
        k, t = a @ a.T, b @ b.T
        inner, norms = (k * t).sum(), k.norm() * t.norm()
    informative = a_spread & b_spread & (len(a) > 2)
    return torch.where(informative, 1 - inner / torch.where(informative, norms, 1), 0)


def _standardised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows centred and scaled to energy 1, and whether they differ by more than rounding."""
    centred = x - x.mean(0)
    energy = centred.square().sum()
    spread = energy > (SMALL * x.square().sum()).clamp(min=TINY)
    return centred / torch.where(spread, energy, 1).sqrt(), spread


@outside_autocast
def target(prototypes: Tensor, present: Tensor) -> Tensor:
    """Kernel ``[C, C]`` of the present prototypes, :math:`-D/2` of their squared distances :math:`D`.

    Centring makes the Gram matrix and this one equal, but here equal rows give exact zeros, and a prototype far off
    takes no digits from the others. Rows and columns of absent classes are zero.
    """
    p = torch.where(present.unsqueeze(1), prototypes.to(wide(prototypes)), 0)
    distances = torch.cdist(p, p, compute_mode="donot_use_mm_for_euclid_dist")
    return _kernel(distances.square() / 2, p.square().sum(1), present).to(full_precision(prototypes).dtype)


@outside_autocast
def relations(matrix: Tensor, present: Tensor) -> Tensor:
    """The same kernel from a Gram matrix ``[C, C]`` of classes, centred or not, symmetric and of float dtype."""
    gram = full_precision(matrix)
    squares = gram.diagonal()
    return _kernel((squares.unsqueeze(1) + squares) / 2 - gram, squares, present)


def _kernel(half: Tensor, energy: Tensor, present: Tensor) -> Tensor:
    """Half the squared distances, negative; 0 for what is no pair or closer than rounding can tell."""
    noise = (SMALL / 2 * (energy.unsqueeze(1) + energy)).clamp(min=TINY)
    return torch.where(present.unsqueeze(1) & present & (half > noise), -half, 0)


def prepare(rows: Tensor, means: Tensor, weights: Tensor, kernel: Tensor) -> tuple[Tensor, ...]:
    """First half of the batch form, see ``AlignmentLoss``."""
    count = weights.sum(2, keepdim=True)  # [S, 2, 1]
    share = weights / count.clamp(min=1)
    # The kernel about the mean of the points, each pair times its weight.
    wanted = gather_pairs(kernel, rows)
    mean = share @ wanted  # [S, 2, n]; the kernel is symmetric
    offset = mean - (mean * share).sum(2, keepdim=True) / 2
    wanted = wanted.unsqueeze(1) - offset.unsqueeze(3) - offset.unsqueeze(2)
    pairs = weights.unsqueeze(3) * weights.unsqueeze(2)
    square = (pairs * wanted.square()).sum((2, 3))
    useful = ((square > 0) & (count.squeeze(2) > 2.5)).to(weights.dtype)
    wanted = wanted * pairs * (useful * square.clamp(min=1e-30).rsqrt()).unsqueeze(2).unsqueeze(3)
    means = means - share[:, 0].unsqueeze(1)  # those of the classes, about the mean of them
    return means, share[:, 1], weights, pairs, wanted, useful, SMALL * count.squeeze(2)


def compare(
    x: Tensor,
    means: Tensor,
    share: Tensor,
    weights: Tensor,
    pairs: Tensor,
    wanted: Tensor,
    useful: Tensor,
    floor: Tensor,
) -> Tensor:
    """Second half: the loss of ``x`` ``[n, d]`` at both levels, shape ``[2]``."""
    with torch.no_grad():
        shift = share @ x
        centred = x - shift
        gram = both_levels(centred @ centred.T, means)
        energy = (gram.diagonal(dim1=1, dim2=2) * weights).sum(1)
        weighted = pairs * gram
        square = (weighted * gram).sum((1, 2)).clamp(min=1e-30)
        inner = (wanted * gram).sum((1, 2))
        good = useful * (energy - floor * torch.dot(shift, shift) > TINY)
        scale = good * square.rsqrt()
        # -scale * slope is the gradient with respect to the Gram matrix of the points, and that with respect to the
        # samples' own: the sum over the points of two classes is shared by as many pairs of samples.
        slope = torch.addcmul(wanted, weighted, (inner / square).view(-1, 1, 1), value=-1)
        value = good - scale * inner
    return attach_gradient(value, x, gram_backward, slope, -2 * scale, centred)


GCSA = AlignmentLoss(
    kind="gram",
    weights=(0.3, 1.0),
    pair=pair,
    target=target,
    prepare=prepare,
    compare=compare,
    relations=relations,
)
