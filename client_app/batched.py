"""Several small clients of one architecture trained as one program: plain torch, no Flower.

A step of a small model is a hundred small operations, and most of its time is spent on starting them. Here each is
started once for all clients: their weights are stacked along a first axis k, a linear layer is one batched product.

What a client's weights become depends on nobody beside it, to the last bit on a CPU: every operation works on each
client's (or sample's) own slice, in the same order whatever k is. Convolutions are therefore batched products of
patches too; grouped convolutions are faster, but oneDNN rounds them differently for each number of groups.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from client_app.training import LocalSettings, Statistics, batches, compared, make_optimizer
from isoproto.data import ClientData, to_float
from isoproto.losses import AlignmentLoss, batch_targets
from isoproto.parts.alignment import AlignmentTerm
from isoproto.parts.base import Batch, Compare, LossTerm
from models import FeatureModel
from models.base import CellPool, ChannelsLast

MOST_TOGETHER = 16
"""Most clients in one program: the weights of more, and what the optimiser keeps of them, fall out of the cache."""

# Weights of all clients, and samples that are compared with each other, come in multiples of this many: what a vector
# instruction leaves over is computed by scalar ones, which round differently, and so do products of matrices that do
# not begin where such a vector does. Neither may depend on how many clients there are, and at which place one is.
_LANES = 16

# Where a training has at least so many steps left and half of its clients are through, the others go on by themselves.
_STEPS_LEFT = 8


class BatchLimit(NamedTuple):
    """Up to what an architecture trains faster so.

    Attributes:
        samples: Of a batch.
        pixels: Of a batch, all channels of one counted once.
    """

    samples: int
    pixels: float = math.inf


FASTER_TOGETHER: Mapping[str, BatchLimit] = {"mlp": BatchLimit(16), "tiny_cnn": BatchLimit(16, 10 * 64 * 64)}
"""By architecture; measured, see docs/adr/0008-cohort.md.

A table and not a measurement of the day: the two ways round differently, and a run must be repeatable.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One client of a cohort; the arguments of ``client_app.training.train``.

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
        return next((term for term in self.terms if isinstance(term, AlignmentTerm)), None)

    @property
    def others(self) -> tuple[LossTerm, ...]:
        """The terms that are computed client by client."""
        return tuple(term for term in self.terms if not isinstance(term, AlignmentTerm))


@dataclass(frozen=True, slots=True)
class Trained:
    """What became of a member.

    Attributes:
        parameters: Its weights.
        losses: What ``client_app.training.train`` returns.
        running: Likewise.
        seconds: Its share of the time that it took.
    """

    parameters: dict[str, Tensor]
    losses: dict[str, float]
    running: Statistics | None
    seconds: float


