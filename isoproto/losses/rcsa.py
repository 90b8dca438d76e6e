"""Dissimilarity-cosine structural alignment: do the distances between directions agree up to a factor?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.losses.base import SMALL, AlignmentLoss, full_precision_pair, gather_pairs, one_minus_cosine
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
    (a, a_keep), (b, b_keep) = _directions(a), _directions(b)
    keep = a_keep & b_keep
    pairs = keep.unsqueeze(1) & keep
    r, s = _dissimilarity(a @ a.T, pairs), _dissimilarity(b @ b.T, pairs)
    return one_minus_cosine(r.unsqueeze(0), s.unsqueeze(0), keep.sum() > 2)[0]


def _directions(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length 1, and which rows have a direction at all."""
    energy = x.square().sum(1)
    keep = energy > SMALL**2 * energy.mean()
    return x * torch.where(keep, energy, 1).rsqrt().unsqueeze(1), keep


def _dissimilarity(cosines: Tensor, pairs: Tensor) -> Tensor:
    """Half the squared distances of ``pairs`` (bool); 0 for what is no pair or closer than rounding can tell."""
    return functional.threshold(torch.where(pairs, 1 - cosines, 0), NOISE, 0)


@outside_autocast
def target(prototypes: Tensor, present: Tensor) -> Tensor:
    """Squared distances ``[C, C]`` between the directions of the present prototypes, in [0, 4].

    Rows and columns of absent classes and of prototypes of zero length are zero: a class at no distance from any
    other is left out.
    """
    p, keep = _directions(torch.where(present.unsqueeze(1), full_precision(prototypes), 0))
    return 2 * _dissimilarity(p @ p.T, keep.unsqueeze(1) & keep)


@outside_autocast
def relations(matrix: Tensor, present: Tensor) -> Tensor:
    """The same from a matrix ``[C, C]`` of squared distances, symmetric and of float dtype."""
    pairs = present.unsqueeze(1) & present & ~torch.eye(len(present), dtype=torch.bool, device=present.device)
    return functional.threshold(torch.where(pairs, full_precision(matrix), 0), 2 * NOISE, 0)


def levels(x: Tensor, rows: Tensor, averages: Tensor, weights: Tensor, distances: Tensor) -> Tensor:
    """:func:`pair` at each level, with weighted points: see ``AlignmentLoss``."""
    gram = torch.bmm((averages.flatten(0, 1) @ (x @ x.T)).view_as(averages), averages.mT)  # [L, n, n]
    t = gather_pairs(distances, rows)

    energy = gram.diagonal(dim1=1, dim2=2)  # [L, n]
    keep = (energy > SMALL**2 * energy.mean(1, keepdim=True)) & t.any(1)
    inverse = torch.where(keep, energy, 1).rsqrt()
    weights = weights * keep
    root = weights.sqrt()
    both = root.unsqueeze(2) * root.unsqueeze(1)
    r = both * functional.threshold(1 - gram * (inverse.unsqueeze(2) * inverse.unsqueeze(1)), NOISE, 0)
    t = both * t
    return one_minus_cosine(r, t, weights.sum(1) > 2.5)


RCSA = AlignmentLoss(pair, target, levels, relations)
