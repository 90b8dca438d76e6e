"""Gram-cosine structural alignment: do two centred Gram matrices point the same way?"""

from __future__ import annotations

import torch
from torch import Tensor

from isoproto.losses.base import (
    SMALL,
    AlignmentLoss,
    attach_gradient,
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


def prepare(rows: Tensor, averages: Tensor, weights: Tensor, kernel: Tensor) -> tuple[Tensor, ...]:
    """First half of the batch form, see ``AlignmentLoss``.

    Let ``M`` turn samples into points, less the mean of the points, times the root of the weight. Then ``M G M^T`` is
    the centred Gram matrix of the points, with ``G`` that of the samples, and ``S = M^T M`` is all there is to know:
    ``<M G M^T, M T M^T> = <G, S T S>``, and the square of the norm is ``tr(S G S G)``.
    """
    count = weights.sum(2, keepdim=True)  # [S, L, 1]
    share = weights / count.clamp(min=1)
    m = (averages - share.unsqueeze(2)) * weights.sqrt().unsqueeze(3)  # [S, L, n, n]
    spread = m.mT @ m
    wanted = gather_pairs(kernel, rows) @ spread
    square = (wanted * wanted.mT).sum((2, 3), keepdim=True)
    useful = ((square > 0) & (count.unsqueeze(3) > 2.5)).to(m.dtype)
    wanted = spread @ wanted * (useful * square.clamp(min=1e-30).rsqrt())
    return spread, wanted, useful.flatten(2).squeeze(2), SMALL * count.squeeze(2)


def compare(x: Tensor, spread: Tensor, wanted: Tensor, useful: Tensor, floor: Tensor) -> Tensor:
    """Second half: the loss of ``x`` ``[n, d]`` at each level, shape ``[L]``."""
    with torch.no_grad():
        shift = x.mean(0)  # changes nothing, but would swallow digits of the Gram matrix
        centred = x - shift
        gram = centred @ centred.T
        k = (spread.flatten(0, 1) @ gram).view_as(spread)
        square = (k * k.mT).sum((1, 2)).clamp(min=1e-30)  # squared norm of the points' Gram matrix
        inner = (wanted * gram).sum((1, 2))
        energy = k.diagonal(dim1=1, dim2=2).sum(1)
        good = useful * (energy - floor * torch.dot(shift, shift) > TINY)
        scale = good * square.rsqrt()
        # -scale * slope is the gradient with respect to `gram`.
        slope = torch.baddbmm(wanted, k * (inner / square).view(-1, 1, 1), spread, alpha=-1)
        value = good - scale * inner
    return attach_gradient(value, x, gram_backward, slope, -2 * scale, centred)


GCSA = AlignmentLoss(pair, target, prepare, compare, relations)
