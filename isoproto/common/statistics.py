r"""Class sums and scatter of a client's samples in the common frame. They add up exactly over clients.

.. math::
    s_{kc} = \sum_{i: y_i = c} \phi_i, \qquad
    W_k = \sum_i \phi_i \phi_i^\top - \sum_c \frac{s_{kc} s_{kc}^\top}{n_{kc}}

    W = \sum_k W_k + \sum_k \sum_c n_{kc} (m_{kc} - m_c)(m_{kc} - m_c)^\top

The total does not depend on how samples are dealt to clients, nor on the order in which clients are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Rows and columns that are multiplied at once when scatter is summed.
_ROWS, _COLUMNS = 4096, 192
# How many more directions than are sent the search for the leading ones follows, and how often it repeats.
_SPARE, _SWEEPS = 16, 4


class Block(NamedTuple):
    r"""Statistics of some samples, as they travel.

    Attributes:
        class_ids: The classes that the samples have, ascending, ``[K]``, int64.
        counts: Number of samples of each, ``[K]``, int64.
        sums: Sum of the samples of each, ``[K, D]``.
        factor: Rows :math:`F`, ``[R, D]``, of the scatter :math:`W \approx F^\top F + \rho I`.
        floor: :math:`\rho`, the mean of the scatter's eigenvalues that are not in ``factor``; 0 if all are.
    """

    class_ids: Tensor
    counts: Tensor
    sums: Tensor
    factor: Tensor
    floor: float

    @classmethod
    def of(cls, phi: Tensor, labels: Tensor, rank: int = 0) -> Block:
        r"""Summarise samples.

        Scatter goes by its ``rank`` leading directions :math:`q_j` with eigenvalues :math:`\lambda_j`. The rest of its
        trace is spread evenly over the other directions: with :math:`\rho` their mean eigenvalue,

        .. math::
            W \approx \sum_j (\lambda_j - \rho)\, q_j q_j^\top + \rho I

        Args:
            phi: Coordinates of n samples in V versions each, ``[n, V, D]``. The versions of a sample share its weight.
            labels: Classes, ``[n]``, int64.
            rank: Number of leading directions; 0 sends the whole scatter.

        Example:
            >>> block = Block.of(torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]], [[0.0, 5.0]]]), torch.tensor([4, 4, 7]))
            >>> block.class_ids.tolist(), block.counts.tolist(), block.sums.tolist()
            ([4, 7], [2, 1], [[4.0, 0.0], [0.0, 5.0]])
            >>> (block.factor.T @ block.factor).round(decimals=5).tolist()
            [[2.0, 0.0], [0.0, 0.0]]
        """
        ids, position = labels.unique(return_inverse=True)
        counts = torch.bincount(position, minlength=len(ids))
        versions, width = phi.shape[1:]
        sums = phi.new_zeros(len(ids), width).index_add_(0, position, phi.mean(1))
        means = sums / counts.unsqueeze(1)
        centred = ((phi - means[position].unsqueeze(1)) / versions**0.5).flatten(0, 1)
        factor, floor = _factor(centred, rank)
        return cls(ids, counts, sums, factor, floor)

    def rows(self) -> Tensor:
        """Return rows ``F`` ``[R + K, D]``, float64: ``F.T @ F`` is the samples' second moment, but for ``floor``."""
        return torch.cat([self.factor.double(), self.sums.double() / self.counts.double().unsqueeze(1).sqrt()])


def _factor(centred: Tensor, rank: int) -> tuple[Tensor, float]:
    """Return rows ``F`` for which ``F.T @ F`` is the scatter of ``centred``, but for the floor, which comes second."""
    rows, width = centred.shape
    if not rank or rank >= min(rows, width):
        return torch.linalg.qr(centred, mode="r").R, 0.0  # as good as the samples, and not the samples themselves
    values, directions = _leading(centred, rank)
    rest = max(0.0, float(centred.square().sum() - values.sum())) / (width - rank)
    rest = min(rest, float(values.min()))
    return (values - rest).clamp(min=0).sqrt().unsqueeze(1) * directions, rest


