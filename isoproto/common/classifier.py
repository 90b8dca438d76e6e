r"""The linear classifier that class sums and scatter give, in closed form.

.. math::
    \Sigma = (1 - b) \frac{W}{N - C} + b \frac{\mathrm{tr} W}{D (N - C)} I, \qquad
    w_c = \Sigma^{-1} m_c, \qquad a_c = -\tfrac{1}{2} m_c^\top \Sigma^{-1} m_c

    \log p(c \mid x) = \mathrm{logsoftmax}_c \left( T (w_c^\top \phi(x) + a_c) + \log \pi_c \right)

This is linear discriminant analysis with a shrunken covariance (Friedman, "Regularized Discriminant Analysis", JASA
1989), a temperature, and the client's own class frequencies as prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from isoproto.common.statistics import Totals

# Samples that each class is given besides its own, before frequencies are taken.
_PRIOR = 0.1
# Smallest share of the samples' mean square that is taken as variance, for samples that do not vary.
_LEAST = 1e-6


class Classifier(NamedTuple):
    """A linear classifier.

    Attributes:
        rows: Weight and bias of each class, ``[C, D + 1]``; rows of classes that nobody holds are zero.
        present: Which classes somebody holds, ``[C]``, bool.
    """

    rows: Tensor
    present: Tensor

    def logits(self, phi: Tensor) -> Tensor:
        """Return the logits ``[n, C]`` of samples ``[n, D]``: minus infinity for classes that nobody holds.

        If nobody holds any class, all logits are zero.
        """
        rows = self.rows.to(phi.dtype)
        logits = torch.addmm(rows[:, -1], phi, rows[:, :-1].T)
        return logits.masked_fill(~self.present & self.present.any(), -torch.inf)


def solve(totals: Totals, shrinkages: Sequence[float]) -> list[Classifier]:
    """Return the classifier for each shrinkage.

    If the samples of each class are all equal, a millionth of the mean square of all samples is taken as variance.

    Args:
        totals: Sums over all samples; at least one.
        shrinkages: Values of :math:`b`, each in (0, 1].

    Example:
        Two classes at -1 and 1 on a line, with a variance of 2 each:

        >>> from isoproto.common.statistics import Block, total
        >>> phi = torch.tensor([-2.0, 0.0, 0.0, 2.0]).view(4, 1, 1)
        >>> found = total([Block.of(phi, torch.tensor([0, 0, 1, 1]))], num_classes=2, width=1)
        >>> solve(found, [0.5])[0].rows
        tensor([[-0.5000, -0.2500],
                [ 0.5000, -0.2500]], dtype=torch.float64)
    """
    present = totals.counts > 0
    means = totals.sums / totals.counts.clamp(min=1).unsqueeze(1)
    covariance, variance = covariance_of(totals)
    return [_solved(shrunk(covariance, variance, b), means, present) for b in shrinkages]


def _solved(covariance: Tensor, means: Tensor, present: Tensor) -> Classifier:
    weight = torch.cholesky_solve(means.T, factorised(covariance)).T
    bias = -0.5 * (weight * means).sum(1, keepdim=True)
    return Classifier(torch.cat([weight, bias], 1), present)


def covariance_of(totals: Totals) -> tuple[Tensor, Tensor]:
    """Return the covariance within classes, ``[D, D]``, and the mean of its diagonal.

    The mean is at least a millionth of the samples' mean square, so that a classifier can be solved for in any case.
    """
    freedom = (totals.counts.sum() - (totals.counts > 0).sum()).clamp(min=1)
    covariance = totals.scatter / freedom
    variance = covariance.diagonal().mean()
    least = _LEAST * totals.moment.diagonal().mean() / totals.counts.sum().clamp(min=1)
    return covariance, torch.maximum(variance, least).clamp(min=torch.finfo(torch.float32).tiny)


def shrunk(covariance: Tensor, variance: Tensor, shrinkage: float) -> Tensor:
    """Return :math:`(1 - b) S + b v I` for a covariance :math:`S`, its mean variance :math:`v` and shrinkage :math:`b`.

    Example:
        >>> shrunk(torch.tensor([[4.0, 1.0], [1.0, 2.0]]), torch.tensor(3.0), 0.5)
        tensor([[3.5000, 0.5000],
                [0.5000, 2.5000]])
    """
    mixed = covariance * (1 - shrinkage)
    mixed.diagonal().add_(shrinkage * variance)
    return mixed


def factorised(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor ``[D, D]`` of a matrix that is positive definite but for rounding.

    Samples that are all the same leave nothing but the rounding of their sums, and that may be negative. Then the
    diagonal is raised by the least power of ten, times the precision, that mends it. Any other matrix stays as it is.

    Raises:
        torch.linalg.LinAlgError: If a number of the matrix is not finite.

    Example:
        >>> factorised(torch.tensor([[4.0, 0.0], [0.0, 9.0]])).tolist()
        [[2.0, 0.0], [0.0, 3.0]]
        >>> bool(factorised(torch.tensor([[1.0, 0.0], [0.0, -1e-8]])).diagonal().min() > 0)
        True
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    largest = matrix.diagonal().abs().max()
    ridge = torch.finfo(matrix.dtype).eps * largest
    while failed and ridge < 2 * len(matrix) * largest:  # no eigenvalue is below minus the width times this
        factor, failed = torch.linalg.cholesky_ex(matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype))
        ridge = ridge * 10
    return factor if not failed else torch.linalg.cholesky(matrix)


def log_prior(counts: Tensor) -> Tensor:
    """Return the logarithm of class frequencies, of which none is zero.

    Args:
        counts: The client's samples of each class, ``[C]``.

    Example:
        >>> log_prior(torch.tensor([0, 9])).exp()
        tensor([0.0109, 0.9891])
    """
    counts = counts + _PRIOR
    return (counts / counts.sum()).log()


def log_probabilities(logits: Tensor, temperature: float, prior: Tensor) -> Tensor:
    """Return the logarithm of class probabilities ``[n, C]``.

    Args:
        logits: Of the classifier, ``[n, C]``, float32 or float64.
        temperature: Factor :math:`T` of the logits. Below 1 it makes the classifier less sure.
        prior: Logarithm of the client's class frequencies, ``[C]``.

    Example:
        Where the classifier cannot tell two classes apart, their frequencies decide:

        >>> log_probabilities(torch.zeros(1, 2), 0.5, torch.tensor([0.25, 0.75]).log()).exp()
        tensor([[0.2500, 0.7500]])
    """
    return (temperature * logits + prior.to(logits.dtype)).log_softmax(1)
