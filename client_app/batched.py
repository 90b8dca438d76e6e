"""Train several small clients of one architecture as one program: plain torch, no Flower.

``client_app.stacked`` holds the stacked models. This module chooses which clients train so, and runs the training loop.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from client_app.stacked import LAYERS, Stack, padded_length, stacked_features
from client_app.training import LocalSettings, Statistics, batches, compared, make_optimizer
from isoproto.data import ClientData, to_float
from isoproto.losses import AlignmentLoss, batch_targets
from isoproto.parts.alignment import AlignmentTerm
from isoproto.parts.base import Batch, Compare, LossTerm
from models import FeatureModel

MOST_TOGETHER = 16
"""Most clients in one program. The weights and optimiser states of more clients do not fit into the cache."""

# If a training has at least this many steps left and half of its clients have finished, the finished ones are dropped
# from the stack.
_STEPS_LEFT = 8


class BatchLimit(NamedTuple):
    """Largest batch for which joint training of an architecture is faster.

    Attributes:
        samples: Most samples of a batch.
        pixels: Most pixels of a batch: samples times height times width.
    """

    samples: int
    pixels: float = math.inf


FASTER_TOGETHER: Mapping[str, BatchLimit] = {"mlp": BatchLimit(16), "tiny_cnn": BatchLimit(16, 10 * 64 * 64)}
"""The limit of each architecture, as measured (docs/adr/0008-cohort.md).

The limits are fixed and not measured at run time: the two ways of training round differently, and a run must be
repeatable.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One client that trains with others; the arguments of ``client_app.training.train``.

    Attributes:
        parameters: Its weights when training begins, by name; only read.
        data: Its data; at least one training sample.
        generator: Source of the batch order.
        terms: What is added to the cross-entropy.
    """

    parameters: Mapping[str, Tensor]
    data: ClientData
    generator: torch.Generator
    terms: tuple[LossTerm, ...] = ()

    @property
    def alignment(self) -> AlignmentTerm | None:
        """The term that is computed for all clients at once."""
        return next((term for term in self.terms if type(term) is AlignmentTerm), None)

    @property
    def others(self) -> tuple[LossTerm, ...]:
        """The terms that are computed client by client."""
        return tuple(term for term in self.terms if term is not self.alignment)


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of one client's training.

    Attributes:
        parameters: Its weights, by name.
        losses: Mean loss terms of the last epoch by name, as ``client_app.training.train`` returns them.
        running: Running class statistics of its features, if the settings ask for them.
        seconds: The time that the training took, divided by the number of clients.
    """

    parameters: dict[str, Tensor]
    losses: dict[str, float]
    running: Statistics | None
    seconds: float


def batchable(term: LossTerm) -> bool:
    """Return whether :func:`train_together` can train with a term.

    It cannot change the weight of the cross-entropy, train a second module, or limit gradients.
    """
    return term.entropy == 1 and term.module is None and not term.clip


def trains_faster_together(architecture: str, batch_size: int, pixels: int, device: torch.device) -> bool:
    """Return whether clients of an architecture are trained by :func:`train_together`.

    Also used for a single client: which clients share a worker is random and must not change the result. A single
    client takes a little longer this way.

    Args:
        architecture: Name in ``MODELS``.
        batch_size: Samples of a batch.
        pixels: Height times width of a picture.
        device: Where they train.

    Example:
        >>> cpu = torch.device("cpu")
        >>> [trains_faster_together("mlp", size, 32 * 32, cpu) for size in (10, 64)]
        [True, False]
        >>> [trains_faster_together("tiny_cnn", 10, pixels, cpu) for pixels in (64 * 64, 224 * 224)]
        [True, False]
        >>> trains_faster_together("resnet18", 10, 32 * 32, cpu)
        False
    """
    limit = FASTER_TOGETHER.get(architecture, BatchLimit(0))
    return device.type == "cpu" and batch_size <= limit.samples and batch_size * pixels <= limit.pixels


