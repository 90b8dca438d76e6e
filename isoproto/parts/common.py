"""Everybody's classifier in the common frame: clients send class statistics once, then gradients of each class."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isoproto.common.classifier import Classifier
from isoproto.common.gradients import class_gradients
from isoproto.common.mixture import WEIGHTS
from isoproto.common.own import held_out_losses
from isoproto.common.samples import Everybodys, FrameSamples, held_out
from isoproto.common.statistics import Block
from isoproto.parts.base import Arrays, Field, Measured, Part, Sent
from isoproto.parts.common_faults import Bounds, fault
from isoproto.parts.common_state import BLOCKS, CommonState, FrameRules, Measurements
from isoproto.parts.pooled import PooledStatistics, new_sum
from isoproto.parts.state import ServerState
from isoproto.parts.view import View

if TYPE_CHECKING:
    from isoproto.config import RunConfig

_MIXTURES = str(len(WEIGHTS))


def everybodys(arrays: Arrays) -> Everybodys | None:
    """Return everybody's classifier from what the server sent; ``None`` before there is one."""
    if "common-classifier" not in arrays:
        return None
    present = arrays["common-present"]
    best, temperature, *_ = arrays["common-plan"].tolist()
    return Everybodys(
        Classifier(arrays["common-classifier"], present),
        Classifier(arrays["common-rows"][int(best)], present),
        temperature,
        arrays["common-mixtures"].double() if "common-mixtures" in arrays else None,
    )


