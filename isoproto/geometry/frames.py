"""A common frame for clients whose feature spaces have nothing to do with one another.

Coordinates of two clients cannot be averaged: each network makes its own. What can be averaged are distances between
class means (:func:`average_relations`), and coordinates after a similarity map onto common ones (:func:`align`).
Everything is computed in float64.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.errors import FrameError
from isoproto.geometry.prototypes import Contribution

RANK = 1e-5  # singular values below this share of the largest are taken for rounding noise of float32 prototypes
COINCIDE = 1e-12  # ratio of squared lengths below which rows are taken for one point
ALTERNATIONS = 8
_AT_ONCE = 128  # clients of one batch of small decompositions: more take memory and save no time

Weighting = Literal["counts", "uniform"]


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    r"""A map between two feature spaces: shift, partial isometry, scale.

    Attributes:
        left: First factor of the partial isometry :math:`R`, shape ``[d1, r]``, orthonormal columns, float64.
        right: Second factor, shape ``[r, d2]``, orthonormal rows; ``R = left @ right``.
        scale: :math:`s`, > 0.
        source_mean: :math:`\mu`, shape ``[d1]``.
        target_mean: :math:`\nu`, shape ``[d2]``.
    """

    left: Tensor
    right: Tensor
    scale: float
    source_mean: Tensor
    target_mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        r"""Map ``x`` ``[..., d1]`` to :math:`(x - \mu) R s + \nu`, in the precision and on the device of ``x``."""
        centred = x - self.source_mean.to(x)
        return (centred @ self.left.to(x)) @ (self.scale * self.right).to(x) + self.target_mean.to(x)

    def backward(self, x: Tensor) -> Tensor:
        r"""Map ``x`` ``[..., d2]`` to :math:`(x - \nu) R^T / s + \mu`.

        Undoes :meth:`forward` within the span of the rows that made the map; what lies outside is dropped.
        """
        centred = x - self.target_mean.to(x)
        return (centred @ self.right.T.to(x)) @ (self.left.T / self.scale).to(x) + self.source_mean.to(x)


def similarity_map(source: Tensor, target: Tensor, weights: Tensor) -> Similarity | None:
    r"""Return the similarity map that brings ``source`` closest to ``target``, row by row.

    .. math::
        \min_{R, s, \mu, \nu} \sum_c w_c \, \| (A_c - \mu) R s + \nu - B_c \|^2

    with a partial isometry :math:`R`: rotation, reflection, and nothing outside the span of the rows, where no row
    tells how to turn. So R is unique where a full orthogonal matrix is not. Weighted Procrustes analysis by the
    singular values of an ``[n, n]`` matrix; nothing is ``[d, d]``.

    Args:
        source: :math:`A`, shape ``[n, d1]``.
        target: :math:`B`, shape ``[n, d2]``; the widths may differ.
        weights: :math:`w`, shape ``[n]``, >= 0, of any sum.

    Returns:
        The map; ``None`` if there is none: fewer than two rows, all rows of either side at one point, or two sides
        that have no direction in common.

    Raises:
        FrameError: If numbers are not finite, so that nothing can be decomposed.

    Example:
        A quarter turn, twice as large:

        >>> a = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> b = torch.tensor([[5.0, 0.0], [5.0, 2.0], [3.0, 0.0]])
        >>> there = similarity_map(a, b, torch.ones(3))
        >>> there.forward(torch.tensor([1.0, 1.0])).round(), there.backward(torch.tensor([3.0, 2.0])).round()
        (tensor([3., 2.]), tensor([1., 1.]))
    """
    if len(source) < 2:
        return None
    with _decomposing("similarity_map"):
        maps = _similarity_maps(
            source.double().unsqueeze(0), target.double().unsqueeze(0), weights.double().unsqueeze(0)
        )
    if not maps.there:
        return None
    keep = maps.keep[0]
    return Similarity(
        maps.left[0, :, keep], maps.right[0, keep], float(maps.scale), maps.source_mean[0, 0], maps.target_mean[0, 0]
    )


class _Maps(NamedTuple):
    """What :func:`similarity_map` returns, for N pairs of matrices of equal shapes."""

    left: Tensor  # [N, d1, r]
    right: Tensor  # [N, r, d2]
    keep: Tensor  # [N, r] which of the r directions are more than noise
    scale: Tensor  # [N]
    source_mean: Tensor  # [N, 1, d1]
    target_mean: Tensor  # [N, 1, d2]
    there: Tensor  # [N] whether there is a map

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[N, n, d1]``."""
        factors = (self.keep * self.scale.unsqueeze(1)).unsqueeze(1)
        return ((x - self.source_mean) @ self.left * factors) @ self.right + self.target_mean


