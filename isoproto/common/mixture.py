r"""Mix several predictions of a sample: everybody's classifier, the client's own, and its network.

.. math::
    \log p(c \mid x) = \mathrm{logsoftmax}_c \sum_j \alpha_j \log p_j(c \mid x), \qquad \sum_j \alpha_j = 1

The weights are those of a grid with the smallest loss on samples that no prediction was made from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isoproto.common.own import loss_of

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

# How many held-out samples the other clients' losses count for, when a client chooses.
_OTHERS = 20.0
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


def mixture_losses(log_probs: Sequence[Tensor | None], labels: Tensor) -> Tensor:
    """Return the summed loss of held-out samples under each of :data:`WEIGHTS`, ``[M]``, float64."""
    return torch.stack([loss_of(mixed(log_probs, weights), labels) for weights in WEIGHTS])


def best_weights(losses: Tensor, others: Tensor | None, *, alone: bool = False) -> Tensor:
    """Return the mixture with the smallest loss, ``[3]``.

    Few held-out samples say little, so the other clients' mean loss counts like twenty more of them.

    Args:
        losses: The client's summed loss under each of :data:`WEIGHTS`.
        others: Mean loss of a sample over all clients, ``[M]``; ``None`` if not known.
        alone: Whether everybody's classifier must not be used.

    Example:
        >>> losses = torch.where(WEIGHTS[:, 0] == 1, 0.0, 1.0)
        >>> best_weights(losses, None)
        tensor([1., 0., 0.], dtype=torch.float64)
        >>> best_weights(losses, None, alone=True)
        tensor([0., 1., 0.], dtype=torch.float64)
    """
    if others is not None:
        losses = losses + _OTHERS * others
    if alone:
        losses = losses.masked_fill(WEIGHTS[:, 0] > 0, torch.inf)
    return WEIGHTS[losses.argmin()]
