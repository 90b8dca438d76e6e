r"""Mix several predictions of a sample: everybody's classifier, the client's own, and its network.

.. math::
    \log p(c \mid x) = \mathrm{logsoftmax}_c \sum_j \alpha_j \log p_j(c \mid x), \qquad \sum_j \alpha_j = 1

The weights are those of a grid that get the fewest samples wrong of those that no prediction was made from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PREDICTIONS = ("common", "own", "head")
"""What is mixed, in the order of the weights."""

_STEPS = 10
WEIGHTS = (
    torch.tensor(
        [(i, j, _STEPS - i - j) for i in range(_STEPS, -1, -1) for j in range(_STEPS - i, -1, -1)], dtype=torch.float64
    )
    / _STEPS
)
"""All mixtures, ``[M, 3]``: weights of :data:`PREDICTIONS` in steps of a tenth."""

# How many held-out samples the errors of all clients count for, when a client chooses.
_OTHERS = 100.0
# Samples that are mixed at a time, which limits the memory.
_AT_ONCE = 256
# A probability below this is taken as this, so that no prediction can rule a class out.
_LEAST_LOG = -30.0


def mixed(log_probs: Sequence[Tensor | None], weights: Tensor) -> Tensor:
    """Return the logarithms of the mixed class probabilities ``[n, C]``.

    Args:
        log_probs: Of each prediction, ``[n, C]``; ``None`` for one that is missing.
        weights: Weight of each prediction, ``[3]``. Those of the others take the place of a missing one's.

    Example:
        >>> sure, unsure = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
        >>> mixed([sure, unsure, None], torch.tensor([0.5, 0.5, 0.0])).exp()
        tensor([[0.7500, 0.2500]])
    """
    there = [(p, float(w)) for p, w in zip(log_probs, weights, strict=True) if p is not None and w > 0]
    there = there or [(p, 1.0) for p in log_probs if p is not None]
    everything = sum(w for _, w in there)
    return sum((p.clamp(min=_LEAST_LOG) * (w / everything) for p, w in there), torch.tensor(0.0)).log_softmax(1)


def mixture_errors(log_probs: Sequence[Tensor | None], labels: Tensor) -> Tensor:
    """Return how many held-out samples each of :data:`WEIGHTS` gets wrong, ``[M]``, int64.

    Args:
        log_probs: Of each prediction, ``[m, C]``; ``None`` for one that is missing. At least one is there.
        labels: Classes of the samples, ``[m]``, int64.

    Example:
        >>> sure = torch.tensor([[0.9, 0.1]]).log()
        >>> mixture_errors([sure, None, None], torch.tensor([1])).unique()
        tensor([1])
    """
    there = [j for j, p in enumerate(log_probs) if p is not None]
    weights = WEIGHTS[:, there].clone()
    weights[weights.sum(1) == 0] = 1.0
    probs = torch.stack([p.double().clamp(min=_LEAST_LOG) for p in log_probs if p is not None])
    wrong = torch.zeros(len(WEIGHTS), dtype=torch.int64)
    for part, of_part in zip(probs.split(_AT_ONCE, 1), labels.split(_AT_ONCE), strict=True):
        best = torch.einsum("mj,jnc->mnc", weights, part).argmax(2)  # a factor of all weights would change nothing
        wrong += (best != of_part).sum(1)
    return wrong


def best_weights(errors: Tensor, everybody: Tensor | None, *, alone: bool = False) -> Tensor:
    """Return the mixture with the fewest errors, ``[3]``; of several, the one with most of the first prediction.

    Few held-out samples say little, so the share of errors of all clients counts like a hundred more of them.

    Args:
        errors: How many of the client's held-out samples each of :data:`WEIGHTS` gets wrong, ``[M]``.
        everybody: Share of all clients' held-out samples that each gets wrong, ``[M]``; ``None`` if not known.
        alone: Whether everybody's classifier must not be used.

    Example:
        >>> errors = torch.where(WEIGHTS[:, 0] == 1, 0, 1)
        >>> best_weights(errors, None)
        tensor([1., 0., 0.], dtype=torch.float64)
        >>> best_weights(errors, None, alone=True)
        tensor([0., 1., 0.], dtype=torch.float64)
    """
    errors = errors.double()
    if everybody is not None:
        errors = errors + _OTHERS * everybody
    if alone:
        errors = errors.masked_fill(WEIGHTS[:, 0] > 0, torch.inf)
    return WEIGHTS[errors.argmin()]