def _similarity_maps(source: Tensor, target: Tensor, weights: Tensor) -> _Maps:
    """Make N maps at once, of ``[N, n, d1]`` to ``[N, n, d2]`` with weights ``[N, n]``, n >= 2, all in float64."""
    share = _ratio(weights, weights.sum(1, keepdim=True)).unsqueeze(2)
    source_mean, target_mean = ((share * x).sum(1, keepdim=True) for x in (source, target))
    a, b = share.sqrt() * (source - source_mean), share.sqrt() * (target - target_mean)
    a_energy, b_energy = (x.square().sum((1, 2)) for x in (a, b))
    there = (a_energy > COINCIDE * (share * source.square()).sum((1, 2))) & (
        b_energy > COINCIDE * (share * target.square()).sum((1, 2))
    )
    # The SVD of A^T B [d1, d2] is that of a product of triangular factors, at most [n, n].
    (q_a, r_a), (q_b, r_b) = _factors(a), _factors(b)
    u, sigma, vh = torch.linalg.svd(r_a @ r_b.mT, full_matrices=False)
    largest = sigma[:, :1]
    there &= largest[:, 0] > RANK * (a_energy * b_energy).sqrt()
    left, right = u if q_a is None else q_a @ u, vh if q_b is None else vh @ q_b.mT
    return _Maps(left, right, sigma > RANK * largest, sigma.sum(1) / a_energy, source_mean, target_mean, there)


def _factors(x: Tensor) -> tuple[Tensor | None, Tensor]:
    """QR of ``x^T``, for ``x`` ``[N, n, d]``; where it would make nothing smaller, ``x^T`` itself."""
    if x.shape[2] <= x.shape[1]:
        return None, x.mT
    q, r = torch.linalg.qr(x.mT)
    return q, r


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
    scale = _ratio(per_client(weight * distances), per_client(weight))
    weight = _held_by(minimum, pairs, weight * (scale > 0)[pairs.client], num_classes**2)
    mass = _sums(weight, pairs.cell, num_classes**2)
    mean = mass
    for step in range(ALTERNATIONS):
        if step:
            fitted = mean[pairs.cell]
            scale = _ratio(per_client(weight * distances * fitted), per_client(weight * fitted.square()))
        relative = _ratio(weight * distances, scale[pairs.client])
        mean = _ratio(_sums(relative, pairs.cell, num_classes**2), mass)
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
    mean = _ratio(_sums(weight * pairs.distances, pairs.cell, num_classes**2), mass)
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


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """``a / b``, 0 where ``b`` is."""
    return torch.where(b != 0, a / torch.where(b != 0, b, 1), 0)


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
    return _double_centred(-distances.double() / 2, present)


def _double_centred(matrix: Tensor, present: Tensor) -> Tensor:
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


class Embedding(NamedTuple):
    """Classes as points.

    Attributes:
        vectors: Shape ``[C, d]``, float32; centred, root-mean-square length 1; zero for absent classes.
        cut: Share of the negative eigenvalues in the sum of all sizes, in [0, 1].
    """

    vectors: Tensor
    cut: float


