r"""Rounds of per-class gradients that move everybody's classifier on from the closed form.

.. math::
    G = \sum_i (p_i - e_{y_i}) [\phi_i; 1]^\top, \qquad
    R \leftarrow R - \frac{4 \eta}{T N}\, G M^{-1} - \eta \mu (R - R_0)

:math:`p_i` are class probabilities under the client's prior, :math:`R` the rows of the classifier, :math:`R_0` those of
the closed form, and :math:`M` the mean product of all samples :math:`[\phi; 1]`, shrunken. The factor 4 is the bound of
the logistic loss's curvature. Gradients add up over clients; no weight of any client is in them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoproto.common.classifier import Classifier, covariance_of, factorised, log_probabilities
from isoproto.common.statistics import Totals


def class_gradients(phi: Tensor, labels: Tensor, classifier: Classifier, temperature: float, prior: Tensor) -> Tensor:
    """Return a client's gradient of each class's row, ``[C, D + 1]``, float64.

    Args:
        phi: Coordinates of n samples in V versions each, ``[n, V, D]``.
        labels: Classes, ``[n]``, int64.
        classifier: Everybody's classifier.
        temperature: Factor of its logits.
        prior: Logarithm of the client's class frequencies, ``[C]``.

    Example:
        >>> start = Classifier(torch.zeros(2, 2), torch.tensor([True, True]))
        >>> class_gradients(torch.tensor([[[3.0]]]), torch.tensor([1]), start, 1.0, torch.zeros(2))
        tensor([[ 1.5000,  0.5000],
                [-1.5000, -0.5000]], dtype=torch.float64)
    """
    versions = phi.shape[1]
    flat = phi.flatten(0, 1).double()
    error = log_probabilities(classifier.logits(flat), temperature, prior).exp()
    labels = labels.repeat_interleave(versions)
    error[torch.arange(len(labels)), labels] -= 1
    gradient: Tensor = error.T @ torch.nn.functional.pad(flat, (0, 1), value=1.0) / versions
    return gradient


def preconditioner(totals: Totals, shrinkage: float) -> Tensor:
    """Return the Cholesky factor of :math:`M`, ``[D + 1, D + 1]``.

    :math:`M` is the mean product of all samples, each with a 1 at its end, plus ``shrinkage`` times their mean variance
    on the diagonal. Dividing by it makes a step about as fast in directions in which samples hardly vary as in others.

    Args:
        totals: Sums over all samples.
        shrinkage: That of the classifier.

    Example:
        >>> from isoproto.common.statistics import Block, total
        >>> block = Block.of(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([0, 0]))
        >>> factor = preconditioner(total([block], num_classes=1, width=1), shrinkage=0.5)
        >>> factor @ factor.T
        tensor([[3.0000, 1.0000],
                [1.0000, 2.0000]], dtype=torch.float64)
    """
    samples = totals.counts.sum().clamp(min=1)
    everything = torch.cat([totals.sums.sum(0), totals.counts.sum().view(1)]) / samples
    moment = torch.cat([torch.cat([totals.moment / samples, everything[:-1].unsqueeze(1)], 1), everything.unsqueeze(0)])
    _, variance = covariance_of(totals)
    moment.diagonal().add_(shrinkage * variance)
    return factorised(moment)


def stepped(
    rows: Tensor,
    start: Tensor,
    gradient: Tensor,
    factor: Tensor,
    *,
    samples: float,
    temperature: float,
    step: float,
    pull: float,
) -> Tensor:
    r"""Return the rows after a step, ``[C, D + 1]``, float64.

    Args:
        rows: The rows now.
        start: The rows of the closed form.
        gradient: Sum of the clients' gradients.
        factor: See :func:`preconditioner`.
        samples: Number of samples that the gradients are of.
        temperature: Factor of the logits.
        step: Length of a step :math:`\eta`; 1 is safe.
        pull: Strength :math:`\mu` of the pull towards the start.

    Example:
        >>> moved = stepped(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]), torch.eye(2),
        ...                 samples=4.0, temperature=1.0, step=0.5, pull=0.0)
        >>> moved.tolist()
        [[-1.0, 0.0]]
    """
    move = torch.cholesky_solve(gradient.T, factor).T
    return rows - 4 * step / (temperature * samples) * move - step * pull * (rows - start)
