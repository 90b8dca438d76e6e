"""Relations between classes: what clients whose feature spaces have nothing to do with one another can average.

Coordinates of two clients cannot be averaged: each network makes its own. What can be averaged are distances between
class means (:func:`average_relations`). Everything is computed in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.geometry.numerics import ratio
from isoproto.geometry.prototypes import Contribution

ALTERNATIONS = 8

Weighting = Literal["counts", "uniform"]


class Relations(NamedTuple):
    """Squared distances between classes, averaged over clients.

    Attributes:
        distances: Shape ``[C, C]``, float64, symmetric; zero on the diagonal and for classes that are not present.
        seen: Pairs that some client has held together, this round or before, shape ``[C, C]``, bool.
        present: Classes that some client has held, shape ``[C]``, bool.
    """

    distances: Tensor
    seen: Tensor
    present: Tensor


class _Pairs(NamedTuple):
    """Pairs of classes held together, one entry for each client and pair ``i < j``; E entries in all."""

    client: Tensor  # [E] position in the sequence of clients
    cell: Tensor  # [E] i * C + j
    distances: Tensor  # [E] squared
    inverse: Tensor  # [E] 1 / n_i + 1 / n_j


def average_relations(
    contributions: Sequence[Contribution],
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

    in turn, :math:`s_k` starting from the client's mean distance. No rotation, shift or scale of a client changes
    the result. A client with two classes fits its scale to its only pair and so says nothing, as it should: two
    points have one shape. (Dividing each client by its own mean distance would be wrong for those that hold
    neighbouring classes only.)

    Args:
        contributions: In a fixed order (sorted by client), so that the sum is the same to the last bit.
        scatters: Variance :math:`v_k` of a client's features about their class means, summed over coordinates.
        num_classes: C.
        debias: Subtract what the sampling noise of two means adds to their squared distance.
        weighting: ``uniform`` takes every pair with weight 1 and subtracts nothing, for clients that withhold counts.
        previous: Last round's result, whose values stay where this round has seen no pair. This round's are put on
            its scale by the pairs that both have seen.
        minimum: Clients that must hold a pair together; with fewer it counts as not seen.

    Returns:
        Distances with mean 1 over the pairs seen. A pair never seen has the mean; with no pair at all the classes
        form a simplex. A client whose distances are all zero is left out.

    Raises:
        ValueError: If there is not one scatter for each contribution.

    Example:
        Three points on a line and a copy of two of them, four times as large (sixteen times in squares):

        >>> def sent(ids, rows):
        ...     n = len(ids)
        ...     return Contribution(torch.tensor(ids), torch.tensor(rows), torch.full((n,), 5), 5 * n)
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
    contributions: Sequence[Contribution],
    num_classes: int,
    *,
    weighting: Weighting = "counts",
    previous: Relations | None = None,
    minimum: int = 1,
) -> Relations:
    r"""Average the clients' squared distances between the directions of their class means, for RCSA.

    .. math::
        \bar D^{ij} = \frac{\sum_k w_k^{ij} \, \|\hat P_k^i - \hat P_k^j\|^2}{\sum_k w_k^{ij}}

    Lengths have gone from directions already, so there is no scale to fit, and no noise is subtracted.

    Args:
        contributions: As for :func:`average_relations`.
        num_classes: C.
        weighting: Likewise.
        previous: Likewise, without a change of scale.
        minimum: Likewise.

    Returns:
        Values in [0, 4]. A pair never seen has the mean over those seen. Means of zero length have no direction and
        make no pair.

    Example:
        >>> one = Contribution(torch.tensor([0, 2]), torch.tensor([[3.0, 0.0], [0.0, 5.0]]), torch.tensor([4, 4]), 8)
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


def _unit(contribution: Contribution) -> Contribution:
    """The same with means of length 1, without those of length 0."""
    keep = contribution.means.any(1)
    means = functional.normalize(contribution.means[keep].double(), dim=1, eps=1e-300)
    return contribution._replace(class_ids=contribution.class_ids[keep], means=means, counts=contribution.counts[keep])