def embed(gram: Tensor, present: Tensor, width: int, *, onto: Tensor | None = None) -> Embedding:
    r"""Make points of relations: classical multidimensional scaling.

    .. math::
        G = V \Lambda V^T, \qquad X = V \sqrt{\max(\Lambda, 0)}

    with the ``width`` largest eigenvalues, padded with zeros if there are fewer. Eigenvectors have arbitrary signs
    and mix freely where eigenvalues agree, so :math:`X` is turned onto earlier points, lest anchors jump between
    rounds. The turn has no scale and no shift, and is complete: classes that the earlier points lack keep their
    place among the others (the partial isometry of :func:`similarity_map` would flatten them).

    Args:
        gram: Gram matrix of the classes, shape ``[C, C]``; it is centred here. Absent rows and columns are never read.
        present: Shape ``[C]``, bool.
        width: d.
        onto: Earlier points, shape ``[C, d]``; zero rows where there was none.

    Returns:
        The points, and how much of the matrix no points can express.

    Raises:
        FrameError: If the matrix is not finite or its eigenvalues cannot be found.

    Example:
        >>> gram = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        >>> present = torch.tensor([True, True, False])
        >>> earlier = torch.tensor([[0.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
        >>> embed(gram, present, 2, onto=earlier).vectors.round()
        tensor([[ 0.,  1.],
                [ 0., -1.],
                [ 0.,  0.]])
    """
    gram = _double_centred(gram.double(), present)
    try:
        values, axes = torch.linalg.eigh(gram)
    except RuntimeError as err:  # LinAlgError: no convergence, or numbers that are not finite
        raise FrameError(
            f"embed: the relations of {int(present.sum())} classes have no eigenvalues ({err}); keep last round's "
            f"frame, and look for a client whose prototypes are not finite or grow without bound"
        ) from err
    cut = float(_ratio(values.clamp(max=0).abs().sum(), values.abs().sum()))
    size = min(width, len(values))
    vectors = axes.flip(1)[:, :size] * values.flip(0)[:size].clamp(min=0).sqrt()
    vectors = _standardised(vectors, present)
    if onto is None:
        vectors = functional.pad(vectors, (0, width - size))
    else:
        with _decomposing("embed"):
            u, _, vh = torch.linalg.svd(vectors.T @ onto.double(), full_matrices=False)  # [size, size], [size, d]
        vectors = vectors @ u @ vh
    return Embedding(vectors.float(), cut)


def _standardised(vectors: Tensor, present: Tensor) -> Tensor:
    """Present rows centred, with root-mean-square length 1; absent rows zero."""
    mask, count = present.unsqueeze(1), present.sum().clamp(min=1)
    vectors = torch.where(mask, vectors, 0)
    energy = vectors.square().sum()
    vectors = torch.where(mask, vectors - vectors.sum(0) / count, 0)
    left = vectors.square().sum()
    return _ratio(vectors, (left / count).sqrt() * (left > COINCIDE * energy))


class Aligned(NamedTuple):
    """Global prototypes in the server's frame.

    Attributes:
        vectors: Shape ``[C, d]``, float32; centred, root-mean-square length 1; zero for absent classes.
        present: Classes that have one, shape ``[C]``, bool.
    """

    vectors: Tensor
    present: Tensor