@dataclass(frozen=True, kw_only=True)
class CommonClassifier(Part):
    """Clients send class sums and scatter in the common frame, and the server solves for one classifier.

    A client sends the statistics of its training samples if the server does not have them: their checksum is not among
    those that the server lists. Once it has them, the client sends those of the samples that it held out. Then the
    clients' gradients of each class move the classifier on, until the loss of held-out samples rises.

    Attributes:
        rules: How the server makes the classifier.
        rank: Leading directions of the scatter that travel; 0 for all.
        clip: Largest length of a sample in the frame.
        minimum: Least samples of a class that a client sends statistics of.
        holdout: Part of its samples that a client holds out.
        pool: The part that adds up all clients' statistics, if the server learns only their sum.
    """

    rules: FrameRules
    rank: int
    clip: float
    minimum: int
    holdout: float
    pool: PooledStatistics | None = None

    uses_means = False
    predictors = ("head", "common", "own", "joint", "alone")
    down = (
        Field(name="common-known", shape="N", dtype=torch.int64),
        Field(name="common-rows", shape="V C E", together="common"),
        Field(name="common-classifier", shape="C E", together="common"),
        Field(name="common-present", shape="C", dtype=torch.bool, together="common"),
        Field(name="common-plan", shape="3", together="common"),
        Field(name="common-mixtures", shape=_MIXTURES),
    )
    up = (
        Field(name="common-block", shape="2", dtype=torch.int64, together="common-block", may_send="statistics"),
        Field(name="common-ids", shape="K", dtype=torch.int32, together="common-block"),
        Field(name="common-counts", shape="K", dtype=torch.int64, together="common-block"),
        Field(name="common-sums", shape="K D", rounded=True, together="common-block", noun="class sums"),
        Field(name="common-factor", shape="R D", rounded=True, together="common-block", noun="scatter"),
        Field(name="common-floor", shape="1", together="common-block"),
        Field(name="common-losses", shape="V T", together="common-held"),
        Field(name="common-mixed", shape=_MIXTURES, dtype=torch.int64, together="common-held"),
        Field(name="common-held", shape="1", dtype=torch.int64, together="common-held"),
        Field(name="common-gradient", shape="C E", may_send="gradients"),
    )

    @classmethod
    def of(cls, config: RunConfig) -> CommonClassifier | None:
        """Return the part if the run has a common frame."""
        if not config.framed:
            return None
        rules = FrameRules(
            shrink=config.common__shrink,
            temperature=config.common__temperature,
            rounds=config.common__rounds,
            step=config.common__step,
            pull=config.common__pull,
            contributors=config.min_contributors,
        )
        return cls(
            rules=rules,
            rank=config.common__rank,
            clip=config.common__clip,
            minimum=config.min_class_samples,
            holdout=config.common__holdout,
            pool=PooledStatistics.of(config),
        )

    @property
    def _bounds(self) -> Bounds:
        return Bounds(self.clip, self.rank, len(self.rules.temperatures), self.holdout)

    @classmethod
    def conflict(cls, config: RunConfig) -> str:
        """Refuse to choose by held-out samples if there are none."""
        if config.framed and not config.common__holdout and not (config.common__shrink and config.common__temperature):
            return (
                "`common.holdout = 0` leaves no samples to choose the classifier by; set common.shrink and "
                "common.temperature above 0, such as 0.1 and 0.5, or common.holdout = 0.1"
            )
        return ""

    @property
    def sends(self) -> tuple[Field, ...]:
        """All arrays; each client sends those that the server lacks. With pooled statistics, losses alone."""
        return self.up if self.pool is None else tuple(f for f in self.up if f.together == "common-held")

    @property
    def measures(self) -> str:
        """The network that is mixed in is the trained one."""
        return "after"

    # The server's half

    def downlink(self, state: ServerState) -> Arrays:
        """Send what is known, the classifiers, and what is wanted."""
        kept = CommonState.of(state.memory)
        return kept.downlink(self.rules) if kept else {}

    def fault(self, arrays: Arrays, declared: Sequence[int]) -> str:
        """Return what no samples of the declared number and length can give."""
        return fault(arrays, declared, self._bounds)

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Take in new statistics, held-out losses and gradients, and make the next classifier."""
        kept = CommonState.of(after.memory) or CommonState.empty(len(after.present))
        new = {(BLOCKS[int(s.arrays["common-block"][1])], s.client): _block(s.arrays) for s in sent if _has_block(s)}
        pooled = new_sum(self.pool, before, after) if self.pool else None
        kept = kept.next(self.rules, new, [Measurements.of(s.client, s.arrays) for s in sent], pooled)
        others = {name: tensor for name, tensor in after.memory.items() if not name.startswith("common.")}
        return dataclasses.replace(after, memory={**others, **kept.to_memory()})

    # The client's half

    def measure(self, measured: Measured) -> Arrays:
        """Return the statistics that the server lacks, the losses of held-out samples, and the gradients it wants."""
        return self._measured(measured.view, measured.held)

    def measure_in_frame(self, view: View) -> Arrays:
        """Return the same without a network: the mixtures are of the classifiers alone."""
        return self._measured(view, lambda: torch.zeros(0, 0))

    def _measured(self, view: View, held: Callable[[], Tensor]) -> Arrays:
        """Return what a client sends. ``held`` computes its network's logits of the held-out samples, if it has one."""
        samples = view.samples
        if samples is None:
            raise ValueError("a run with a common frame needs the client's samples in it; the client app gives them")
        known = set(view.arrays["common-known"].tolist()) if "common-known" in view.arrays else set()
        found = self._block(samples, known) if self.pool is None else {}
        if (shared := everybodys(view.arrays)) is not None:
            found |= self._held_out(samples, shared, view.arrays["common-rows"], held)
            if view.arrays["common-plan"][2]:
                found |= self._gradient(samples, shared, view.arrays["common-rows"][-1])
        return found

    def _block(self, samples: FrameSamples, known: set[int]) -> dict[str, Tensor]:
        """Return the statistics that the server lacks: first of the training samples, then of those held out."""
        parts = [(samples.fit, samples.fit_labels), (samples.held, samples.held_labels)]
        for kind, (digest, (phi, labels)) in enumerate(zip(samples.digests, parts, strict=True)):
            enough = self._enough(labels)
            if digest in known or not enough.any():
                continue
            share = len(labels) / (len(samples.fit_labels) + len(samples.held_labels))
            block = Block.of(
                phi[enough], labels[enough], math.ceil(self.rank * share)
            )  # fewer samples, fewer directions
            return {
                "common-block": torch.tensor([digest, kind]),
                "common-ids": block.class_ids,
                "common-counts": block.counts,
                "common-sums": block.sums,
                "common-factor": block.factor,
                "common-floor": torch.tensor([block.floor]),
            }
        return {}

    def _held_out(
        self, samples: FrameSamples, shared: Everybodys, rows: Tensor, held: Callable[[], Tensor]
    ) -> dict[str, Tensor]:
        labels = samples.held_labels
        if not len(labels):
            return {}
        classifiers = [Classifier(row, shared.classifier.present) for row in rows]
        head = held()
        mixtures = held_out(samples, shared, head.double().log_softmax(1) if head.numel() else None)
        return {
            "common-losses": held_out_losses(
                classifiers, samples.held[:, 0], labels, self.rules.temperatures, samples.prior
            ),
            "common-mixed": mixtures,
            "common-held": torch.tensor([len(labels)]),
        }

    def _gradient(self, samples: FrameSamples, shared: Everybodys, rows: Tensor) -> dict[str, Tensor]:
        classifier = Classifier(rows, shared.classifier.present)
        enough = self._enough(samples.fit_labels)
        phi, labels = samples.fit[enough], samples.fit_labels[enough]
        return {"common-gradient": class_gradients(phi, labels, classifier, shared.temperature, samples.prior)}

    def _enough(self, labels: Tensor) -> Tensor:
        """Return which samples are of a class with at least ``minimum`` samples; nothing is sent of the others."""
        return torch.bincount(labels)[labels] >= self.minimum


def _has_block(sent: Sent) -> bool:
    return "common-block" in sent.arrays


def _block(arrays: Arrays) -> tuple[int, Block]:
    """Return the checksum and the statistics in a reply."""
    ids, counts, sums, factor = (arrays[f"common-{name}"] for name in ("ids", "counts", "sums", "factor"))
    return int(arrays["common-block"][0]), Block(ids.long(), counts, sums, factor, float(arrays["common-floor"]))