def train_together(model: FeatureModel, members: Sequence[Member], settings: LocalSettings) -> list[Trained]:
    """Train each member as ``client_app.training.train`` does, up to rounding.

    A client that has no more batches drops out. A batch that is shorter than others is filled up with samples of
    weight 0.

    Args:
        model: Says what the layers are; see ``stackable``. Its weights are neither read nor changed.
        members: The clients, on one device.
        settings: Epochs, batches, optimiser; the same for all. Pictures are not augmented.

    Returns:
        The result of each member, in the order of ``members``.
    """
    rows = settings.batch_size + 1  # the longest batch that `batches` yields to any client
    courses = [_Course.of(member, settings, rows) for member in members]
    # Longest training first, so that the clients that still train are always a prefix of their group.
    order = sorted(range(len(members)), key=lambda i: -len(courses[i].sizes))
    trained: dict[int, Trained] = {}
    for aligned in (True, False):
        alike = [i for i in order if (members[i].alignment is not None) == aligned]
        for start in range(0, len(alike), MOST_TOGETHER):
            indices = alike[start : start + MOST_TOGETHER]
            results = _Group(model, [members[i] for i in indices], [courses[i] for i in indices], settings).train()
            trained |= zip(indices, results, strict=True)
    return [trained[i] for i in range(len(members))]


@dataclass(frozen=True, slots=True)
class _Course:
    """All batches of one client's training, in order.

    Attributes:
        order: Indices of samples, all batches of all epochs.
        sizes: Samples of each batch.
        goals: What each batch is aligned to: constants of the ``AlignmentLoss`` for ``rows`` rows, and factors of both
            terms. Empty without an alignment.
        compares: The comparisons of each batch that are made client by client.
        last: Index of the first batch of the last epoch.
    """

    order: Tensor
    sizes: list[int]
    goals: list[tuple[Tensor, ...]]
    compares: list[tuple[Compare, ...]]
    last: int

    @classmethod
    def of(cls, member: Member, settings: LocalSettings, rows: int) -> "_Course":
        """Draw a client's batches, and compute what depends on labels only.

        Args:
            member: The client.
            settings: Epochs and batches.
            rows: Rows of the longest batch of any client.
        """
        labels, steps, last = member.data.train_y, list[Tensor](), 0
        for _ in range(settings.epochs):
            last = len(steps)
            steps += batches(len(labels), settings.batch_size, member.generator, settings.batches)
        order, sizes = torch.cat(steps), [len(step) for step in steps]
        in_order = labels[order].split(sizes)
        aligned = list(_goals(member.alignment, in_order, rows)) if member.alignment else []
        return cls(order, sizes, aligned, list(compared(member.others, in_order)), last)


