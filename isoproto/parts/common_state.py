"""What the server keeps of the common frame: each client's statistics, and the classifier made of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isoproto.common.classifier import solve
from isoproto.common.gradients import preconditioner, stepped
from isoproto.common.own import SHRINKAGES, TEMPERATURES
from isoproto.common.pooled import Pooled
from isoproto.common.statistics import Block, Totals, total
from isoproto.parts.base import Arrays

BLOCKS = ("fit", "held")
"""Kinds of statistics: of a client's training samples, and of those that it holds out."""

# What is used until held-out losses have chosen.
_FIRST = (0.1, 0.5)
# The choice is made anew when the samples have grown by this factor.
_GROWTH = 1.1
# Gradient rounds end after so many without a smaller held-out loss.
_PATIENCE = 2


@dataclass(frozen=True, kw_only=True)
class FrameRules:
    """How the server makes the classifier: the settings `common.*` of these names.

    Attributes:
        contributors: Fewest clients that must send a class, so that clients are sent its row (`min-contributors`).
    """

    shrink: float
    temperature: float
    rounds: int
    step: float
    pull: float
    contributors: int = 1

    @property
    def candidates(self) -> tuple[float, ...]:
        """Shrinkages to choose from."""
        return (self.shrink,) if self.shrink else SHRINKAGES

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Temperatures to choose from."""
        return (self.temperature,) if self.temperature else TEMPERATURES

    @property
    def settled(self) -> bool:
        """Whether there is nothing to choose."""
        return bool(self.shrink and self.temperature)

    @property
    def first(self) -> tuple[float, float]:
        """Shrinkage and temperature before anything is known."""
        return self.shrink or _FIRST[0], self.temperature or _FIRST[1]


class Measurements(NamedTuple):
    """What a client measured with the classifiers that the server sent.

    Attributes:
        client: The client's name.
        held: Number of its held-out samples; 0 if it has none.
        losses: Their summed loss under each classifier and temperature, ``[V, T]``; ``None`` without such samples.
        mixtures: How many of them each mixture gets wrong, ``[M]``; likewise.
        gradient: Gradients of each class, ``[C, D + 1]``; ``None`` if none were asked for.
    """

    client: str
    held: int
    losses: Tensor | None
    mixtures: Tensor | None
    gradient: Tensor | None

    @classmethod
    def of(cls, client: str, arrays: Arrays) -> Measurements:
        """Return what is in a reply."""
        held = int(arrays["common-held"]) if "common-held" in arrays else 0
        return cls(client, held, *(arrays.get(f"common-{name}") for name in ("losses", "mixed", "gradient")))


@dataclass(frozen=True, kw_only=True)
class CommonState:
    """The state of the common frame on the server.

    Attributes:
        present: Which classes somebody holds, ``[C]``, bool.
        blocks: Statistics by kind and client.
        digests: Their checksums, likewise.
        rows: Classifiers that clients are sent to judge, ``[V, C, D + 1]``, without the samples held out. While the
            shrinkage is chosen, one for each candidate. Then the best one so far, and the next one, if there is any.
        start: The closed form at the chosen shrinkage, without the samples held out, ``[C, D + 1]``.
        everything: The closed form from all samples, ``[C, D + 1]``.
        first: Which row is the closed form at the first shrinkage while the shrinkage is chosen.
        shrink: The chosen shrinkage.
        temperature: The chosen temperature.
        chosen_of: Number of samples when they were chosen; 0 if they are still to be chosen.
        steps: Gradient steps that were made.
        worse: Steps in a row that did not make the held-out loss smaller.
        mixtures: Share of held-out samples that each mixture gets wrong, ``[M]``; empty if not known.
        pooled: Statistics of all clients together, where the server learns only their sum; then ``blocks`` is empty.
    """

    present: Tensor
    blocks: Mapping[tuple[str, str], Block] = field(default_factory=dict)
    digests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    rows: Tensor
    start: Tensor
    everything: Tensor
    first: int = 0
    shrink: float = 0.0
    temperature: float = 0.0
    chosen_of: float = 0.0
    steps: int = 0
    worse: int = 0
    mixtures: Tensor
    pooled: Pooled | None = None

    @classmethod
    def empty(cls, num_classes: int) -> CommonState:
        """Return the state before anything was sent."""
        nothing = torch.zeros(num_classes, 0)
        return cls(
            present=torch.zeros(num_classes, dtype=torch.bool),
            rows=torch.zeros(0, num_classes, 0),
            start=nothing,
            everything=nothing,
            mixtures=torch.zeros(0),
        )

    # To and from the checkpoint

    def to_memory(self) -> dict[str, Tensor]:
        """Return the state as named tensors."""
        tensors = {f"common.{name}": getattr(self, name).clone() for name in _TENSORS}  # some are parts of others
        numbers = [float(getattr(self, name)) for name in _NUMBERS]
        tensors["common.numbers"] = torch.tensor(numbers, dtype=torch.float64)
        for (kind, client), block in self.blocks.items():
            digest = torch.tensor([self.digests[kind, client]])
            floor = torch.tensor([block.floor], dtype=torch.float64)
            for name, tensor in {**block._asdict(), "floor": floor, "digest": digest}.items():
                tensors[f"common.{kind}.{name}.{client}"] = tensor
        if self.pooled is not None:
            named = {**self.pooled.totals._asdict(), "published": self.pooled.published}
            tensors |= {f"common.pooled.{name}": tensor for name, tensor in named.items()}
        return tensors

    @classmethod
    def of(cls, memory: Mapping[str, Tensor]) -> CommonState | None:
        """Return the state that ``to_memory`` wrote; ``None`` if it holds none."""
        if "common.numbers" not in memory:
            return None
        numbers: dict[str, Any] = dict(zip(_NUMBERS, memory["common.numbers"].tolist(), strict=True))
        numbers |= {name: int(numbers[name]) for name in ("first", "steps", "worse")}
        blocks, digests = {}, {}
        for kind in BLOCKS:
            prefix = f"common.{kind}.digest."
            for client in sorted(n.removeprefix(prefix) for n in memory if n.startswith(prefix)):
                parts = [memory[f"common.{kind}.{name}.{client}"] for name in Block._fields]
                blocks[kind, client] = Block(parts[0], parts[1], parts[2], parts[3], float(parts[4]))
                digests[kind, client] = int(memory[prefix + client])
        values: dict[str, Any] = {**numbers, **{name: memory[f"common.{name}"] for name in _TENSORS}}
        if "common.pooled.counts" in memory:
            totals = Totals(*(memory[f"common.pooled.{name}"] for name in Totals._fields))
            values["pooled"] = Pooled(totals, memory["common.pooled.published"])
        return cls(blocks=blocks, digests=digests, **values)

    # What clients are sent

    def downlink(self, rules: FrameRules) -> Arrays:
        """Return the arrays to send."""
        arrays = {"common-known": torch.tensor(sorted(self.digests.values()), dtype=torch.int64)}
        if not len(self.rows):
            return arrays
        plan = [float(self._best), self.temperature, float(self._asks(rules))]
        arrays |= {
            "common-rows": self.rows.float(),
            "common-classifier": (self.everything + self.rows[self._best] - self.start).float(),
            "common-present": self.present,
            "common-plan": torch.tensor(plan),
        }
        return arrays | ({"common-mixtures": self.mixtures.float()} if len(self.mixtures) else {})

    @property
    def _choosing(self) -> bool:
        """Whether clients judge the candidates."""
        return bool(len(self.rows)) and not self.chosen_of

    @property
    def _best(self) -> int:
        """Which of the rows to predict with."""
        return self.first if self._choosing else 0

    def _asks(self, rules: FrameRules) -> bool:
        """Whether clients send gradients."""
        return not self._choosing and self.steps < rules.rounds and self.worse < _PATIENCE

    # The next state

    def next(
        self,
        rules: FrameRules,
        new: Mapping[tuple[str, str], tuple[int, Block]],
        measured: Sequence[Measurements],
        pooled: Pooled | None = None,
    ) -> CommonState:
        """Return the state after a round.

        Args:
            rules: How the classifier is made.
            new: Statistics that came, with their checksums, by kind and client.
            measured: What clients measured with the classifiers of this state.
            pooled: A new sum of all clients' statistics; ``None`` if there is none.
        """
        state = self._chosen(rules, measured)._mixing(measured)
        if pooled is not None:
            return dataclasses.replace(state, pooled=pooled).solved(rules)
        if new or state.chosen_of != self.chosen_of:
            digests = {**self.digests, **{key: digest for key, (digest, _) in new.items()}}
            blocks = {**self.blocks, **{key: block for key, (_, block) in new.items()}}
            state = dataclasses.replace(
                state, blocks=dict(sorted(blocks.items())), digests=dict(sorted(digests.items()))
            )
            anew = state.chosen_of != self.chosen_of or any(kind == "fit" for kind, _ in new)
            state = state.solved(rules) if anew else state._with_held(rules)
            if anew:
                return state
        return state._moved(rules, measured)

    def without(self, client: str, rules: FrameRules) -> CommonState:
        """Return the state as it would be if a client had never sent anything.

        The client's losses and gradients are in the choice of the shrinkage and temperature, in the mixtures and in the
        gradient steps. So all of these start again.
        """
        kept = {key: block for key, block in self.blocks.items() if key[1] != client}
        digests = {key: self.digests[key] for key in kept}
        fresh = CommonState.empty(len(self.present))
        return dataclasses.replace(fresh, blocks=kept, digests=digests).solved(rules)

    def solved(self, rules: FrameRules) -> CommonState:
        """Return the state with the classifier made anew from all statistics, and no gradient steps."""
        fit = self._total("fit")
        if fit is None or not fit.counts.any():
            return CommonState.empty(len(self.present))
        samples = float(fit.counts.sum())
        settled = rules.settled or self.chosen_of * _GROWTH >= samples
        shrink = self.shrink or rules.first[0]
        present = self._published(rules, "fit")
        found = solve(fit, [shrink] if settled else rules.candidates)
        rows = torch.stack([_of(present, classifier.rows) for classifier in found])
        first = 0 if settled else rules.candidates.index(shrink)
        state = dataclasses.replace(
            self,
            present=present,
            rows=rows,
            start=rows[first],
            first=first,
            shrink=shrink,
            temperature=self.temperature or rules.first[1],
            chosen_of=samples if rules.settled else self.chosen_of if settled else 0.0,
            steps=0,
            worse=0,
        )
        return state._with_held(rules)

    def _with_held(self, rules: FrameRules) -> CommonState:
        """Return the state with the closed form from all samples made anew."""
        everything = self._total("fit", "held")
        if everything is None or not len(self.rows):  # without training samples there is no shrinkage either
            return self
        (classifier,) = solve(everything, [self.shrink])
        present = self._published(rules, "fit", "held")
        return dataclasses.replace(self, everything=_of(present, classifier.rows), present=present)

    def _published(self, rules: FrameRules, *kinds: str) -> Tensor:
        """Return the classes that enough clients sent, ``[C]``, bool."""
        if self.pooled is not None:
            return self.pooled.published
        senders: dict[str, Tensor] = {}
        for (kind, client), block in self.blocks.items():
            if kind in kinds:
                senders.setdefault(client, torch.zeros_like(self.present))[block.class_ids] = True
        return torch.stack(list(senders.values())).sum(0) >= rules.contributors

    def _total(self, *kinds: str) -> Totals | None:
        if self.pooled is not None:
            return self.pooled.totals
        blocks = [block for (kind, _), block in self.blocks.items() if kind in kinds]
        return total(blocks, len(self.present), blocks[0].sums.shape[1]) if blocks else None

    def _chosen(self, rules: FrameRules, measured: Sequence[Measurements]) -> CommonState:
        """Return the state with the shrinkage and temperature of the smallest held-out loss."""
        losses = [m.losses for m in measured if m.losses is not None and len(m.losses) == len(self.rows)]
        if not self._choosing or not losses:
            return self
        best = int(torch.stack(losses).double().sum(0).argmin())
        shrink, temperature = divmod(best, len(rules.temperatures))
        return dataclasses.replace(
            self,
            shrink=rules.candidates[shrink],
            temperature=rules.temperatures[temperature],
            chosen_of=self._samples,
        )

    @property
    def _samples(self) -> float:
        """Number of training samples in the statistics."""
        if self.pooled is not None:
            return float(self.pooled.totals.counts.sum())
        return sum(float(b.counts.sum()) for (kind, _), b in self.blocks.items() if kind == "fit")

    def _mixing(self, measured: Sequence[Measurements]) -> CommonState:
        """Return the state with the share of held-out samples that each mixture gets wrong."""
        found = [m.mixtures.double() for m in measured if m.mixtures is not None]
        if not found:
            return self
        mean = torch.stack(found).sum(0) / sum(m.held for m in measured if m.mixtures is not None)
        return dataclasses.replace(self, mixtures=mean)

    def _moved(self, rules: FrameRules, measured: Sequence[Measurements]) -> CommonState:
        """Return the state after a gradient step: with the better row kept, and the next one to judge."""
        if self._choosing or not len(self.rows):
            return self
        state = self._judged(rules, measured)
        known = {client: float(b.counts.sum()) for (kind, client), b in state.blocks.items() if kind == "fit"}
        sent = [m for m in measured if m.gradient is not None and m.client in known]
        if not state._asks(rules) or not sent or state.worse > self.worse:  # gradients are of the row that was dropped
            return state
        fit = state._total("fit")
        assert fit is not None  # noqa: S101 - there are gradients of known clients
        row = stepped(
            self.rows[-1],
            state.start,
            torch.stack([m.gradient.double() for m in sent if m.gradient is not None]).sum(0),
            preconditioner(fit, state.shrink),
            samples=sum(known[m.client] for m in sent),
            temperature=state.temperature,
            step=rules.step / 2**state.worse,
            pull=rules.pull,
        )
        row = _of(state.present, row)
        return dataclasses.replace(state, rows=torch.stack([state.rows[0], row]), steps=state.steps + 1)

    def _judged(self, rules: FrameRules, measured: Sequence[Measurements]) -> CommonState:
        """Return the state with the row of the last step kept if it made the held-out loss smaller."""
        if len(self.rows) != 2 or not measured:
            return self
        losses = [m.losses.double() for m in measured if m.losses is not None and len(m.losses) == 2]
        if not losses:  # nobody holds samples out, so nobody can judge
            return dataclasses.replace(self, rows=self.rows[1:])
        best, new = torch.stack(losses).sum(0)[:, rules.temperatures.index(self.temperature)].tolist()
        if new < best:
            return dataclasses.replace(self, rows=self.rows[1:], worse=0)
        return dataclasses.replace(self, rows=self.rows[:1], worse=self.worse + 1)


def _of(classes: Tensor, rows: Tensor) -> Tensor:
    """Return rows ``[C, D + 1]``, zero but for these classes: gradients would also move others, which clients hold."""
    return torch.where(classes.unsqueeze(1), rows, 0.0)


_TENSORS = ("present", "rows", "start", "everything", "mixtures")
_NUMBERS = ("first", "shrink", "temperature", "chosen_of", "steps", "worse")
