"""A client's network learns from everybody's classifier: distillation on the client's own samples (`common.distil`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.common.classifier import log_probabilities
from isoproto.common.samples import Everybodys, FrameSamples
from isoproto.parts.base import Batch, Compare, LossTerm, Part
from isoproto.parts.common import everybodys
from isoproto.parts.view import View

if TYPE_CHECKING:
    from isoproto.config import RunConfig


def divergence(logits: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the mean divergence of a network's class probabilities from a teacher's.

    .. math::
        \frac{1}{B} \sum_i \sum_c q_{ic} \log \frac{q_{ic}}{\mathrm{softmax}(\ell_i)_c}

    It is 0 where both agree. Its gradient is that of the cross-entropy with the teacher's probabilities.

    Reference: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015, Section 2, with the
    teacher's temperature in :math:`q`.

    Args:
        logits: The network's, :math:`\ell`, shape ``[B, C]``.
        teacher: The teacher's class probabilities :math:`q`, shape ``[B, C]``; zeros are allowed.

    Example:
        The network finds both classes equally likely, and the teacher is sure: :math:`\log 2`.

        >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
        tensor(0.6931)
    """
    return functional.kl_div(logits.log_softmax(1), teacher, reduction="batchmean")


def teacher_of(samples: FrameSamples, shared: Everybodys) -> Tensor:
    """Return the class probabilities that everybody's classifier gives the client's training samples, ``[n, C]``.

    The classifier is the one without the samples that clients hold out. A network that had learned from those would
    look too good where the held-out samples choose its weight in the joint prediction. It judges the unchanged
    samples, also where `augment` shows changed ones to the network.

    Args:
        samples: The client's samples.
        shared: What the server sent.
    """
    logits = shared.without_held.logits(samples.fit[:, 0])
    return log_probabilities(logits, shared.temperature, samples.prior).exp().float()


@dataclass(frozen=True, kw_only=True)
class DistilTerm(LossTerm):
    """The loss that distils from everybody's classifier in a round.

    Attributes:
        teacher: Class probabilities of the training samples, ``[n, C]``, on the client's device.
        weight: Weight of the term.
    """

    teacher: Tensor
    weight: float

    names = ("distil",)

    @property
    def weights(self) -> Tensor:
        """The weight, shape ``[1]``."""
        return torch.tensor([self.weight], device=self.teacher.device)

    def batches(self, labels: Sequence[Tensor]) -> Iterator[Compare]:
        """Yield the comparison, which is the same for all batches."""
        return iter([functools.partial(_compare, self.teacher)] * len(labels))


def _compare(teacher: Tensor, batch: Batch) -> Tensor:
    return divergence(batch.logits, teacher[batch.indices]).view(1)


@dataclass(frozen=True, kw_only=True)
class Distillation(Part):
    """Each client's network learns from everybody's classifier besides its own labels. Nothing more travels."""

    weight: float

    uses_means = False
    reports = DistilTerm.names

    @classmethod
    def of(cls, config: RunConfig) -> Distillation | None:
        """Return the part if the run has a common frame and `common.distil` is above 0."""
        return cls(weight=config.common__distil) if config.framed and config.common__distil else None

    def terms(self, view: View) -> Sequence[LossTerm]:
        """Return the term, once the server has sent a classifier."""
        shared = everybodys(view.arrays)
        if shared is None or view.samples is None:
            return ()
        return [DistilTerm(teacher=teacher_of(view.samples, shared).to(view.device), weight=self.weight)]
