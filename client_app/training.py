"""Local training, statistics and evaluation: plain torch, no Flower."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from isoproto.data import ClientData, to_float
from isoproto.data.augment import AUGMENTATIONS
from isoproto.geometry.class_sums import ClassSums
from isoproto.parts.base import Batch, Compare, LossTerm
from isoproto.precision import full_precision, wide
from isoproto.seeding import derive
from models import FeatureModel

# Most numbers in a forward pass without gradients. On a CPU, the feature maps of more do not fit into the cache: 300
# pictures 32x32x3 at once took a quarter longer than in three parts.
_EVAL_NUMBERS = {"cpu": 5 * 2**16, "other": 2**24}
_RESIDENT = 2**30  # most bytes of pictures that are copied to the device before training
_TOKEN_NUMBERS = 64  # a token counts as this many numbers, because it becomes a vector


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """How a client trains in a round. The fields have the names of the settings."""

    epochs: int
    batch_size: int
    optimizer: str
    learning_rate: float
    momentum: float
    weight_decay: float
    proto_source: str
    batches: str = "shuffled"
    augment: str = "none"
    amp: str = "off"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Class sums of features and their scatter about the class means.

    Attributes:
        sums: Sum and count of the features of each class.
        squares: Sum of squared feature norms over all samples, shape ``[]``, float64 where the device has it.
    """

    sums: ClassSums
    squares: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, num_classes: int) -> "Statistics":
        """Summarise ``features`` ``[B, d]`` with ``labels`` ``[B]``."""
        return cls(ClassSums.of(features, labels, num_classes), features.square().sum(dtype=wide(features)))

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(self.sums + other.sums, self.squares + other.squares)

    def scatter(self) -> float:
        r"""Return :math:`\sum_i \|z_i - P^{y_i}\|^2 / \max(1, n - |U|)`, U the classes held."""
        means = self.sums.mean()
        between = (means.square().sum(dim=1, dtype=wide(means)) * self.sums.count).sum()
        freedom = int(self.sums.count.sum()) - int(self.sums.present.sum())
        return max(0.0, float(self.squares - between)) / max(1, freedom)


def batches(samples: int, size: int, generator: torch.Generator, order: str = "shuffled") -> Iterator[Tensor]:
    """Yield the indices of each batch of an epoch.

    With ``order = shuffled`` the samples are permuted. A last batch of one sample joins the batch before it: BatchNorm
    cannot train on a single sample, and a small client would lose much if the sample were dropped.

    With ``order = fixed`` the samples keep their order. Samples after the last whole batch are dropped, unless there is
    no whole batch.

    Example:
        >>> [len(b) for b in batches(7, 3, torch.Generator().manual_seed(0))]
        [3, 4]
        >>> [len(b) for b in batches(1, 3, torch.Generator().manual_seed(0))]
        [1]
        >>> [b.tolist() for b in batches(7, 3, torch.Generator(), "fixed")]
        [[0, 1, 2], [3, 4, 5]]
    """
    fixed = order != "shuffled"
    index = torch.arange(samples) if fixed else torch.randperm(samples, generator=generator)
    edges = [*range(0, samples, size), samples]
    left = samples % size
    if samples > size and left and (fixed or left == 1):
        del edges[-1 if fixed else -2]
    for start, end in itertools.pairwise(edges):
        yield index[start:end]


def make_optimizer(model: nn.Module, settings: LocalSettings) -> torch.optim.Optimizer:
    """Return the local optimiser. It is made anew every round, so its momentum does not outlive a round."""
    parameters, rate, decay = model.parameters(), settings.learning_rate, settings.weight_decay
    # One fused pass over all tensors saves 2 to 6 % of a step of a small model, also on a CPU.
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay, fused=True)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, weight_decay=decay, fused=True)


def train(
    model: FeatureModel,
    data: ClientData,
    settings: LocalSettings,
    terms: Sequence[LossTerm],
    generator: torch.Generator,
) -> tuple[dict[str, float], Statistics | None]:
    r"""Train for some local epochs.

    .. math::
        L = CE(h(z), y) + \sum_t w_t L_t

    Reference: FedSAF, Eq. 19; FedHPro, Eq. 15. Without terms the loss is the cross-entropy alone. A term may also
    weigh the cross-entropy, and train a second module, see ``LossTerm``.

    Args:
        model: Trained in place, on its device.
        data: The client's data; at least one training sample.
        settings: Epochs, batches, optimiser, augmentation, precision of the model. Losses are always in float32.
        terms: What is added to the cross-entropy.
        generator: Source of the batch order. Its seed is also that of dropout and of the augmentation, so that neither
            changes the order.

    Returns:
        Mean loss terms of the last epoch by name, and running class statistics of its features if
        ``settings.proto_source`` asks for them.
    """
    device = next(model.parameters()).device
    # Copied once, because a copy for each batch makes the processor wait for the device.
    pictures = data.train_x.to(device) if data.train_x.nbytes <= _RESIDENT else data.train_x
    labels = data.train_y.to(device)
    modules = [model, *(term.module for term in terms if term.module is not None)]
    entropy, clip = math.prod(term.entropy for term in terms), max((term.clip for term in terms), default=0.0)
    for module in modules:  # a single sample has no batch statistics, so BatchNorm uses the running ones
        module.train(len(data.train_y) > 1)
    optimizers = [make_optimizer(module, settings) for module in modules]
    weights = [term.weights for term in terms]
    totals, counted = torch.zeros(2 + sum(map(len, weights)), device=device), 0
    running: Statistics | None = None
    augment = AUGMENTATIONS[settings.augment]
    draws = torch.Generator().manual_seed(derive(generator.initial_seed(), "augment"))
    amp = torch.autocast(device.type, torch.bfloat16) if settings.amp == "bf16" else nullcontext()
    with _dropout_from(generator, device):
        for epoch in range(settings.epochs):
            last = epoch == settings.epochs - 1
            for index, y, compare in _epoch(labels, pictures.device, settings, terms, generator):
                with amp:
                    x = to_float(augment(pictures[index].to(device), draws), model.layout)
                    features = model.features(x)
                    logits = model.head(features)
                # Losses and class means are computed from these, so they are in full precision.
                batch = Batch(x, full_precision(features), full_precision(logits), y, index)
                cross_entropy = functional.cross_entropy(batch.logits, y)
                values = [value(batch) for value in compare]
                loss = _weighted_sum(cross_entropy, entropy, values, weights)
                _step(loss, optimizers, modules, clip=clip)
                if last:
                    reported = [cross_entropy.detach().view(1), *(v.detach() for v in values), loss.detach().view(1)]
                    totals += torch.cat(reported) * len(y)
                    counted += len(y)
                if settings.proto_source == "all-epochs" or (last and settings.proto_source == "last-epoch"):
                    statistics = Statistics.of(batch.features.detach(), y, len(data.classes))
                    running = statistics if running is None else running + statistics
    return dict(zip(term_names(terms), (totals / counted).tolist(), strict=True)), running