def _rounded(length: int) -> int:
    return -(-length // _LANES) * _LANES


def trains_faster_together(architecture: str, batch_size: int, pixels: int, device: torch.device) -> bool:
    """Whether clients of an architecture are trained by :func:`train_together`, be they many or one.

    One alone, too, although it takes a little longer: who trains beside whom is a matter of time and chance, and must
    not change the last bit.

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


class Weights(NamedTuple):
    """A tensor of weights of k clients and where its gradient is to be written, both ``[k, ...]`` and contiguous."""

    value: Tensor
    gradient: Tensor


class _Products(torch.autograd.Function):
    """``x @ weight.mT + bias`` of each client; gradients of weights are written where the optimiser reads them.

    Autograd would hand them over in a tensor of their own, transposed: two passes more over the largest tensors.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *gradients: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.gradients = gradients
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        of_weight, of_bias = ctx.gradients
        gradient = gradient.contiguous()
        torch.bmm(gradient.mT, x, out=of_weight)
        torch.sum(gradient, 1, out=of_bias)
        return (gradient @ weight if ctx.needs_input_grad[0] else None), None, None, None, None


class _Affine(torch.autograd.Function):
    """``x * weight + bias`` channel by channel, for ``x`` ``[k, B, c, cells]``; gradients as in ``_Products``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *gradients: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.gradients = gradients
        return torch.addcmul(bias[:, None, :, None], x, weight[:, None, :, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        of_weight, of_bias = ctx.gradients
        torch.sum(gradient * x, (1, 3), out=of_weight)
        torch.sum(gradient, (1, 3), out=of_bias)
        return gradient * weight[:, None, :, None], None, None, None, None


def _apply(function: type[torch.autograd.Function], x: Tensor, weight: Weights, bias: Weights) -> Tensor:
    y: Tensor = function.apply(x, weight.value, bias.value, weight.gradient, bias.gradient)
    return y


def _linear(layer: nn.Linear, x: Tensor, weight: Weights, bias: Weights) -> Tensor:
    return _apply(_Products, x, weight, bias)


def _convolution(layer: nn.Conv2d, x: Tensor, weight: Weights, bias: Weights) -> Tensor:
    """A batched product of patches."""
    padding = tuple(int(pad) for pad in layer.padding)  # a word is refused by `stackable`
    rows, columns = (
        (side + 2 * pad - kernel) // step + 1
        for side, pad, kernel, step in zip(x.shape[3:], padding, layer.kernel_size, layer.stride, strict=True)
    )
    patches = functional.unfold(x.flatten(0, 1), layer.kernel_size, padding=padding, stride=layer.stride)
    patches = patches.mT.reshape(len(x), -1, patches.shape[1])  # [k, B * cells, c * kernel]
    flat = Weights(*(tensor.flatten(2) for tensor in weight))
    return _apply(_Products, patches, flat, bias).view(len(x), -1, rows, columns, layer.out_channels).movedim(4, 2)


def _group_norm(layer: nn.GroupNorm, x: Tensor, weight: Weights, bias: Weights) -> Tensor:
    normal = functional.group_norm(x.flatten(0, 1), layer.num_groups, eps=layer.eps)
    return _apply(_Affine, normal.view(*x.shape[:3], -1), weight, bias).view(x.shape)


def _each(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer without weights, sample by sample."""
    y: Tensor = layer(x.flatten(0, 1))
    return y.view(*x.shape[:2], *y.shape[1:])


# Each maps the samples ``[k, B, ...]`` of k clients with their own weights ``[k, ...]``.
LAYERS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.ReLU: lambda layer, x: x.relu(),
    nn.Flatten: lambda layer, x: x.flatten(2),
    nn.MaxPool2d: _each,
    CellPool: _each,
    ChannelsLast: lambda layer, x: x,
}


def stackable(model: FeatureModel) -> bool:
    """Whether :func:`train_together` can train such models: a chain of ``LAYERS`` and a linear head.

    BatchNorm is none of them: its models gain too little (docs/adr/0008-cohort.md).
    """
    return (
        isinstance(model.head, nn.Linear)
        and isinstance(model.base, nn.Sequential)
        and all(type(layer) in LAYERS for layer in model.base)
        and all(
            layer.groups == 1
            and layer.dilation == (1, 1)
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and layer.bias is not None
            for layer in model.base
            if isinstance(layer, nn.Conv2d)
        )
    )


def stacked_features(model: FeatureModel, weights: Mapping[str, Weights], x: Tensor) -> Tensor:
    """Return the features of k clients' samples, each client by its own weights.

    Args:
        model: Says what the layers are.
        weights: By the model's names.
        x: Shape ``[k, B, channels, height, width]``.

    Returns:
        Shape ``[k, B, d]``.
    """
    for name, layer in model.base.named_children():
        own = (weights[f"base.{name}.{key}"] for key, _ in layer.named_parameters())
        x = LAYERS[type(layer)](layer, x, *own)
    return x if x.shape[2] == model.width else functional.adaptive_avg_pool1d(x, model.width)


