"""Mean logits of each class travel, and clients distil from the average of all clients' (FedDistill)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.geometry.class_sums import ClassSums
from isoproto.geometry.prototypes import average_prototypes
from isoproto.parts.base import Arrays, Batch, Compare, Field, LossTerm, Measured, Part, PartState, Sent
from isoproto.parts.state import ServerState
from isoproto.parts.view import View

if TYPE_CHECKING:
    from isoproto.config import RunConfig


@dataclass(frozen=True)
class MeanLogits(PartState):
    """The clients' average logits of each class ``[C, C]``, and which classes have any ``[C]``."""

    class_logits: Tensor
    class_logits_present: Tensor


def distillation(logits: Tensor, labels: Tensor, targets: Tensor, present: Tensor) -> Tensor:
    r"""Return the mean soft cross-entropy with the classes' average answers.

    .. math::
        -\frac{1}{B} \sum_i \langle \mathrm{softmax}(L_g^{y_i}), \log \mathrm{softmax}(\ell_i) \rangle

    Args:
        logits: :math:`\ell`, shape ``[B, C]``.
        labels: :math:`y`, shape ``[B]``, int64.
        targets: :math:`L_g`, average logits of the samples of each class, shape ``[C, C]``.
        present: Which classes have average logits, shape ``[C]``, bool. Other samples are compared with themselves.

    Example:
        >>> logits, labels = torch.tensor([[0.0, 0.0]]), torch.tensor([0])
        >>> distillation(logits, labels, torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([True, False]))
        tensor(0.6931)
    """
    wanted = torch.where(present[labels].unsqueeze(1), targets[labels], logits.detach())
    return functional.cross_entropy(logits, wanted.softmax(1))


@dataclass(frozen=True, kw_only=True)
class LogitTerm(LossTerm):
    """The loss that distils from the average logits of a round.

    Attributes:
        targets: Average logits of the samples of each class, ``[C, C]``.
        present: Which classes have average logits, ``[C]``, bool.
        weight: Weight of the term.
    """

    targets: Tensor
    present: Tensor
    weight: float

    names = ("distillation",)

    @property
    def weights(self) -> Tensor:
        """The weight, shape ``[1]``."""
        return torch.tensor([self.weight], device=self.targets.device)

    def batches(self, labels: Sequence[Tensor]) -> Iterator[Compare]:
        """Yield the comparison, which is the same for all batches."""
        return iter([functools.partial(_compare, self)] * len(labels))


def _compare(term: LogitTerm, batch: Batch) -> Tensor:
    return distillation(batch.logits, batch.labels, term.targets, term.present).view(1)


@dataclass(frozen=True, kw_only=True)
class ClassLogits(Part):
    """Clients send the mean logits of each class that they hold, and the server averages them.

    Each client counts the same. Logits are measured after training, in eval mode.
    """

    weight: float
    minimum: int

    aligns = ("logits",)
    reports = LogitTerm.names
    down = (
        Field(name="class-logits", shape="C C", rounded=True, together="class-logits", mask="class-logits-present"),
        Field(name="class-logits-present", shape="C", dtype=torch.bool, together="class-logits"),
    )
    up = (Field(name="logits", shape="P C", rounded=True, may_send="logits", noun="logits"),)

    @classmethod
    def of(cls, config: RunConfig) -> ClassLogits | None:
        """Return the part if the setting `alignment` names it."""
        return cls(weight=config.logits__weight, minimum=config.min_contributors) if "logits" in config.terms else None

    @property
    def sends(self) -> tuple[Field, ...]:
        """Mean logits, in every round."""
        return self.up

    @property
    def measures(self) -> str:
        """Logits are measured after training."""
        return "after"

    # The server's half

    def downlink(self, state: ServerState) -> Arrays:
        """Send the average logits, once there are any."""
        kept = MeanLogits.of(state)
        if kept is None:
            return {}
        return {"class-logits": kept.class_logits, "class-logits-present": kept.class_logits_present}

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Average this round's logits. A class that too few clients sent keeps its last average."""
        rows = [row for s in sent if (row := s.rows("logits")) is not None]
        classes = len(after.present)
        mean = average_prototypes(rows, classes, classes, weighting="uniform")
        fresh = mean.present & (mean.holders >= self.minimum)
        kept = MeanLogits.of(after) or MeanLogits(torch.zeros(classes, classes), torch.zeros(classes, dtype=torch.bool))
        logits = torch.where(fresh.unsqueeze(1), mean.vectors, kept.class_logits)
        return MeanLogits(logits, kept.class_logits_present | fresh).put(after)

    # The client's half

    def terms(self, view: View) -> Sequence[LossTerm]:
        """Return the term, once the server has sent logits of some class."""
        if "class-logits" not in view.arrays or not view.arrays["class-logits-present"].any():
            return ()
        targets, present = (view.arrays[name].to(view.device) for name in ("class-logits", "class-logits-present"))
        return [LogitTerm(targets=targets, present=present, weight=self.weight)]

    def measure(self, measured: Measured) -> Arrays:
        """Return the mean logits of each class."""
        logits = measured.logits(measured.features).detach()
        sums = ClassSums.of(logits, measured.labels.to(logits.device), logits.shape[1])
        return {"logits": sums.mean().cpu()}
