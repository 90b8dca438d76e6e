"""Similarity maps between feature spaces, and the average of clients' class means made with them.

Each network makes coordinates of its own, so the coordinates of two clients cannot be averaged. They can be after each
client is turned, scaled and shifted onto common coordinates (:func:`align`). Everything is computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isoproto.geometry.numerics import COINCIDE, decomposing, ratio, standardised
from isoproto.geometry.prototypes import ClassRows

RANK = 1e-5  # singular values below this share of the largest count as rounding noise of float32 prototypes
_AT_ONCE = 128  # clients whose small matrices are decomposed together: more would take memory and save no time


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    r"""A map between two feature spaces: a shift, a partial isometry and a scale.

    A partial isometry keeps lengths and angles in one subspace and maps everything orthogonal to it to zero.

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

        Within the span of the rows that made the map, this undoes :meth:`forward`. Any part outside is dropped.
        """
        centred = x - self.target_mean.to(x)
        return (centred @ self.right.T.to(x)) @ (self.left.T / self.scale).to(x) + self.source_mean.to(x)


def similarity_map(source: Tensor, target: Tensor, weights: Tensor) -> Similarity | None:
    r"""Return the similarity map that brings ``source`` closest to ``target``, row by row.

    .. math::
        \min_{R, s, \mu, \nu} \sum_c w_c \, \| (A_c - \mu) R s + \nu - B_c \|^2

    :math:`R` is a partial isometry: it may rotate and reflect, and it maps to zero what lies outside the span of the
    rows, since the rows do not say how to turn it. So R is unique where a full orthogonal matrix would not be. The
    method is weighted Procrustes analysis by the singular values of an ``[n, n]`` matrix. No matrix is ``[d, d]``.

    Args:
        source: :math:`A`, shape ``[n, d1]``.
        target: :math:`B`, shape ``[n, d2]``; the widths may differ.
        weights: :math:`w`, shape ``[n]``, >= 0. The sum does not matter.

    Returns:
        The map. ``None`` if there are fewer than two rows, if all rows of one side are the same point, or if the two
        sides have no direction in common.

    Raises:
        FrameError: If numbers are not finite, so that the matrix cannot be decomposed.

    Example:
        The target is the source turned by a quarter and twice as large:

        >>> a = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> b = torch.tensor([[5.0, 0.0], [5.0, 2.0], [3.0, 0.0]])
        >>> there = similarity_map(a, b, torch.ones(3))
        >>> there.forward(torch.tensor([1.0, 1.0])).round(), there.backward(torch.tensor([3.0, 2.0])).round()
        (tensor([3., 2.]), tensor([1., 1.]))
    """
    if len(source) < 2:
        return None
    with decomposing("similarity_map"):
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
    """The similarity maps of N pairs of matrices of equal shapes."""

    left: Tensor  # [N, d1, r]
    right: Tensor  # [N, r, d2]
    keep: Tensor  # [N, r] whether a direction is more than noise
    scale: Tensor  # [N]
    source_mean: Tensor  # [N, 1, d1]
    target_mean: Tensor  # [N, 1, d2]
    there: Tensor  # [N] whether there is a map

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[N, n, d1]`` to ``[N, n, d2]``."""
        factors = (self.keep * self.scale.unsqueeze(1)).unsqueeze(1)
        return ((x - self.source_mean) @ self.left * factors) @ self.right + self.target_mean


def _similarity_maps(source: Tensor, target: Tensor, weights: Tensor) -> _Maps:
    """Make N maps at once, from ``[N, n, d1]`` to ``[N, n, d2]`` with weights ``[N, n]``, n >= 2, all in float64."""
    share = ratio(weights, weights.sum(1, keepdim=True)).unsqueeze(2)
    source_mean, target_mean = ((share * x).sum(1, keepdim=True) for x in (source, target))
    a, b = share.sqrt() * (source - source_mean), share.sqrt() * (target - target_mean)
    a_energy, b_energy = (x.square().sum((1, 2)) for x in (a, b))
    there = (a_energy > COINCIDE * (share * source.square()).sum((1, 2))) & (
        b_energy > COINCIDE * (share * target.square()).sum((1, 2))
    )
    # The SVD of A^T B [d1, d2] follows from the SVD of a product of triangular factors, which is at most [n, n].
    (q_a, r_a), (q_b, r_b) = _factors(a), _factors(b)
    u, sigma, vh = torch.linalg.svd(r_a @ r_b.mT, full_matrices=False)
    largest = sigma[:, :1]
    there &= largest[:, 0] > RANK * (a_energy * b_energy).sqrt()
    left, right = u if q_a is None else q_a @ u, vh if q_b is None else vh @ q_b.mT
    return _Maps(left, right, sigma > RANK * largest, sigma.sum(1) / a_energy, source_mean, target_mean, there)


