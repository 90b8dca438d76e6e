"""What a client makes of its own samples alone: the best classifier in the common frame with nothing exchanged."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isoproto.common.classifier import Classifier, log_prior, log_probabilities, solve
from isoproto.common.statistics import Totals, moments

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 0.6)
"""Shrinkages to choose from."""
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0)
"""Factors of the logits to choose from."""
# What is used if there are too few samples to choose.
_DEFAULT = (0.3, 0.5)
_FOLDS = 5


class Choice(NamedTuple):
    """A shrinkage and a temperature."""

    shrinkage: float
    temperature: float


def own_classifier(phi: Tensor, labels: Tensor, num_classes: int, choice: Choice) -> Classifier:
    """Return the classifier from one client's samples alone.

    Args:
        phi: Coordinates of n samples in V versions each, ``[n, V, D]``.
        labels: Classes, ``[n]``, int64.
        num_classes: Number of classes C.
        choice: Its shrinkage is used. The temperature is for whoever predicts.

    Example:
        >>> phi = torch.tensor([-2.0, 0.0, 0.0, 2.0]).view(4, 1, 1)
        >>> own_classifier(phi, torch.tensor([0, 0, 1, 1]), 2, Choice(0.5, 1.0)).rows
        tensor([[-0.5000, -0.2500],
                [ 0.5000, -0.2500]], dtype=torch.float64)
    """
    return solve(Totals.of(phi.double(), labels, num_classes), [choice.shrinkage])[0]


def chosen(phi: Tensor, labels: Tensor, num_classes: int) -> Choice:
    """Choose shrinkage and temperature by the loss in five-fold cross-validation.

    With fewer than ten samples nothing is chosen, and a shrinkage of 0.3 and a temperature of 0.5 are returned.

    Args:
        phi: Coordinates of n samples in V versions each, ``[n, V, D]``. A sample is judged by its first version, and
            all versions of it are held out with it.
        labels: Classes, ``[n]``, int64.
        num_classes: Number of classes C.

    Example:
        Two classes that lie far apart: the surer classifier is the better one.

        >>> phi = torch.tensor([-1.1, -1.0, -0.9, 0.9, 1.0, 1.1]).repeat(2).view(12, 1, 1)
        >>> chosen(phi, (phi.flatten() > 0).long(), 2).temperature
        1.0
        >>> chosen(phi[:4], torch.tensor([0, 0, 0, 1]), 2)
        Choice(shrinkage=0.3, temperature=0.5)
    """
    if len(labels) < 2 * _FOLDS:
        return Choice(*_DEFAULT)
    fold = _folds(labels)
    products = moments(phi, fold, _FOLDS)
    everything = products.sum(0)
    losses = torch.zeros(len(SHRINKAGES), len(TEMPERATURES), dtype=torch.float64)
    for number in range(_FOLDS):
        out = fold == number
        kept = labels[~out]
        prior = log_prior(torch.bincount(kept, minlength=num_classes))
        rest = Totals.of_moment(phi[~out], kept, num_classes, everything - products[number])
        found = solve(rest, SHRINKAGES)
        losses += held_out_losses(found, phi[out, 0], labels[out], TEMPERATURES, prior)
    best = int(losses.argmin())
    return Choice(SHRINKAGES[best // len(TEMPERATURES)], TEMPERATURES[best % len(TEMPERATURES)])


def _folds(labels: Tensor) -> Tensor:
    """Return a fold for each sample, so that every class is spread over the folds."""
    fold = torch.empty_like(labels)
    fold[labels.sort(stable=True).indices] = torch.arange(len(labels)) % _FOLDS
    return fold


def held_out_losses(
    classifiers: list[Classifier], phi: Tensor, labels: Tensor, temperatures: tuple[float, ...], prior: Tensor
) -> Tensor:
    """Return the summed loss of samples under each classifier and temperature, ``[V, T]``, float64.

    Args:
        classifiers: V classifiers.
        phi: Coordinates of the samples, ``[n, D]``.
        labels: Their classes, ``[n]``, int64.
        temperatures: T factors of the logits.
        prior: Logarithm of the client's class frequencies, ``[C]``.
    """
    logits = [classifier.logits(phi.double()) for classifier in classifiers]
    losses = [loss_of(log_probabilities(of_one, t, prior), labels) for of_one in logits for t in temperatures]
    return torch.stack(losses).view(len(classifiers), len(temperatures))


MOST_LOSS = 2.0
"""Largest loss of a sample."""


def loss_of(log_probs: Tensor, labels: Tensor) -> Tensor:
    r"""Return the summed squared error of class probabilities, float64; each sample's is from 0 to 2.

    .. math::
        \sum_i \| p_i - e_{y_i} \|^2

    It is smallest for the true probabilities, as the logarithm is, but no sure mistake outweighs all other samples.
    Reference: Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review 1950.

    Args:
        log_probs: Logarithms of class probabilities, ``[n, C]``.
        labels: Classes, ``[n]``, int64.

    Example:
        >>> loss_of(torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log(), torch.tensor([0, 1]))
        tensor(0.6250, dtype=torch.float64)
    """
    error = log_probs.double().exp()
    error[torch.arange(len(labels)), labels] -= 1
    return error.square().sum()
