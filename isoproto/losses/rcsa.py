"""Dissimilarity-cosine structural alignment: do the distances between directions agree up to a factor?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.losses.base import (
    SMALL,
    AlignmentLoss,
    attach_gradient,
    both_levels,
    directions,
    full_precision_pair,
    gather_pairs,
    gram_backward,
    one_minus_cosine,
)
from isoproto.precision import full_precision, outside_autocast

# Half squared distance between two directions that float32 cannot tell from zero: for rows of one direction rounding
# made up to 1.1e-6 of it (measured for n <= 256, d <= 8192).
NOISE = 2e-6


@outside_autocast
def pair(a: Tensor, b: Tensor) -> Tensor:
    r"""One minus the cosine of the squared distances between normalised rows.

    .. math::
        1 - \frac{\langle r_A, r_B \rangle}{\|r_A\| \|r_B\|}, \qquad
        (r_A)_{ij} = \| \hat a_i - \hat a_j \|^2 = 2 - 2 \langle \hat a_i, \hat a_j \rangle, \quad i < j

    Either argument may be rotated and reflected, and each row scaled; unlike GCSA a shift changes the loss. No root
    is taken, so coincident rows are harmless.

    Reference: FedSAF, Eq. (14).

    Args:
        a: Features, shape ``[n, d1]``.
        b: What row ``i`` of ``a`` is compared with, shape ``[n, d2]``.

    Returns:
        Loss, shape ``[]``, in [0, 1]. Rows of zero length, in either argument, are left out. Value and gradient are
        0 for fewer than three remaining rows and if all rows of an argument have one direction.

    Example:
        Squared distances (2, 2, 4) between three directions, and (2, 2, 2): the cosine is 16 / sqrt(24 * 12).

        >>> a = torch.tensor([[1.0, 0.0, 0.0], [0.0, 5.0, 0.0], [-1.0, 0.0, 0.0]])
        >>> pair(a, torch.eye(3))
        tensor(0.0572)
    """
    a, b = full_precision_pair(a, b, any_width=True)
    (a, a_keep), (b, b_keep) = directions(a), directions(b)
    keep = a_keep & b_keep
    pairs = keep.unsqueeze(1) & keep
    r, s = _dissimilarity(a @ a.T, pairs), _dissimilarity(b @ b.T, pairs)
    return one_minus_cosine(r, s, keep.sum() > 2)


def _dissimilarity(cosines: Tensor, pairs: Tensor) -> Tensor:
    """Half the squared distances of ``pairs`` (bool); 0 for what is no pair or closer than rounding can tell."""
    return functional.threshold(torch.where(pairs, 1 - cosines, 0), NOISE, 0)


@outside_autocast
def target(prototypes: Tensor, present: Tensor) -> Tensor:
    """Squared distances ``[C, C]`` between the directions of the present prototypes, in [0, 4].

    Rows and columns of absent classes and of prototypes of zero length are zero: a class at no distance from any
    other is left out.
    """
    p, keep = directions(torch.where(present.unsqueeze(1), full_precision(prototypes), 0), noise=0)
    return 2 * _dissimilarity(p @ p.T, keep.unsqueeze(1) & keep)


@outside_autocast
def relations(matrix: Tensor, present: Tensor) -> Tensor:
    """The same from a matrix ``[C, C]`` of squared distances, symmetric and of float dtype."""
    pairs = present.unsqueeze(1) & present & ~torch.eye(len(present), dtype=torch.bool, device=present.device)
    return functional.threshold(torch.where(pairs, full_precision(matrix), 0), 2 * NOISE, 0)


def prepare(rows: Tensor, means: Tensor, weights: Tensor, distances: Tensor) -> tuple[Tensor, ...]:
    """First half of the batch form, see ``AlignmentLoss``."""
    wanted = gather_pairs(distances, rows).unsqueeze(1)
    averages = torch.stack([means, torch.diag_embed(weights[:, 1])], 1)  # [S, 2, n, n]
    return averages, wanted, weights.sqrt() * (wanted.sum(3) > 0)


def compare(x: Tensor, averages: Tensor, wanted: Tensor, root: Tensor) -> Tensor:
    """Second half: the loss of ``x`` ``[n, d]`` at both levels, shape ``[2]``."""
    with torch.no_grad():
        gram = both_levels(x @ x.T, averages[0])
        energy = gram.diagonal(dim1=1, dim2=2) * (root > 0)  # [2, n]
        keep = energy > SMALL**2 * energy.mean(1, keepdim=True)
        inverse = energy.clamp(min=1e-30).rsqrt() * keep
        root = root * keep
        weights = root.unsqueeze(2) * root.unsqueeze(1)  # [2, n, n]
        lengths = inverse.unsqueeze(2) * inverse.unsqueeze(1)
        r = weights * functional.threshold(1 - gram * lengths, NOISE, 0)
        wanted = weights * wanted
        r_norm, norm = torch.linalg.vector_norm(r, dim=(1, 2)), torch.linalg.vector_norm(wanted, dim=(1, 2))
        norms = r_norm * norm
        good = ((norms > 0) & (root.square().sum(1) > 2.5)).to(x.dtype)
        scale = good / norms.clamp(min=1e-30)
        inner = (r * wanted).sum((1, 2))
        value = good - inner * scale

        # scale * slope is the gradient with respect to the cosines, then to the points' Gram matrix, whose diagonal
        # makes the lengths. That with respect to the samples' own is the same, since the sum over the points of two
        # classes is shared by as many pairs of samples; what is on the diagonal, by all pairs of a class.
        slope = weights * torch.addcmul(wanted, r, (inner / r_norm.square().clamp(min=1e-30)).view(-1, 1, 1), value=-1)
        slope = slope * lengths
        radial = (slope * gram).sum(2) * inverse.square()
        slope = torch.addcmul(slope, averages, radial.unsqueeze(2), value=-1)
    return attach_gradient(value, x, gram_backward, slope, 2 * scale, x.detach())


RCSA = AlignmentLoss(
    kind="dissimilarities",
    weights=(0.3, 1.0),
    pair=pair,
    target=target,
    prepare=prepare,
    compare=compare,
    relations=relations,
)
