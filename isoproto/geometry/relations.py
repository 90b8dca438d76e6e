"""Relations between classes: distances that clients can average although their feature spaces are unrelated.

Each network makes coordinates of its own, so the coordinates of two clients cannot be averaged. Distances between
class means can be (:func:`average_relations`). Everything is computed in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.geometry.numerics import ratio
from isoproto.geometry.prototypes import ClassRows

ALTERNATIONS = 8

Weighting = Literal["counts", "uniform"]


class Relations(NamedTuple):
    """Squared distances between classes, averaged over clients.

    Attributes:
        distances: Squared distances, shape ``[C, C]``, float64, symmetric. Zero on the diagonal and for classes that
            are not present.
        seen: Pairs of classes that some client has held together, this round or before, shape ``[C, C]``, bool.
        present: Classes that some client has held, shape ``[C]``, bool.
    """

    distances: Tensor
    seen: Tensor
    present: Tensor


class _Pairs(NamedTuple):
    """The pairs ``i < j`` of classes that each client holds, of all clients one after the other; E pairs in all."""

    client: Tensor  # [E] index of the client
    cell: Tensor  # [E] i * C + j, the index of the pair in a flat [C, C] matrix
    distances: Tensor  # [E] squared distances
    inverse: Tensor  # [E] 1 / n_i + 1 / n_j


def average_relations(
    contributions: Sequence[ClassRows],
    scatters: Sequence[float],
    num_classes: int,
    *,
    debias: bool = True,
    weighting: Weighting = "counts",
    previous: Relations | None = None,
    minimum: int = 1,
) -> Relations:
    r"""Average the clients' squared distances between classes, each client on its own scale.

    .. math::
        D_k^{ij} = \max\bigl(0, \|P_k^i - P_k^j\|^2 - v_k (1/n_k^i + 1/n_k^j)\bigr), \qquad
        w_k^{ij} = \frac{2}{1/n_k^i + 1/n_k^j}

    .. math::
        \bar D = \frac{\sum_k w_k D_k / s_k}{\sum_k w_k}, \qquad
        s_k = \frac{\sum w_k D_k \bar D}{\sum w_k \bar D^2}

    The two lines are computed in turn; :math:`s_k` starts as the client's mean distance. The result does not change
    when a client's features are rotated, shifted or scaled.

    A client with two classes fits its scale to its only pair. So it does not influence the result, as it should be:
    any two points have the same shape. Dividing each client's distances by their mean would be simpler, but wrong for
    clients that hold neighbouring classes only.

    Args:
        contributions: The clients' class means, in a fixed order (sorted by client), so that the sum is the same to
            the last bit.
        scatters: For each client the variance :math:`v_k` of its features about their class means, summed over
            coordinates.
        num_classes: Number of classes C.
        debias: Subtract what the sampling noise of two means adds to their squared distance.
        weighting: ``counts`` weighs pairs by the formula. ``uniform`` gives every pair the weight 1 and subtracts no
            noise, for clients that withhold their counts.
        previous: The result of last round. Its values stay where this round has seen no pair. This round's distances
            are first brought to its scale, by means of the pairs that both rounds have seen.
        minimum: How many clients must hold a pair together. With fewer, the pair counts as not seen.

    Returns:
        Distances with mean 1 over the pairs seen. A pair never seen gets the mean. With no pair at all the classes
        form a simplex. A client whose distances are all zero is left out.

    Raises:
        ValueError: If there is not one scatter for each contribution.

    Example:
        The first client holds three points on a line, the second a copy of two of them that is four times as large:

        >>> def sent(ids, rows):
        ...     n = len(ids)
        ...     return ClassRows(torch.tensor(ids), torch.tensor(rows), torch.full((n,), 5), 5 * n)
        >>> clients = [sent([0, 1, 2], [[0.0], [1.0], [3.0]]), sent([0, 2], [[0.0], [12.0]])]
        >>> (14 / 3 * average_relations(clients, [0.0, 0.0], 3).distances).round(decimals=6)
        tensor([[0., 1., 9.],
                [1., 0., 4.],
                [9., 4., 0.]], dtype=torch.float64)
    """
    if len(scatters) != len(contributions):
        raise ValueError(
            f"average_relations: needs one scatter for each of the {len(contributions)} contributions, "
            f"got {len(scatters)}; send 0.0 for a client that has none"
        )
    pairs, weight = _held_pairs(contributions, num_classes, weighting)
    distances = pairs.distances
    if debias and weighting == "counts":
        noise = torch.tensor(scatters, dtype=torch.float64)[pairs.client] * pairs.inverse
        distances = (distances - noise).clamp(min=0)

    def per_client(values: Tensor) -> Tensor:
        return _sums(values, pairs.client, len(contributions))

    weight = _held_by(minimum, pairs, weight, num_classes**2)
    scale = ratio(per_client(weight * distances), per_client(weight))
    weight = _held_by(minimum, pairs, weight * (scale > 0)[pairs.client], num_classes**2)
    mass = _sums(weight, pairs.cell, num_classes**2)
    mean = mass
    for step in range(ALTERNATIONS):
        if step:
            fitted = mean[pairs.cell]
            scale = ratio(per_client(weight * distances * fitted), per_client(weight * fitted.square()))
        relative = ratio(weight * distances, scale[pairs.client])
        mean = ratio(_sums(relative, pairs.cell, num_classes**2), mass)
    return _completed(mean, mass > 0, _held(contributions, num_classes), previous, free_scale=True)


def average_dissimilarities(
    contributions: Sequence[ClassRows],
    num_classes: int,
    *,
    weighting: Weighting = "counts",
    previous: Relations | None = None,
    minimum: int = 1,
) -> Relations:
    r"""Average the clients' squared distances between the directions of their class means, for RCSA.

    .. math::
        \bar D^{ij} = \frac{\sum_k w_k^{ij} \, \|\hat P_k^i - \hat P_k^j\|^2}{\sum_k w_k^{ij}}

    Directions have no scale, so no scale is fitted. No noise is subtracted.

    Args:
        contributions: The clients' class means, in a fixed order (sorted by client).
        num_classes: Number of classes C.
        weighting: ``counts`` uses the weights :math:`w` of :func:`average_relations`, ``uniform`` the weight 1.
        previous: The result of last round. Its values stay where this round has seen no pair.
        minimum: How many clients must hold a pair together. With fewer, the pair counts as not seen.

    Returns:
        Distances in [0, 4]. A pair never seen gets the mean over the pairs seen. Class means of zero length have no
        direction, so they form no pair.

    Example:
        >>> one = ClassRows(torch.tensor([0, 2]), torch.tensor([[3.0, 0.0], [0.0, 5.0]]), torch.tensor([4, 4]), 8)
        >>> average_dissimilarities([one], 3).distances.round(decimals=6)
        tensor([[0., 0., 2.],
                [0., 0., 0.],
                [2., 0., 0.]], dtype=torch.float64)
    """
    with_direction = [_unit(c) for c in contributions]
    pairs, weight = _held_pairs(with_direction, num_classes, weighting)
    weight = _held_by(minimum, pairs, weight, num_classes**2)
    mass = _sums(weight, pairs.cell, num_classes**2)
    mean = ratio(_sums(weight * pairs.distances, pairs.cell, num_classes**2), mass)
    return _completed(mean, mass > 0, _held(contributions, num_classes), previous, free_scale=False)


def _unit(contribution: ClassRows) -> ClassRows:
    """Scale a client's class means to length 1, and leave out classes whose mean has length 0."""
    keep = contribution.rows.any(1)
    means = functional.normalize(contribution.rows[keep].double(), dim=1, eps=1e-300)
    return contribution._replace(class_ids=contribution.class_ids[keep], rows=means, counts=contribution.counts[keep])