def _factors(x: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the QR factors of ``x^T`` for ``x`` ``[N, n, d]``; ``(None, x^T)`` where R would not be smaller."""
    if x.shape[2] <= x.shape[1]:
        return None, x.mT
    q, r = torch.linalg.qr(x.mT)
    return q, r


class Aligned(NamedTuple):
    """Global prototypes in the server's frame.

    Attributes:
        vectors: One row per class, shape ``[C, d]``, float32. Centred, with root-mean-square length 1; rows of absent
            classes are zero.
        present: Classes that have a prototype, shape ``[C]``, bool.
    """

    vectors: Tensor
    present: Tensor


def align(
    contributions: Sequence[ClassRows], reference: Tensor, present: Tensor, *, iterations: int = 2, minimum: int = 1
) -> Aligned:
    r"""Average the clients' class means in one frame: generalised Procrustes analysis.

    .. math::
        P_g^c = \frac{\sum_k n_k^c \, T_k(P_k^c)}{\sum_k n_k^c}

    :math:`T_k` is the :func:`similarity_map` of client k's class means onto the last :math:`P_g`. The average is
    centred and scaled to unit radius in each iteration; otherwise the frame would shrink a little every round. The
    result stays in the row space of ``reference``. So only a projection of a new class is seen, until the reference
    is made anew by ``embed(..., onto=reference)``.

    Args:
        contributions: The clients' class means, in a fixed order so that sums are the same to the last bit. A client
            that shares fewer than two classes with the reference is left out.
        reference: The result of last round, shape ``[C, d]``. In the first round, the result of ``embed``.
        present: Classes that have a row in the reference, shape ``[C]``, bool. Other rows are never read.
        iterations: How often to align and average. Two are enough from last round's result, eight from an embedding.
        minimum: How many aligned clients a class needs to get a new row, >= 1.

    Returns:
        The average. A class with too few aligned clients keeps its row of the reference.

    Raises:
        FrameError: If numbers are not finite, so that a matrix cannot be decomposed.

    Example:
        The client's class means are the reference turned by a quarter. Turned back, they agree with it:

        >>> reference, ids = torch.tensor([[0.6, 0.8], [-0.8, 0.6], [-0.6, -0.8], [0.8, -0.6]]), torch.arange(4)
        >>> turned = reference @ torch.tensor([[0.0, 2.0], [-2.0, 0.0]])
        >>> aligned = align([ClassRows(ids, turned, torch.full((4,), 9), 36)], reference, torch.tensor([True] * 4))
        >>> torch.allclose(aligned.vectors, reference)
        True
    """
    with decomposing("align"):
        # Every map acts within the row spaces of the client and of the reference, so coordinates there are enough.
        basis, triangle = torch.linalg.qr(torch.where(present.unsqueeze(1), reference, 0).double().T)
        vectors = triangle.T.contiguous()  # [C, min(C, d)]
        batches = list(_batches(contributions))
        for _ in range(iterations):
            total, weight = torch.zeros_like(vectors), torch.zeros(len(vectors), dtype=torch.float64)
            holders = torch.zeros(len(vectors), dtype=torch.int64)
            for ids, rows, counts in batches:
                # A class that the reference lacks gets weight 0, so it does not change the map.
                maps = _similarity_maps(rows, vectors[ids], counts * present[ids])
                there = maps.there
                weighted = counts.unsqueeze(2) * maps.forward(rows)
                total.index_add_(0, ids[there].flatten(), weighted[there].flatten(0, 1))
                weight.index_add_(0, ids[there].flatten(), counts[there].flatten())
                holders += torch.bincount(ids[there].flatten(), minlength=len(vectors))
            aligned = holders >= minimum
            vectors = torch.where(aligned.unsqueeze(1), ratio(total, weight.unsqueeze(1)), vectors)
            present = present | aligned
            vectors = standardised(vectors, present)
        return Aligned((vectors @ basis.T).float(), present)


def _batches(contributions: Sequence[ClassRows]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield classes ``[N, n]``, means ``[N, n, m]`` and counts ``[N, n]`` of N clients that hold n classes each.

    The means of a client are rotated into ``m <= n`` coordinates, which keeps their inner products. Clients with
    fewer than two classes are left out.
    """
    alike: dict[int, list[ClassRows]] = {}
    for contribution in contributions:
        alike.setdefault(len(contribution.class_ids), []).append(contribution)
    for rows, clients in alike.items():
        for start in range(0, len(clients) if rows > 1 else 0, _AT_ONCE):
            ids, means, counts, _ = zip(*clients[start : start + _AT_ONCE], strict=True)
            stacked = torch.stack(means).double()
            if rows < stacked.shape[2]:
                stacked = torch.linalg.qr(stacked.mT, mode="r").R.mT
            yield torch.stack(ids), stacked, torch.stack(counts).double()