def _goals(alignment: AlignmentTerm, labels: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield what each batch is aligned to. Rows that fill a batch up get one more class, which has no prototype."""
    classes, device, rows = len(alignment.present), alignment.present.device, padded_length(rows)
    present = functional.pad(alignment.present, (0, 1))
    target = functional.pad(alignment.target, (0, int(alignment.loss.relations is not None), 0, 1))
    filled = [functional.pad(y, (0, rows - len(y)), value=classes).to(device) for y in labels]
    targets = batch_targets(alignment.loss, filled, target, present, missing=alignment.missing)
    for y, batch in zip(labels, targets, strict=True):
        factors = torch.ones(2, device=device)
        if batch.factors is not None:  # the share of samples that have a prototype
            factors[1] = batch.factors[1] * rows / len(y)
        yield *batch.constants, factors


class _Timetable(NamedTuple):
    """Which samples each client trains on in each of S steps, in batches of equally many rows.

    The number of rows does not depend on the clients, because products of other shapes are summed in another order.

    Attributes:
        pictures: Index of each sample among the samples of all clients, ``[S, k, rows]``.
        labels: Class of each sample, ``[S, k, rows]``.
        shares: Weight of each sample in the mean of its batch, ``[S, k, rows]``; 0 for rows that fill a batch up.
        counted: Samples of each batch of the last epoch, ``[S, k, 1]``; 0 for earlier epochs.
        first: Index of each client's first sample among the samples of all clients, ``[k, 1]``.
    """

    pictures: Tensor
    labels: Tensor
    shares: Tensor
    counted: Tensor
    first: Tensor

    @classmethod
    def of(cls, members: Sequence[Member], courses: Sequence[_Course], rows: int) -> "_Timetable":
        """Write the batches of some clients into tables."""
        shape = len(courses[0].sizes), len(courses), rows
        pictures, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
        shares, counted = torch.zeros(shape), torch.zeros(*shape[:2], 1)
        first, start = torch.zeros(len(members), 1, dtype=torch.int64), 0
        for i, (member, course) in enumerate(zip(members, courses, strict=True)):
            sizes = torch.tensor(course.sizes).unsqueeze(1)
            real = torch.arange(shape[2]) < sizes
            pictures[:, i] = first[i] = start  # rows that fill a batch up show the client's first sample
            pictures[: len(sizes), i].masked_scatter_(real, course.order + start)
            labels[: len(sizes), i].masked_scatter_(real, member.data.train_y[course.order])
            shares[: len(sizes), i] = real / sizes
            counted[course.last : len(sizes), i] = sizes[course.last :].float()
            start += len(member.data.train_y)
        return cls(pictures, labels, shares, counted, first)


class _Group:
    """Clients that train as one program. Either all of them have an alignment term, or none has.

    Args:
        model: Says what the layers are.
        members: The clients, those with the most batches first.
        courses: Their batches.
        settings: How they train.
    """

    def __init__(
        self, model: FeatureModel, members: Sequence[Member], courses: Sequence[_Course], settings: LocalSettings
    ) -> None:
        self._started = time.perf_counter()
        self._model, self._members, self._courses, self._settings = model, members, courses, settings
        device = next(iter(members[0].parameters.values())).device
        self._table = _Timetable(
            *(table.to(device) for table in _Timetable.of(members, courses, settings.batch_size + 1))
        )
        self._stack = Stack.of([member.parameters for member in members])
        self._optimizer = make_optimizer(nn.ParameterList([self._stack.vector]), settings)
        self._alignment = members[0].alignment
        if self._alignment:
            self._alignment_weights = torch.stack([m.alignment.weights for m in members if m.alignment])
        self._others = list(dict.fromkeys(name for m in members for term in m.others for name in term.names))
        terms = (*(self._alignment.names if self._alignment else ()), *self._others)
        self._names = ("cross-entropy", *terms, "total")
        self._totals = torch.zeros(len(members), len(self._names), device=device)
        self._running: list[Statistics | None] = [None] * len(members)
        self._finished: list[dict[str, Tensor]] = []  # weights of the clients that have no more batches
        self._x = torch.cat([member.data.train_x for member in members]).to(device)
        self._active = len(members)
        self._weights = self._stack.first(self._active)

    def train(self) -> list[Trained]:
        """Train all clients, and return their results in order."""
        for step in range(len(self._courses[0].sizes)):
            if len(self._courses[self._active - 1].sizes) <= step:
                self._drop_finished(step)
            self._train_step(step)
        parameters = [*map(self._stack.row, range(self._active)), *self._finished]
        means = self._totals / self._table.counted.sum(0)
        seconds = (time.perf_counter() - self._started) / len(self._members)
        return [
            Trained(rows, dict(zip(self._names, losses, strict=True)), statistics, seconds)
            for rows, losses, statistics in zip(parameters, means.tolist(), self._running, strict=True)
        ]

    def _drop_finished(self, step: int) -> None:
        """Keep the weights of clients that have no batch in this step, and go on without these clients."""
        sizes = [len(course.sizes) for course in self._courses]
        finished = range(sum(size > step for size in sizes), self._active)
        self._finished = [*map(self._stack.row, finished), *self._finished]
        self._active = finished.start
        if sizes[0] - step >= _STEPS_LEFT and 2 * self._active <= self._stack.clients:
            self._stack, self._optimizer = self._stack.narrowed(self._active, self._optimizer, self._settings)
        self._weights = self._stack.first(self._active)

    def _train_step(self, step: int) -> None:
        """Train each active client on one batch."""
        active, weights = self._active, self._weights
        labels = self._table.labels[step, :active]
        inputs = to_float(self._x[self._table.pictures[step, :active]])
        features = stacked_features(self._model, weights, inputs)
        logits = LAYERS[nn.Linear](self._model.head, features, weights["head.weight"], weights["head.bias"])
        each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        cross_entropy = (each.view(active, -1) * self._table.shares[step, :active]).sum(1)
        columns, loss = [cross_entropy.unsqueeze(1)], cross_entropy
        if self._alignment is not None:
            goals = [course.goals[step] for course in self._courses[:active]]
            terms = _aligned(self._alignment.loss, features, goals)
            loss = loss + (terms * self._alignment_weights[:active]).sum(1)
            columns.append(terms)
        if self._others:
            indices = self._table.pictures[step, :active] - self._table.first[:active]
            values, added = self._other_terms(step, Batch(inputs, features, logits, labels, indices))
            loss = loss + added
            columns.append(values)
        loss.sum().backward()
        self._optimizer.step()
        columns.append(loss.unsqueeze(1))
        self._totals[:active] += torch.cat(columns, 1).detach() * self._table.counted[step, :active]
        if self._settings.proto_source != "post-eval":
            self._add_statistics(step, features.detach(), labels)

    def _other_terms(self, step: int, stacked: Batch) -> tuple[Tensor, Tensor]:
        """Return the values of the terms that are computed client by client, ``[k, t]``, and their weighted sums."""
        results = [
            _one_by_one(member, course.compares[step], batch, course.sizes[step], self._others)
            for member, course, batch in zip(self._members, self._courses, map(Batch, *stacked), strict=False)
        ]
        values, added = map(torch.stack, zip(*results, strict=True))
        return values, added

    def _add_statistics(self, step: int, features: Tensor, labels: Tensor) -> None:
        """Add the features of a batch to each client's running statistics, in the epochs that the settings ask for."""
        for i, (course, rows, y) in enumerate(zip(self._courses, features, labels, strict=False)):
            if self._settings.proto_source == "all-epochs" or step >= course.last:
                size, before = course.sizes[step], self._running[i]
                statistics = Statistics.of(rows[:size], y[:size], len(self._members[i].data.classes))
                self._running[i] = statistics if before is None else before + statistics


def _aligned(loss: AlignmentLoss, features: Tensor, goals: Sequence[tuple[Tensor, ...]]) -> Tensor:
    """Return the prototype and the instance term of each client, ``[k, 2]``, of features ``[k, B, d]``."""
    if len(goals) == 1:  # torch ignores a first axis of length 1, and sums over the other axes take another order
        return _aligned(loss, torch.cat([features, features]), [*goals, *goals])[:1]
    features = functional.pad(features, (0, 0, 0, padded_length(features.shape[1]) - features.shape[1]))
    *constants, factors = map(torch.stack, zip(*goals, strict=True))
    terms: Tensor = torch.vmap(loss.compare)(features, *constants) * factors
    return terms


def _one_by_one(
    member: Member, compares: Sequence[Compare], padded: Batch, size: int, names: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Compute the terms of one client that are not stacked, on the first ``size`` samples of its batch.

    Returns:
        Their values by ``names``, shape ``[len(names)]``, and their weighted sum, shape ``[]``.
    """
    batch = Batch(*(rows[:size] for rows in padded))
    values = {name: batch.features.new_zeros(()) for name in names}
    weighted_sum = batch.features.new_zeros(())
    for i, (term, compare) in enumerate(zip(member.others, compares, strict=True)):
        of_term = compare(batch)
        values |= zip(term.names, of_term, strict=True)
        weighted_sum = of_term @ term.weights if i == 0 else weighted_sum + of_term @ term.weights
    return torch.stack(list(values.values())), weighted_sum