def _leading(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the ``rank`` largest eigenvalues of ``rows.T @ rows``, and their directions ``[rank, D]``."""
    generator = torch.Generator().manual_seed(0)
    few = min(rank + _SPARE, *rows.shape)
    basis = torch.randn(rows.shape[1], few, generator=generator, dtype=rows.dtype)
    for _ in range(_SWEEPS):
        basis = torch.linalg.qr(rows.T @ (rows @ basis)).Q
    _, singular, right = torch.linalg.svd(rows @ basis, full_matrices=False)
    return singular[:rank].square(), right[:rank] @ basis.T


class Totals(NamedTuple):
    """The sum of blocks.

    Attributes:
        counts: Samples of each class, ``[C]``, float64.
        sums: Sum of the samples of each class, ``[C, D]``, float64.
        scatter: :math:`W`, ``[D, D]``, float64.
    """

    counts: Tensor
    sums: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, phi: Tensor, labels: Tensor, num_classes: int) -> Totals:
        """Return the totals of one client's samples ``[n, V, D]``; see :class:`Block` for the arguments.

        The numbers have the type of ``phi``.
        """
        return cls.of_moment(phi, labels, num_classes, _moment(phi))

    @classmethod
    def of_moment(cls, phi: Tensor, labels: Tensor, num_classes: int, moment: Tensor) -> Totals:
        r"""Return the totals of samples ``[n, V, D]`` whose second moment is known.

        Args:
            phi: The samples.
            labels: Classes, ``[n]``, int64.
            num_classes: Number of classes C.
            moment: Their second moment :math:`\sum_i \phi_i \phi_i^\top`, ``[D, D]``.
        """
        counts = torch.bincount(labels, minlength=num_classes).to(phi.dtype)
        sums = phi.new_zeros(num_classes, phi.shape[2]).index_add_(0, labels, phi.mean(1))
        rows = sums / counts.clamp(min=1).unsqueeze(1).sqrt()
        return cls(counts, sums, moment - rows.T @ rows)

    @property
    def moment(self) -> Tensor:
        r"""Second moment of all samples, :math:`\sum_i \phi_i \phi_i^\top`, ``[D, D]``."""
        rows = self.sums / self.counts.clamp(min=1).unsqueeze(1).sqrt()
        return self.scatter + rows.T @ rows


def _moment(phi: Tensor) -> Tensor:
    rows = phi.flatten(0, 1)
    return rows.T @ rows / phi.shape[1]


def moments(phi: Tensor, groups: Tensor, number: int) -> Tensor:
    """Return the second moment of the samples of each group, ``[number, D, D]``.

    Args:
        phi: Samples in V versions, ``[n, V, D]``.
        groups: Group of each sample, ``[n]``, int64.
        number: Number of groups.
    """
    return torch.stack([_moment(phi[groups == group]) for group in range(number)])


def total(blocks: Sequence[Block], num_classes: int, width: int) -> Totals:
    """Add up blocks; the order does not matter beyond rounding in float64.

    Example:
        >>> one = Block.of(torch.tensor([[[1.0]]]), torch.tensor([0]))
        >>> other = Block.of(torch.tensor([[[3.0]]]), torch.tensor([0]))
        >>> found = total([one, other], num_classes=2, width=1)
        >>> found.counts.tolist(), found.sums.tolist(), round(float(found.scatter), 9)
        ([2.0, 0.0], [[4.0], [0.0]], 2.0)
    """
    counts = torch.zeros(num_classes, dtype=torch.float64)
    sums = torch.zeros(num_classes, width, dtype=torch.float64)
    for block in blocks:
        counts.index_add_(0, block.class_ids, block.counts.double())
        sums.index_add_(0, block.class_ids, block.sums.double())
    scatter = torch.eye(width, dtype=torch.float64) * sum(block.floor for block in blocks)
    for some in _in_chunks(blocks):
        _add_products(scatter, torch.cat([block.rows() for block in some]), 1.0)
    _add_products(scatter, sums / counts.clamp(min=1).unsqueeze(1).sqrt(), -1.0)
    return Totals(counts, sums, scatter.triu() + scatter.triu(1).T)


def _add_products(scatter: Tensor, rows: Tensor, factor: float) -> None:
    """Add ``factor * rows.T @ rows`` to the upper triangle of ``scatter``; below it the result is not used."""
    for columns in torch.arange(rows.shape[1]).split(_COLUMNS):
        first, last = int(columns[0]), int(columns[-1]) + 1
        scatter[first:last, first:].addmm_(rows[:, first:last].T, rows[:, first:], alpha=factor)


def _in_chunks(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Yield the blocks in groups of many rows, since a product of few rows is slow."""
    group: list[Block] = []
    for block in blocks:
        group.append(block)
        if sum(len(b.factor) + len(b.sums) for b in group) >= _ROWS:
            yield group
            group = []
    if group:
        yield group