def train_together(model: FeatureModel, members: Sequence[Member], settings: LocalSettings) -> list[Trained]:
    """Train each member as ``client_app.training.train`` does, up to rounding.

    A client that has no more batches drops out; a batch that is shorter than others is filled up with samples that
    weigh nothing.

    Args:
        model: Says what the layers are; see :func:`stackable`. Its weights are neither read nor changed.
        members: The clients, on one device.
        settings: Epochs, batches, optimiser; the same for all. Pictures are not augmented.

    Returns:
        What became of each, in order.
    """
    rows = settings.batch_size + 1  # of the longest batch of any client, see `batches`
    courses = [_Course.of(member, settings, rows) for member in members]
    # Those with as many batches together, the longest first: whoever still trains is always a prefix.
    order = sorted(range(len(members)), key=lambda i: -len(courses[i].sizes))
    trained: dict[int, Trained] = {}
    for aligned in (True, False):
        alike = [i for i in order if (members[i].alignment is not None) == aligned]
        for start in range(0, len(alike), MOST_TOGETHER):
            group = alike[start : start + MOST_TOGETHER]
            together = _train_group(model, [members[i] for i in group], [courses[i] for i in group], settings)
            trained |= zip(group, together, strict=True)
    return [trained[i] for i in range(len(members))]


@dataclass(frozen=True, slots=True)
class _Course:
    """The batches of a client, one after the other.

    Attributes:
        order: Indices of samples, all batches of all epochs.
        sizes: Samples of each batch.
        goals: What each batch is aligned to: constants of the ``AlignmentLoss`` for ``rows`` rows, and factors of both
            terms. Empty without an alignment.
        compares: The comparisons of each batch that are made client by client.
        last: The first batch of the last epoch.
    """

    order: Tensor
    sizes: list[int]
    goals: list[tuple[Tensor, ...]]
    compares: list[tuple[Compare, ...]]
    last: int

    @classmethod
    def of(cls, member: Member, settings: LocalSettings, rows: int) -> "_Course":
        labels, steps, last = member.data.train_y, list[Tensor](), 0
        for _ in range(settings.epochs):
            last = len(steps)
            steps += batches(len(labels), settings.batch_size, member.generator, settings.batches)
        order, sizes = torch.cat(steps), [len(step) for step in steps]
        in_order = labels[order].split(sizes)
        aligned = list(_goals(member.alignment, in_order, rows)) if member.alignment else []
        return cls(order, sizes, aligned, list(compared(member.others, in_order)), last)


