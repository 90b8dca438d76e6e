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

# Up to this half squared distance float32 cannot tell two directions apart. Rounding made at most 1.1e-6 between rows
# of one direction (measured for n <= 256, d <= 8192).
NOISE = 2e-6


@outside_autocast
def pair(a: Tensor, b: Tensor) -> Tensor:
    r"""One minus the cosine of the squared distances between normalised rows.

    .. math::
        1 - \frac{\langle r_A, r_B \rangle}{\|r_A\| \|r_B\|}, \qquad
        (r_A)_{ij} = \| \hat a_i - \hat a_j \|^2 = 2 - 2 \langle \hat a_i, \hat a_j \rangle, \quad i < j

    The loss does not change when either argument is rotated or reflected, or when a single row is scaled. Unlike in
    GCSA, a shift changes the loss. No root is taken, so the gradient stays finite where two rows coincide.

    Reference: FedSAF, Eq. (14).

    Args:
        a: Features, shape ``[n, d1]``.
        b: Prototypes, shape ``[n, d2]``. Row ``i`` belongs to row ``i`` of ``a``.

    Returns:
        Loss, shape ``[]``, in [0, 1]. A row that has zero length in either argument is left out. Value and gradient
        are 0 if fewer than three rows remain, and if all rows of an argument have the same direction.

    Example:
        The squared distances between the directions are (2, 2, 4) in ``a`` and (2, 2, 2) in ``b``, so the cosine is
        16 / sqrt(24 * 12):

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
    """Return half the squared distances where ``pairs`` (bool) holds; 0 elsewhere and for distances within rounding."""
    return functional.threshold(torch.where(pairs, 1 - cosines, 0), NOISE, 0)


@outside_autocast
def target(prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the squared distances between the directions of the present prototypes, ``[C, C]``, in [0, 4].

    Rows and columns of absent classes and of prototypes of zero length are zero. ``prepare`` leaves out a class whose
    row is zero.
    """
    p, keep = directions(torch.where(present.unsqueeze(1), full_precision(prototypes), 0), noise=0)
    return 2 * _dissimilarity(p @ p.T, keep.unsqueeze(1) & keep)


@outside_autocast
def relations(matrix: Tensor, present: Tensor) -> Tensor:
    """Return what :func:`target` returns, made from known squared distances between directions.

    Args:
        matrix: Squared distances, shape ``[C, C]``, symmetric, of float dtype.
        present: Classes to read, shape ``[C]``, bool.
    """
    pairs = present.unsqueeze(1) & present & ~torch.eye(len(present), dtype=torch.bool, device=present.device)
    return functional.threshold(torch.where(pairs, full_precision(matrix), 0), 2 * NOISE, 0)


def prepare(rows: Tensor, means: Tensor, weights: Tensor, distances: Tensor) -> tuple[Tensor, ...]:
    """Look up the wanted distances of each batch, and drop classes that have none; see ``AlignmentLoss.prepare``."""
    wanted = gather_pairs(distances, rows).unsqueeze(1)
    averages = torch.stack([means, torch.diag_embed(weights[:, 1])], 1)  # [S, 2, n, n]
    return averages, wanted, weights.sqrt() * (wanted.sum(3) > 0)


def compare(x: Tensor, averages: Tensor, wanted: Tensor, root: Tensor) -> Tensor:
    """Return the losses of ``x`` ``[n, d]`` at both levels, shape ``[2]``; see ``AlignmentLoss.compare``."""
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

        # First `slope` is the gradient with respect to the cosines, up to the factor `scale`. The next lines turn it
        # into the gradient with respect to the Gram matrix of the points of a level; the diagonal of that matrix holds
        # the squared lengths. It is also the gradient with respect to the Gram matrix of the samples: what the points
        # of two classes add up to is shared by as many pairs of samples, and the diagonal by all pairs of a class.
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