def align(
    contributions: Sequence[Contribution], reference: Tensor, present: Tensor, *, iterations: int = 2, minimum: int = 1
) -> Aligned:
    r"""Average the clients' class means in one frame: generalised Procrustes analysis.

    .. math::
        P_g^c = \frac{\sum_k n_k^c \, T_k(P_k^c)}{\sum_k n_k^c}

    where :math:`T_k` is the :func:`similarity_map` of client k's class means onto the last :math:`P_g`. Centred and
    scaled to unit radius each time, otherwise the frame would shrink a little every round. The result stays in the
    row space of ``reference``: a class that comes later is seen in projection only, until the reference is made anew
    by ``embed(..., onto=reference)``.

    Args:
        contributions: In a fixed order. A client that shares fewer than two classes with the reference is left out.
        reference: Last round's result, shape ``[C, d]``; before there is one, ``embed``'s.
        present: Classes that have a row in it, shape ``[C]``, bool. Other rows are never read.
        iterations: Two from last round's result, eight from an embedding.
        minimum: Aligned clients that a class must have, >= 1.

    Returns:
        The average; a class with fewer aligned clients keeps its row of the reference.

    Raises:
        FrameError: If numbers are not finite, so that nothing can be decomposed.

    Example:
        A client that is turned by a quarter agrees with the reference once turned back:

        >>> reference, ids = torch.tensor([[0.6, 0.8], [-0.8, 0.6], [-0.6, -0.8], [0.8, -0.6]]), torch.arange(4)
        >>> turned = reference @ torch.tensor([[0.0, 2.0], [-2.0, 0.0]])
        >>> aligned = align([Contribution(ids, turned, torch.full((4,), 9), 36)], reference, torch.tensor([True] * 4))
        >>> torch.allclose(aligned.vectors, reference)
        True
    """
    with _decomposing("align"):
        # Every map acts within the row spaces of the client and of the reference: their coordinates there will do.
        basis, triangle = torch.linalg.qr(torch.where(present.unsqueeze(1), reference, 0).double().T)
        vectors = triangle.T.contiguous()  # [C, min(C, d)]
        batches = list(_batches(contributions))
        for _ in range(iterations):
            total, weight = torch.zeros_like(vectors), torch.zeros(len(vectors), dtype=torch.float64)
            holders = torch.zeros(len(vectors), dtype=torch.int64)
            for ids, rows, counts in batches:
                # A row of weight 0 has no part in the map.
                maps = _similarity_maps(rows, vectors[ids], counts * present[ids])
                there = maps.there
                weighted = counts.unsqueeze(2) * maps.forward(rows)
                total.index_add_(0, ids[there].flatten(), weighted[there].flatten(0, 1))
                weight.index_add_(0, ids[there].flatten(), counts[there].flatten())
                holders += torch.bincount(ids[there].flatten(), minlength=len(vectors))
            aligned = holders >= minimum
            vectors = torch.where(aligned.unsqueeze(1), _ratio(total, weight.unsqueeze(1)), vectors)
            present = present | aligned
            vectors = _standardised(vectors, present)
        return Aligned((vectors @ basis.T).float(), present)


@contextlib.contextmanager
def _decomposing(what: str) -> Iterator[None]:
    """Name what cannot be decomposed."""
    try:
        yield
    except torch.linalg.LinAlgError as err:  # type: ignore[attr-defined]
        raise FrameError(
            f"{what}: class means cannot be decomposed ({err}); look for a client whose prototypes are not finite or "
            "grow without bound"
        ) from err


def _batches(contributions: Sequence[Contribution]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield classes, means and counts of clients with equally many classes, ``[N, n]``, ``[N, n, m]``, ``[N, n]``.

    The means are rotated: only what they look like to one another is left, ``m <= n`` coordinates. A client with fewer
    than two classes is in none of the batches.
    """
    alike: dict[int, list[Contribution]] = {}
    for contribution in contributions:
        alike.setdefault(len(contribution.class_ids), []).append(contribution)
    for rows, clients in alike.items():
        for start in range(0, len(clients) if rows > 1 else 0, _AT_ONCE):
            ids, means, counts, _ = zip(*clients[start : start + _AT_ONCE], strict=True)
            stacked = torch.stack(means).double()
            if rows < stacked.shape[2]:
                stacked = torch.linalg.qr(stacked.mT, mode="r").R.mT
            yield torch.stack(ids), stacked, torch.stack(counts).double()
