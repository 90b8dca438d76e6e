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

TINY = 1e-12  # rows whose centred energy is below this count as one point


@outside_autocast
def pair(a: Tensor, b: Tensor) -> Tensor:
    r"""One minus the cosine of the centred Gram matrices of ``a`` and ``b``.

    .. math::
        1 - \frac{\langle K_A, K_B \rangle}{\|K_A\|_F \|K_B\|_F}, \qquad
        K_A = A_c A_c^T, \quad A_c = A - 1 \bar a^T

    The loss does not change when either argument is rotated, reflected, shifted or scaled.

    Reference: FedSAF, Eq. (13). The loss is one minus linear CKA.

    Args:
        a: Features, shape ``[n, d1]``.
        b: Prototypes, shape ``[n, d2]``. Row ``i`` belongs to row ``i`` of ``a``.

    Returns:
        Loss, shape ``[]``, in [0, 1]. Value and gradient are 0 for ``n < 3``, since any two points have the same
        shape, and if all rows of an argument are equal.

    Example:
        In ``a`` the first two points lie apart and the last two at the centre. Exchanging the pairs gives a Gram
        matrix that is orthogonal to the first:

        >>> a = torch.tensor([[1.0], [-1.0], [0.0], [0.0]])
        >>> pair(a, 3 * a + 1), pair(a, a.flip(0))
        (tensor(0.), tensor(1.))
    """
    a, b = full_precision_pair(a, b, any_width=True)
    (a, a_spread), (b, b_spread) = _standardised(a), _standardised(b)
    if len(a) > max(a.shape[1], b.shape[1]):  # d x d products are smaller and give the same three numbers
        inner, norms = (a.T @ b).square().sum(), (a.T @ a).norm() * (b.T @ b).norm()
    else:
        k, t = a @ a.T, b @ b.T
        inner, norms = (k * t).sum(), k.norm() * t.norm()
    informative = a_spread & b_spread & (len(a) > 2)
    return torch.where(informative, 1 - inner / torch.where(informative, norms, 1), 0)


def _standardised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Centre the rows and scale them to energy 1; say whether they differ by more than rounding."""
    centred = x - x.mean(0)
    energy = centred.square().sum()
    spread = energy > (SMALL * x.square().sum()).clamp(min=TINY)
    return centred / torch.where(spread, energy, 1).sqrt(), spread


@outside_autocast
def target(prototypes: Tensor, present: Tensor) -> Tensor:
    """Return :math:`-D/2` for the squared distances :math:`D` between the present prototypes, shape ``[C, C]``.

    Centred, this matrix equals the centred Gram matrix. It is used in its place because equal prototypes give exact
    zeros here, and a prototype far away costs the others no digits. Rows and columns of absent classes are zero.
    """
    p = torch.where(present.unsqueeze(1), prototypes.to(wide(prototypes)), 0)
    distances = torch.cdist(p, p, compute_mode="donot_use_mm_for_euclid_dist")
    return _kernel(distances.square() / 2, p.square().sum(1), present).to(full_precision(prototypes).dtype)


@outside_autocast
def relations(matrix: Tensor, present: Tensor) -> Tensor:
    """Return what :func:`target` returns, made from a Gram matrix of the classes.

    Args:
        matrix: Gram matrix, centred or not, shape ``[C, C]``, symmetric, of float dtype.
        present: Classes to read, shape ``[C]``, bool.
    """
    gram = full_precision(matrix)
    squares = gram.diagonal()
    return _kernel((squares.unsqueeze(1) + squares) / 2 - gram, squares, present)


def _kernel(half: Tensor, energy: Tensor, present: Tensor) -> Tensor:
    """Return minus the half squared distances ``half``; 0 for absent classes and for distances within rounding."""
    noise = (SMALL / 2 * (energy.unsqueeze(1) + energy)).clamp(min=TINY)
    return torch.where(present.unsqueeze(1) & present & (half > noise), -half, 0)


def prepare(rows: Tensor, means: Tensor, weights: Tensor, kernel: Tensor) -> tuple[Tensor, ...]:
    """Centre and scale the wanted kernel of each batch at both levels; see ``AlignmentLoss.prepare``."""
    count = weights.sum(2, keepdim=True)  # [S, 2, 1]
    share = weights / count.clamp(min=1)
    # Centre the kernel about the weighted mean of the points, then multiply each pair by its weight.
    wanted = gather_pairs(kernel, rows)
    mean = share @ wanted  # [S, 2, n]; the kernel is symmetric
    offset = mean - (mean * share).sum(2, keepdim=True) / 2
    wanted = wanted.unsqueeze(1) - offset.unsqueeze(3) - offset.unsqueeze(2)
    pairs = weights.unsqueeze(3) * weights.unsqueeze(2)
    square = (pairs * wanted.square()).sum((2, 3))
    useful = ((square > 0) & (count.squeeze(2) > 2.5)).to(weights.dtype)
    wanted = wanted * pairs * (useful * square.clamp(min=1e-30).rsqrt()).unsqueeze(2).unsqueeze(3)
    means = means - share[:, 0].unsqueeze(1)  # gives class means minus the mean of the class means
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
    """Return the losses of ``x`` ``[n, d]`` at both levels, shape ``[2]``; see ``AlignmentLoss.compare``."""
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
        # -scale * slope is the gradient with respect to the Gram matrix of the points of a level. It is also the
        # gradient with respect to the Gram matrix of the samples: what the m * m' points of two classes add up to is
        # shared by the m * m' pairs of samples.
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