def _held_pairs(contributions: Sequence[Contribution], num_classes: int, weighting: Weighting) -> tuple[_Pairs, Tensor]:
    """All pairs of all clients end to end, and their weights: memory goes with what was sent, not with N C^2."""
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
        torch.cat([real, *(torch.pdist(c.means.double()) for c in contributions)]).square(),
        inverse[i] + inverse[j],
    )
    return pairs, 2 / pairs.inverse if weighting == "counts" else torch.ones_like(pairs.inverse)


def _held_by(minimum: int, pairs: _Pairs, weight: Tensor, cells: int) -> Tensor:
    """The weights, 0 for a pair that fewer clients hold together with any weight."""
    if minimum <= 1:
        return weight
    holders = torch.bincount(pairs.cell[weight > 0], minlength=cells)
    return weight * (holders >= minimum)[pairs.cell]


def _held(contributions: Sequence[Contribution], num_classes: int) -> Tensor:
    ids = torch.cat([torch.zeros(0, dtype=torch.int64), *(c.class_ids for c in contributions)])
    return torch.bincount(ids, minlength=num_classes) > 0


def _sums(values: Tensor, index: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.float64).index_add_(0, index, values)


def _completed(
    mean: Tensor, seen: Tensor, present: Tensor, previous: Relations | None, *, free_scale: bool
) -> Relations:
    """Fill in the pairs that this round has not seen; ``mean`` and ``seen`` ``[C * C]`` hold pairs ``i < j``."""
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
    r"""Return the centred Gram matrix of classes at these squared distances.

    .. math::
        G = -\tfrac12 J D J, \qquad J = I - 1 1^T / C_g

    over the :math:`C_g` classes present.

    Args:
        distances: :math:`D`, shape ``[C, C]``, symmetric. Absent rows and columns are never read.
        present: Shape ``[C]``, bool.

    Returns:
        Shape ``[C, C]``, float64; zero in absent rows and columns. Not always positive: averaged distances need not
        be those of any points.

    Example:
        >>> centre(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), torch.tensor([True, True]))
        tensor([[ 1., -1.],
                [-1.,  1.]], dtype=torch.float64)
    """
    return double_centred(-distances.double() / 2, present)


def double_centred(matrix: Tensor, present: Tensor) -> Tensor:
    """``J matrix J`` over the classes present, ``[C, C]``; zero in absent rows and columns, which are never read."""
    j = _centring(present)
    return j @ torch.where(present.unsqueeze(1) & present, matrix, 0) @ j


def _centring(present: Tensor) -> Tensor:
    mask = present.double()
    return torch.diag(mask) - mask.unsqueeze(1) * mask / mask.sum().clamp(min=1)


def shrink(gram: Tensor, beta: float, present: Tensor) -> Tensor:
    r"""Pull relations towards the regular simplex.

    .. math::
        \Gamma = (1 - \beta) \frac{G}{\mathrm{tr}\, G} + \beta \frac{J}{C_g - 1}

    Args:
        gram: Centred Gram matrix :math:`G`, shape ``[C, C]``, zero in absent rows and columns.
        beta: In [0, 1]; 1 is the plain simplex, whatever the relations.
        present: Shape ``[C]``, bool.

    Returns:
        Shape ``[C, C]``, float64, of trace 1 (0 below two classes). The simplex too if all classes coincide.

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
        distances: ``Relations.distances``, shape ``[C, C]``.
        beta: In [0, 1].
        present: Shape ``[C]``, bool.

    Returns:
        Shape ``[C, C]``, float64; zero on the diagonal and in absent rows and columns.

    Example:
        >>> shrink_dissimilarities(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), 0.5, torch.tensor([True, True]))
        tensor([[0., 2.],
                [2., 0.]], dtype=torch.float64)
    """
    pairs = present.unsqueeze(1) & present & ~torch.eye(len(present), dtype=torch.bool)
    kept = torch.where(pairs, distances.double(), 0)
    return (1 - beta) * kept + beta * pairs * (kept.sum() / pairs.sum().clamp(min=1))
