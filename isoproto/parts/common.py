"""Everybody's classifier in the common frame: clients send class statistics once, then gradients of each class."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isoproto.common.classifier import Classifier
from isoproto.common.gradients import class_gradients
from isoproto.common.mixture import WEIGHTS
from isoproto.common.own import MOST_LOSS, held_out_losses
from isoproto.common.samples import Everybodys, FrameSamples, held_out
from isoproto.common.statistics import Block
from isoproto.parts.base import Arrays, Field, Measured, Part, Sent
from isoproto.parts.common_state import BLOCKS, CommonState, FrameRules, Measurements
from isoproto.parts.state import ServerState
from isoproto.parts.view import View

if TYPE_CHECKING:
    from isoproto.config import RunConfig

# Bytes and rounding may make a row a little longer than it was.
_ROUNDING = 1.02
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
    """

    rules: FrameRules
    rank: int
    clip: float
    minimum: int

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
        )
        return cls(rules=rules, rank=config.common__rank, clip=config.common__clip, minimum=config.min_class_samples)

    @property
    def sends(self) -> tuple[Field, ...]:
        """All arrays; each client sends those that the server lacks."""
        return self.up

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
        return _fault(arrays, declared, self.clip * _ROUNDING)

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Take in new statistics, held-out losses and gradients, and make the next classifier."""
        kept = CommonState.of(after.memory) or CommonState.empty(len(after.present))
        new = {(BLOCKS[int(s.arrays["common-block"][1])], s.client): _block(s.arrays) for s in sent if _has_block(s)}
        kept = kept.next(self.rules, new, [Measurements.of(s.client, s.arrays) for s in sent])
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
        found = self._block(samples, known)
        if (shared := everybodys(view.arrays)) is not None:
            found |= self._held_out(samples, shared, view.arrays["common-rows"], held)
            if view.arrays["common-plan"][2]:
                found |= self._gradient(samples, shared, view.arrays["common-rows"][-1])
        return found

    def _block(self, samples: FrameSamples, known: set[int]) -> dict[str, Tensor]:
        """Return the statistics that the server lacks: first of the training samples, then of those held out."""
        parts = [(samples.fit, samples.fit_labels), (samples.held, samples.held_labels)]
        for kind, (digest, (phi, labels)) in enumerate(zip(samples.digests, parts, strict=True)):
            enough = torch.bincount(labels, minlength=samples.num_classes)[labels] >= self.minimum
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
        return {
            "common-gradient": class_gradients(
                samples.fit, samples.fit_labels, classifier, shared.temperature, samples.prior
            )
        }


def _has_block(sent: Sent) -> bool:
    return "common-block" in sent.arrays


def _block(arrays: Arrays) -> tuple[int, Block]:
    """Return the checksum and the statistics in a reply."""
    ids, counts, sums, factor = (arrays[f"common-{name}"] for name in ("ids", "counts", "sums", "factor"))
    return int(arrays["common-block"][0]), Block(ids.long(), counts, sums, factor, float(arrays["common-floor"]))


def _fault(arrays: Mapping[str, Tensor], declared: Sequence[int], clip: float) -> str:
    samples = sum(declared) or math.inf
    if "common-block" in arrays:
        kind, ids, counts = int(arrays["common-block"][1]), arrays["common-ids"].long(), arrays["common-counts"]
        if kind not in range(len(BLOCKS)):
            return f"array 'common-block': expected a kind from 0 to {len(BLOCKS) - 1}, got {kind}"
        if len(counts) != len(ids) or not len(ids) or bool((ids.diff() <= 0).any()) or int(ids.min()) < 0:
            return f"array 'common-ids': expected strictly increasing ids, got {ids.tolist()!r:.200}"
        if declared and int(ids.max()) >= len(declared):
            return f"array 'common-ids': expected 0..{len(declared) - 1}, got {ids.tolist()!r:.200}"
        if int(counts.min()) < 1 or (declared and bool((counts > torch.tensor(declared)[ids]).any())):
            return f"array 'common-counts': {counts.tolist()!r:.200} samples, the client declared {declared!r:.200}"
        if bool((too_long := arrays["common-sums"].double().norm(dim=1) > clip * counts).any()):
            worst = int(too_long.nonzero()[0])
            return (
                f"array 'common-sums': class {int(ids[worst])} is longer than {int(counts[worst])} samples of length "
                f"{clip:.3g} (`common.clip`) can be"
            )
        floor, width = float(arrays["common-floor"]), arrays["common-sums"].shape[1]
        trace = float(arrays["common-factor"].double().square().sum()) + floor * width
        most = clip**2 * int(counts.sum())
        if floor < 0 or not trace <= most:
            return f"array 'common-factor': the scatter is {trace:.3g}, that of these samples is at most {most:.3g}"
    if "common-held" in arrays and not 1 <= int(arrays["common-held"]) <= samples:
        return f"array 'common-held': {int(arrays['common-held'])} samples, the client declared {samples}"
    if "common-held" in arrays:
        held, wrong, losses = int(arrays["common-held"]), arrays["common-mixed"], arrays["common-losses"]
        if int(wrong.min()) < 0 or int(wrong.max()) > held:
            return f"array 'common-mixed': {int(wrong.min())} to {int(wrong.max())} errors of {held} samples"
        if float(losses.min()) < 0 or float(losses.max()) > MOST_LOSS * held * 1.001:
            most = MOST_LOSS * held
            return f"array 'common-losses': {float(losses.max()):.3g}, that of {held} samples is from 0 to {most:g}"
    if "common-gradient" in arrays:
        longest = float(arrays["common-gradient"].double().norm())
        most = math.sqrt(2 * (clip**2 + 1)) * samples
        if not longest <= most:
            return f"array 'common-gradient': norm {longest:.3g}, that of {samples} samples is at most {most:.3g}"
    return ""