def _held_pairs(contributions: Sequence[ClassRows], num_classes: int, weighting: Weighting) -> tuple[_Pairs, Tensor]:
    """Return the pairs of all clients one after the other, and their weights.

    Memory grows with the number of rows that were sent, not with N C^2 for N clients.
    """
    whole, real = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
    ids = torch.cat([whole, *(c.class_ids for c in contributions)])
    inverse = torch.cat([whole, *(c.counts for c in contributions)]).double().reciprocal()
    sizes = [len(c.class_ids) for c in contributions]
    corners = {size: torch.triu_indices(size, size, 1) for size in set(sizes)}
    starts = itertools.accumulate(sizes, initial=0)
    i, j = torch.cat([whole.view(2, 0), *(corners[s] + start for s, start in zip(sizes, starts, strict=False))], 1)
    entries = torch.tensor([corners[size].shape[1] for size in sizes], dtype=torch.int64)
    pairs = _Pairs(
        torch.arange(len(sizes)).repeat_interleave(entries),
        ids[i] * num_classes + ids[j],
        torch.cat([real, *(torch.pdist(c.rows.double()) for c in contributions)]).square(),
        inverse[i] + inverse[j],
    )
    return pairs, 2 / pairs.inverse if weighting == "counts" else torch.ones_like(pairs.inverse)


def _held_by(minimum: int, pairs: _Pairs, weight: Tensor, cells: int) -> Tensor:
    """Set the weight of a pair to 0 if fewer than ``minimum`` clients hold it with a weight above 0."""
    if minimum <= 1:
        return weight
    holders = torch.bincount(pairs.cell[weight > 0], minlength=cells)
    return weight * (holders >= minimum)[pairs.cell]


def _held(contributions: Sequence[ClassRows], num_classes: int) -> Tensor:
    """Return which classes some client holds, shape ``[C]``, bool."""
    ids = torch.cat([torch.zeros(0, dtype=torch.int64), *(c.class_ids for c in contributions)])
    return torch.bincount(ids, minlength=num_classes) > 0