def _goals(alignment: AlignmentTerm, labels: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield what each batch is aligned to; what fills it up is of a class more, which has no prototype."""
    classes, device, rows = len(alignment.present), alignment.present.device, _rounded(rows)
    present = functional.pad(alignment.present, (0, 1))
    target = functional.pad(alignment.target, (0, int(alignment.loss.relations is not None), 0, 1))
    filled = [functional.pad(y, (0, rows - len(y)), value=classes).to(device) for y in labels]
    targets = batch_targets(alignment.loss, filled, target, present, missing=alignment.missing)
    for y, batch in zip(labels, targets, strict=True):
        factors = torch.ones(2, device=device)
        if batch.factors is not None:  # the share of samples that have a prototype
            factors[1] = batch.factors[1] * rows / len(y)
        yield *batch.constants, factors


def _train_group(
    model: FeatureModel, members: Sequence[Member], courses: Sequence[_Course], settings: LocalSettings
) -> list[Trained]:
    started = time.perf_counter()
    device = next(iter(members[0].parameters.values())).device
    pictures, labels, shares, counted = (
        table.to(device) for table in _timetable(members, courses, settings.batch_size + 1)
    )
    stack = _Stack.of([member.parameters for member in members])
    optimizer = make_optimizer(nn.ParameterList([stack.vector]), settings)
    alignment = members[0].alignment
    weighted = torch.stack([m.alignment.weights for m in members if m.alignment]) if alignment else None
    others = list(dict.fromkeys(name for member in members for term in member.others for name in term.names))
    names = [*(alignment.names if alignment else ()), *others]
    totals = torch.zeros(len(members), 2 + len(names), device=device)
    after: list[dict[str, Tensor]] = []
    running: list[Statistics | None] = [None] * len(members)
    x = torch.cat([member.data.train_x for member in members]).to(device)
    active, weights = len(members), stack.first(len(members))
    for step in range(len(courses[0].sizes)):
        if len(courses[active - 1].sizes) <= step:
            through = range(sum(len(course.sizes) > step for course in courses), active)
            after = [*map(stack.row, through), *after]
            active = through.start
            if len(courses[0].sizes) - step >= _STEPS_LEFT and 2 * active <= stack.clients:
                stack, optimizer = stack.narrowed(active, optimizer, settings)
            weights = stack.first(active)
        inputs = to_float(x[pictures[step, :active]])
        features = stacked_features(model, weights, inputs)
        logits = LAYERS[nn.Linear](model.head, features, weights["head.weight"], weights["head.bias"])
        losses = functional.cross_entropy(logits.flatten(0, 1), labels[step, :active].flatten(), reduction="none")
        entropy = (losses.view(active, -1) * shares[step, :active]).sum(1)
        seen, loss = [entropy.unsqueeze(1)], entropy
        if alignment is not None and weighted is not None:
            terms = _aligned(alignment.loss, features, [course.goals[step] for course in courses[:active]])
            loss = loss + (terms * weighted[:active]).sum(1)
            seen.append(terms)
        if others:
            each = map(Batch, inputs, features, logits, labels[step, :active])
            found = [
                _one_by_one(member, course.compares[step], batch, course.sizes[step], others)
                for member, course, batch in zip(members, courses, each, strict=False)
            ]
            values, pull = map(torch.stack, zip(*found, strict=True))
            loss = loss + pull
            seen.append(values)
        loss.sum().backward()
        optimizer.step()
        totals[:active] += torch.cat([*seen, loss.unsqueeze(1)], 1).detach() * counted[step, :active]
        if settings.proto_source != "post-eval":
            for i, (member, course, rows, y) in enumerate(
                zip(members, courses, features.detach(), labels[step], strict=False)
            ):
                if settings.proto_source == "all-epochs" or step >= course.last:
                    size, before = course.sizes[step], running[i]
                    seen_here = Statistics.of(rows[:size], y[:size], len(member.data.classes))
                    running[i] = seen_here if before is None else before + seen_here
    after = [*map(stack.row, range(active)), *after]
    means = totals / counted.sum(0)
    seconds = (time.perf_counter() - started) / len(members)
    return [
        Trained(rows, dict(zip(("cross-entropy", *names, "total"), losses, strict=True)), statistics, seconds)
        for rows, losses, statistics in zip(after, means.tolist(), running, strict=True)
    ]


def _timetable(
    members: Sequence[Member], courses: Sequence[_Course], rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for each step, client and row: which picture of all, its class, its share of the mean; and what counts.

    The first three have shape ``[S, k, rows]``; the last is ``[S, k, 1]``, the samples of a batch in the last epoch, or
    0. There are as many rows whoever is here: products of other shapes are summed in another order.
    """
    shape = len(courses[0].sizes), len(courses), rows
    pictures, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    shares, counted = torch.zeros(shape), torch.zeros(*shape[:2], 1)
    start = 0
    for i, (member, course) in enumerate(zip(members, courses, strict=True)):
        sizes = torch.tensor(course.sizes).unsqueeze(1)
        real = torch.arange(shape[2]) < sizes  # what fills a short batch up has a share of 0
        pictures[:, i] = start  # one of its own
        pictures[: len(sizes), i].masked_scatter_(real, course.order + start)
        labels[: len(sizes), i].masked_scatter_(real, member.data.train_y[course.order])
        shares[: len(sizes), i] = real / sizes
        counted[course.last : len(sizes), i] = sizes[course.last :].float()
        start += len(member.data.train_y)
    return pictures, labels, shares, counted


@dataclass(frozen=True, slots=True)
class _Stack:
    """The weights of k clients in one vector that an optimiser moves at once, tensor after tensor.

    Attributes:
        vector: All of them, and zeros up to a multiple of ``_LANES``.
        weights: Views ``[k, ...]`` of it and of its gradient, by name.
    """

    vector: nn.Parameter
    weights: dict[str, Weights]

    @classmethod
    def of(cls, clients: Sequence[Mapping[str, Tensor]]) -> "_Stack":
        stacked = {name: torch.stack([client[name].detach() for client in clients]) for name in clients[0]}
        return cls.over(_joined(stacked.values()), {name: tensor.shape for name, tensor in stacked.items()})

    @classmethod
    def over(cls, vector: Tensor, shapes: Mapping[str, torch.Size]) -> "_Stack":
        """Make views of a vector that holds tensors of these shapes one after the other."""
        parameter, slope = nn.Parameter(vector), torch.zeros_like(vector)
        parameter.grad = slope
        values, gradients = (_parts(row, shapes.values()) for row in (vector, slope))
        return cls(parameter, dict(zip(shapes, map(Weights, values, gradients), strict=True)))

    @property
    def clients(self) -> int:
        """K."""
        return len(next(iter(self.weights.values())).value)

    def narrowed(
        self, active: int, optimizer: torch.optim.Optimizer, settings: LocalSettings
    ) -> tuple["_Stack", torch.optim.Optimizer]:
        """Return the first clients alone, and an optimiser that goes on with them."""
        shapes = [weights.value.shape for weights in self.weights.values()]

        def narrow(vector: Tensor) -> Tensor:
            return _joined(part[:active] for part in _parts(vector, shapes))

        kept = {name: weights.value[:active].shape for name, weights in self.weights.items()}
        stack = _Stack.over(narrow(self.vector.detach()), kept)
        heir = make_optimizer(nn.ParameterList([stack.vector]), settings)
        for key, value in optimizer.state[self.vector].items():
            heir.state[stack.vector][key] = narrow(value) if value.shape == self.vector.shape else value
        return stack, heir

    def first(self, active: int) -> dict[str, Weights]:
        """Return the weights of the first clients.

        The optimiser moves the others on, by gradients of the past; nobody looks at them any more.
        """
        return {
            name: Weights(value[:active].requires_grad_(), gradient[:active])
            for name, (value, gradient) in self.weights.items()
        }

    def row(self, i: int) -> dict[str, Tensor]:
        """Return a copy of one client's weights."""
        return {name: value[i].clone() for name, (value, _) in self.weights.items()}


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    """Return all numbers of some tensors, and zeros up to a multiple of ``_LANES``."""
    vector = torch.cat([tensor.flatten() for tensor in tensors])
    return functional.pad(vector, (0, _rounded(len(vector)) - len(vector)))


def _parts(vector: Tensor, shapes: Iterable[torch.Size]) -> list[Tensor]:
    """Return views of what :func:`_joined` has made of tensors of these shapes."""
    sizes = [shape.numel() for shape in shapes]
    parts = vector[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _aligned(loss: AlignmentLoss, features: Tensor, goals: Sequence[tuple[Tensor, ...]]) -> Tensor:
    """Return the prototype and the instance term of each client, ``[k, 2]``, of features ``[k, B, d]``."""
    if len(goals) == 1:  # a first axis of length 1 is not one: sums behind it take another order
        return _aligned(loss, torch.cat([features, features]), [*goals, *goals])[:1]
    features = functional.pad(features, (0, 0, 0, _rounded(features.shape[1]) - features.shape[1]))
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
    batch = Batch(*(part[:size] for part in padded))
    values = {name: batch.features.new_zeros(()) for name in names}
    pull = batch.features.new_zeros(())
    for i, (term, compare) in enumerate(zip(member.others, compares, strict=True)):
        found = compare(batch)
        values |= zip(term.names, found, strict=True)
        pull = found @ term.weights if i == 0 else pull + found @ term.weights
    return torch.stack(list(values.values())), pull
