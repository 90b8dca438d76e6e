"""Each client has a second, small model that is averaged over clients; its two models learn from each other (FML)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from isoproto.geometry.prototypes import average_tensors
from isoproto.parts.base import Batch, Compare, LossTerm, Part, Sent
from isoproto.parts.state import ServerState
from isoproto.parts.view import View
from isoproto.precision import full_precision

if TYPE_CHECKING:
    from isoproto.config import RunConfig

OWNS = "twin"
_PREFIX = f"{OWNS}."


def divergence(logits: Tensor, others: Tensor) -> Tensor:
    r"""Return the Kullback-Leibler divergence of two models' answers, divided as in the published code.

    .. math::
        \frac{1}{B C} \sum_i KL(\mathrm{softmax}(\ell'_i) \,\|\, \mathrm{softmax}(\ell_i))

    Args:
        logits: :math:`\ell`, shape ``[B, C]``.
        others: :math:`\ell'`, shape ``[B, C]``.

    Example:
        >>> divergence(torch.zeros(1, 2), torch.zeros(1, 2))
        tensor(0.)
    """
    # Not `reduction="mean"`, because torch is about to change what it means.
    return functional.kl_div(logits.log_softmax(1), others.softmax(1), reduction="sum") / logits.numel()


@dataclass(frozen=True, kw_only=True)
class TwinTerm(LossTerm):
    r"""The losses of a client's model and of its twin, which are trained in the same steps.

    .. math::
        L = \alpha CE(\ell, y) + (1 - \alpha) KL(\ell_g \| \ell) + \beta CE(\ell_g, y) + (1 - \beta) KL(\ell \| \ell_g)

    with the logits :math:`\ell` of the model and :math:`\ell_g` of the twin.

    Attributes:
        module: The twin.
        alpha: Weight of the model's cross-entropy, in [0, 1].
        beta: Weight of the twin's cross-entropy, in [0, 1].
        detach: Whether gradients flow only into the model that learns. If not, they flow into both models.
        clip: Largest norm of the gradients of either model; 0 does not limit it.
    """

    module: nn.Module
    alpha: float
    beta: float
    detach: bool
    clip: float

    names = ("mutual", "twin", "twin-mutual")

    @property
    def entropy(self) -> float:  # type: ignore[override] # a constant of the class elsewhere
        """Factor of the model's cross-entropy."""
        return self.alpha

    @property
    def weights(self) -> Tensor:
        """Weights of the three terms, shape ``[3]``."""
        device = next(self.module.parameters()).device
        return torch.tensor([1 - self.alpha, self.beta, 1 - self.beta], device=device)

    def batches(self, labels: Sequence[Tensor]) -> Iterator[Compare]:
        """Yield the comparison, which is the same for all batches."""
        return iter([functools.partial(_compare, self)] * len(labels))


def _compare(term: TwinTerm, batch: Batch) -> Tensor:
    logits, others = batch.logits, full_precision(term.module(batch.inputs))
    fixed, fixed_others = (logits.detach(), others.detach()) if term.detach else (logits, others)
    return torch.stack(
        [
            divergence(logits, fixed_others),
            functional.cross_entropy(others, batch.labels),
            divergence(others, fixed),
        ]
    )


@dataclass(frozen=True, kw_only=True)
class Twin(Part):
    """Keep a second model, the twin, on every client; train it with the client's own, and average it over clients.

    The twin has the first architecture that the run names. All of its tensors are averaged, also the statistics of
    BatchNorm. Each client counts the same.
    """

    alpha: float
    beta: float
    detach: bool
    clip: float

    aligns = (OWNS,)
    reports = TwinTerm.names
    words = (OWNS,)
    owns = OWNS

    @classmethod
    def of(cls, config: RunConfig) -> Twin | None:
        """Return the part if the setting `alignment` names it."""
        if OWNS not in config.terms:
            return None
        return cls(alpha=config.twin__alpha, beta=config.twin__beta, detach=config.twin__detach, clip=config.twin__clip)

    @property
    def asks(self) -> frozenset[str]:
        """The twin has learned from the client's data, so the device's owner must allow it to leave."""
        return frozenset(self.words)

    def terms(self, view: View) -> Sequence[LossTerm]:
        """Return the losses of both models."""
        module = view.modules[OWNS]
        return [TwinTerm(module=module, alpha=self.alpha, beta=self.beta, detach=self.detach, clip=self.clip)]

    def shared(self, model: nn.Module, modules: Mapping[str, nn.Module]) -> Mapping[str, Tensor]:
        """Return the twin's tensors."""
        return {_PREFIX + name: tensor for name, tensor in modules[OWNS].state_dict().items()}

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Average the twins of this round."""
        if not sent:
            return after
        twins = [{name: t for name, t in s.shared.items() if name.startswith(_PREFIX)} for s in sent]
        return dataclasses.replace(after, shared={**after.shared, **average_tensors(twins, [1.0] * len(twins))})