def _sums(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum ``values`` ``[E]`` by ``index`` ``[E]``, shape ``[size]``, float64."""
    return torch.zeros(size, dtype=torch.float64).index_add_(0, index, values)


def _completed(
    mean: Tensor, seen: Tensor, present: Tensor, previous: Relations | None, *, free_scale: bool
) -> Relations:
    """Fill in the pairs that this round has not seen.

    Args:
        mean: Averaged distances, shape ``[C * C]``, zero except for pairs ``i < j``.
        seen: Pairs seen this round, shape ``[C * C]``, bool, for ``i < j`` only.
        present: Classes held this round, shape ``[C]``, bool.
        previous: The result of last round.
        free_scale: Whether only ratios of distances matter, so that they may be brought to one scale and to mean 1.
    """
    classes = len(present)
    mean, seen = mean.view(classes, classes), seen.view(classes, classes)
    mean, seen = mean + mean.T, seen | seen.T
    if previous is not None:
        common = seen & previous.seen
        if free_scale and common.any():
            new, old = mean[common], previous.distances[common]
            if (product := (new * old).sum()) > 0:
                mean = mean * (product / new.square().sum())
        mean = torch.where(seen, mean, previous.distances)
        seen, present = seen | previous.seen, present | previous.present
    average = mean[seen].mean() if seen.any() else torch.ones((), dtype=torch.float64)
    if free_scale:
        mean, average = mean / average, torch.ones_like(average)
    others = present.unsqueeze(1) & present & ~torch.eye(classes, dtype=torch.bool)
    return Relations(torch.where(seen, mean, torch.where(others, average, 0)), seen, present)


def centre(distances: Tensor, present: Tensor) -> Tensor:
    r"""Turn squared distances between classes into their centred Gram matrix.

    .. math::
        G = -\tfrac12 J D J, \qquad J = I - 1 1^T / C_g

    where only the :math:`C_g` classes present are counted.

    Args:
        distances: :math:`D`, shape ``[C, C]``, symmetric. Absent rows and columns are never read.
        present: Classes to read, shape ``[C]``, bool.

    Returns:
        The Gram matrix, shape ``[C, C]``, float64, zero in absent rows and columns. It may have negative eigenvalues,
        since there need not be points at these averaged distances.

    Example:
        >>> centre(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), torch.tensor([True, True]))
        tensor([[ 1., -1.],
                [-1.,  1.]], dtype=torch.float64)
    """
    return double_centred(-distances.double() / 2, present)


def double_centred(matrix: Tensor, present: Tensor) -> Tensor:
    """Return ``J matrix J`` ``[C, C]`` over the classes present. Absent rows and columns are not read and give zero."""
    j = _centring(present)
    return j @ torch.where(present.unsqueeze(1) & present, matrix, 0) @ j


def _centring(present: Tensor) -> Tensor:
    """Return the centring matrix J ``[C, C]`` of the classes present, zero in absent rows and columns."""
    mask = present.double()
    return torch.diag(mask) - mask.unsqueeze(1) * mask / mask.sum().clamp(min=1)


def shrink(gram: Tensor, beta: float, present: Tensor) -> Tensor:
    r"""Pull relations between classes towards the regular simplex, where all classes are equally far apart.

    .. math::
        \Gamma = (1 - \beta) \frac{G}{\mathrm{tr}\, G} + \beta \frac{J}{C_g - 1}

    Args:
        gram: Centred Gram matrix :math:`G`, shape ``[C, C]``, zero in absent rows and columns.
        beta: How far to pull, in [0, 1]. 1 gives the simplex whatever the relations are.
        present: Classes to read, shape ``[C]``, bool.

    Returns:
        The Gram matrix, shape ``[C, C]``, float64, with trace 1 (0 with fewer than two classes). If all classes
        coincide, it is the simplex for any beta.

    Example:
        >>> shrink(torch.diag(torch.tensor([0.0, 0.0, 7.0])), 1.0, torch.tensor([True, True, False]))
        tensor([[ 0.5000, -0.5000,  0.0000],
                [-0.5000,  0.5000,  0.0000],
                [ 0.0000,  0.0000,  0.0000]], dtype=torch.float64)
    """
    gram, j = gram.double(), _centring(present)
    simplex = j / (present.sum() - 1).clamp(min=1)
    trace = gram.trace()
    relations = gram / trace if trace > 0 else simplex
    return (1 - beta) * torch.where(present.unsqueeze(1) & present, relations, 0) + beta * simplex


def shrink_dissimilarities(distances: Tensor, beta: float, present: Tensor) -> Tensor:
    r"""Pull dissimilarities towards their mean: :math:`(1 - \beta) D + \beta \, \mathrm{mean}(D)` off the diagonal.

    Args:
        distances: ``Relations.distances`` of :func:`average_dissimilarities`, shape ``[C, C]``.
        beta: How far to pull, in [0, 1].
        present: Classes to read, shape ``[C]``, bool.

    Returns:
        Distances, shape ``[C, C]``, float64, zero on the diagonal and in absent rows and columns.

    Example:
        >>> shrink_dissimilarities(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), 0.5, torch.tensor([True, True]))
        tensor([[0., 2.],
                [2., 0.]], dtype=torch.float64)
    """
    pairs = present.unsqueeze(1) & present & ~torch.eye(len(present), dtype=torch.bool)
    kept = torch.where(pairs, distances.double(), 0)
    return (1 - beta) * kept + beta * pairs * (kept.sum() / pairs.sum().clamp(min=1))