def _epoch(
    labels: Tensor,
    pictures_on: torch.device,
    settings: LocalSettings,
    terms: Sequence[LossTerm],
    generator: torch.Generator,
) -> Iterator[tuple[Tensor, Tensor, tuple[Compare, ...]]]:
    """Draw the batches of an epoch.

    Args:
        labels: Classes of the training samples, where the model is.
        pictures_on: Device of the pictures.
        settings: Size and order of batches.
        terms: What is added to the cross-entropy.
        generator: Source of the batch order.

    Returns:
        For each batch: the indices of its samples on ``pictures_on``, their labels, and the comparison of each term.
    """
    steps = list(batches(len(labels), settings.batch_size, generator, settings.batches))
    order, sizes = torch.cat(steps), [len(step) for step in steps]
    in_order = labels[order.to(labels.device)].split(sizes)
    return zip(order.to(pictures_on).split(sizes), in_order, compared(terms, in_order), strict=True)


def term_names(terms: Sequence[LossTerm]) -> list[str]:
    """Return the names of the reported losses, in order."""
    return ["cross-entropy", *(name for term in terms for name in term.names), "total"]


def compared(terms: Sequence[LossTerm], labels: Sequence[Tensor]) -> Iterator[tuple[Compare, ...]]:
    """Yield, for each batch of an epoch, the comparison of each term."""
    if not terms:
        return itertools.repeat((), len(labels))
    return zip(*(term.batches(labels) for term in terms), strict=True)


def _weighted_sum(cross_entropy: Tensor, factor: float, values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Return the loss of a batch: the cross-entropy times its factor, and each term's values times their weights."""
    loss = cross_entropy if factor == 1 else factor * cross_entropy
    for value, weight in zip(values, weights, strict=True):
        loss = loss + value @ weight
    return loss


def _step(
    loss: Tensor, optimizers: Sequence[torch.optim.Optimizer], modules: Sequence[nn.Module], *, clip: float
) -> None:
    """Compute gradients, clip them, and let each optimiser make one step."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for module, optimizer in zip(modules, optimizers, strict=True):
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()


@contextmanager
def _dropout_from(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Seed dropout from ``generator`` while the block lasts. Dropout can only draw from the global generators."""
    seed, on_gpu = derive(generator.initial_seed(), "dropout"), device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield


def _equal_parts(x: Tensor, most: int) -> Sequence[Tensor]:
    return x.tensor_split(-(-len(x) // most)) if len(x) else ()


@torch.no_grad()
def extract(model: FeatureModel, x: Tensor) -> Tensor:
    """Return the features ``[n, d]`` of pictures or token ids ``x`` ``[n, ...]`` in eval mode."""
    model.eval()
    device = next(model.parameters()).device
    numbers = x[:1].numel() * (_TOKEN_NUMBERS if x.dtype == torch.int32 else 1)
    at_once = _EVAL_NUMBERS["cpu" if device.type == "cpu" else "other"] // max(1, numbers)
    # The parts are equal, because a short last part costs nearly as much as a full one.
    parts = [model.features(to_float(part.to(device), model.layout)) for part in _equal_parts(x, max(1, at_once))]
    return torch.cat(parts) if parts else torch.zeros(0, model.width, device=device)


@torch.no_grad()
def predict(
    model: FeatureModel, features: Tensor, labels: Tensor, prototypes: Tensor | None, present: Tensor | None
) -> tuple[Tensor, int | None]:
    """Return the head's prediction for each sample, and how many samples the nearest global prototype gets right.

    Args:
        model: The model whose head predicts.
        features: Shape ``[n, d]``.
        labels: Shape ``[n]``.
        prototypes: Global prototypes ``[C, d]``, or ``None``.
        present: Which classes have a prototype, ``[C]``, bool; or ``None``.

    Returns:
        The predicted classes ``[n]``, int64; and the count, ``None`` without prototypes.
    """
    labels = labels.to(features.device)
    predicted = model.head(features).argmax(dim=1)
    if prototypes is None or present is None or not bool(present.any()):
        return predicted, None
    # |z - p|^2 without |z|^2, which does not depend on the prototype.
    distance = prototypes.square().sum(dim=1) - 2 * features @ prototypes.T  # [n, C]
    nearest = distance.masked_fill(~present, torch.inf).argmin(dim=1)
    return predicted, int((nearest == labels).sum())
