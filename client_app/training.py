"""Local training, statistics and evaluation: plain torch, no Flower."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from isoproto.data import ClientData, to_float
from isoproto.data.augment import AUGMENTATIONS
from isoproto.geometry.class_sums import ClassSums
from isoproto.losses import AlignmentLoss, BatchTarget, batch_targets
from isoproto.losses.anchors import Anchors
from isoproto.precision import full_precision, wide
from isoproto.seeding import derive
from models import FeatureModel

# Numbers per forward pass without gradients. On a CPU the feature maps of more fall out of the cache: 300 pictures
# 32x32x3 at once took a quarter longer than in three parts.
_EVAL_NUMBERS = {"cpu": 5 * 2**16, "other": 2**24}
_RESIDENT = 2**30  # bytes of pictures up to which a client's data lie on its device while it trains
_TOKEN_NUMBERS = 64  # what a token counts for: it becomes a vector

TERMS = ("cross-entropy", "prototype", "instance", "hpcl", "hpal", "total")
"""Names of the loss terms that are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """How a client trains in a round; names as in ``RunConfig``."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What the client is aligned to in a round.

    Attributes:
        loss: Entry of ``LOSSES``.
        target: What ``loss.target`` made of the global prototypes, once.
        present: Which classes have a global prototype, ``[C]``, bool.
        lambda_: Weight of the prototype-level term.
        gamma: Weight of the instance-level term.
        missing: What becomes of samples without a global prototype, see ``batch_targets``.
    """

    loss: AlignmentLoss
    target: Tensor
    present: Tensor
    lambda_: float
    gamma: float
    missing: Literal["mask", "self"] = "mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchoring:
    """What HPCL and HPAL pull a client's features to in a round, and how much.

    Attributes:
        anchors: Both losses.
        pcl: Weight of HPCL.
        pal: Weight of HPAL.
    """

    anchors: Anchors
    pcl: float
    pal: float


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
    """Yield index batches over a fresh permutation; a last batch of one joins the one before it.

    BatchNorm cannot train on a single sample, and dropping the sample would lose it in small clients. In an ``order``
    that is ``fixed`` samples come as they lie, and what is behind the last whole batch never does, unless it is all.

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
    """Return the local optimiser; it is made anew every round, its momentum does not survive one."""
    parameters, rate, decay = model.parameters(), settings.learning_rate, settings.weight_decay
    # Fused: one pass over all tensors takes 2 to 6 % off a step of a small model, also on a CPU.
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay, fused=True)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, weight_decay=decay, fused=True)


def train(
    model: FeatureModel,
    data: ClientData,
    settings: LocalSettings,
    alignment: Alignment | None,
    generator: torch.Generator,
    anchoring: Anchoring | None = None,
) -> tuple[dict[str, float], Statistics | None]:
    r"""Train for some local epochs.

    .. math::
        L = CE(h(z), y) + \lambda L_{proto} + \gamma L_{inst} + w_{pcl} HPCL + w_{pal} HPAL

    Reference: FedSAF, Eq. 19; FedHPro, Eq. 15. Without anything global the loss is CE alone.

    Args:
        model: Trained in place; on the device that the data are moved to.
        data: The client's data; at least one training sample.
        settings: Epochs, batches, optimiser, augmentation, precision of the model (losses are in float32 always).
        alignment: What to align to.
        generator: Source of the batch order; its seed is also that of dropout and of the
            augmentation, so that neither changes the order.
        anchoring: What to pull to.

    Returns:
        Mean loss terms of the last epoch, and running class statistics of its features if
        ``settings.proto_source`` asks for them.
    """
    device = next(model.parameters()).device
    samples = len(data.train_y)
    # All at once: a copy for each batch would have the processor wait for the device.
    pictures = data.train_x.to(device) if data.train_x.nbytes <= _RESIDENT else data.train_x
    # A single sample has no batch statistics: its model trains on the running ones.
    model.train(samples > 1)
    optimizer = make_optimizer(model, settings)
    weights = torch.tensor([alignment.lambda_, alignment.gamma] if alignment else [0.0, 0.0], device=device)
    pulls = torch.tensor([anchoring.pcl, anchoring.pal] if anchoring else [0.0, 0.0], device=device)
    nothing = torch.zeros(2, device=device)
    totals = torch.zeros(len(TERMS), device=device)
    running: Statistics | None = None
    augment = AUGMENTATIONS[settings.augment]
    draws = torch.Generator().manual_seed(derive(generator.initial_seed(), "augment"))
    amp = torch.autocast(device.type, torch.bfloat16) if settings.amp == "bf16" else nullcontext()
    with _dropout_from(generator, device):
        for epoch in range(settings.epochs):
            last = epoch == settings.epochs - 1
            steps = list(batches(samples, settings.batch_size, generator, settings.batches))
            order, sizes = torch.cat(steps), [len(step) for step in steps]
            labels = data.train_y.to(device)[order.to(device)].split(sizes)
            parts = order.to(pictures.device).split(sizes)
            for index, y, goal in zip(parts, labels, _goals(alignment, labels), strict=False):
                with amp:
                    x = to_float(augment(pictures[index].to(device), draws), model.layout)
                    features = model.features(x)
                    logits = model.head(features)
                features = full_precision(features)  # what losses and class means are made of
                loss = cross_entropy = functional.cross_entropy(full_precision(logits), y)
                terms = drawn = nothing
                if goal is not None:
                    terms = goal(features)
                    loss = loss + terms @ weights
                if anchoring is not None:
                    drawn = anchoring.anchors(features, y)
                    loss = loss + drawn @ pulls
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                if last:
                    told = cross_entropy.detach().view(1), terms.detach(), drawn.detach(), loss.detach().view(1)
                    totals += torch.cat(told) * len(y)
                if settings.proto_source == "all-epochs" or (last and settings.proto_source == "last-epoch"):
                    seen = Statistics.of(features.detach(), y, len(data.classes))
                    running = seen if running is None else running + seen
    means = (totals / sum(sizes)).tolist()
    return dict(zip(TERMS, means, strict=True)), running


@contextmanager
def _dropout_from(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Let dropout, which draws from the global generators alone, draw from the seed of ``generator``."""
    seed, on_gpu = derive(generator.initial_seed(), "dropout"), device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield


def _goals(alignment: Alignment | None, labels: Sequence[Tensor]) -> Iterator[BatchTarget | None]:
    """What each batch of an epoch is aligned to; ``None`` for ever without an alignment."""
    if alignment is None:
        return itertools.repeat(None)
    return batch_targets(alignment.loss, labels, alignment.target, alignment.present, missing=alignment.missing)


def _equal_parts(x: Tensor, most: int) -> Sequence[Tensor]:
    return x.tensor_split(-(-len(x) // most)) if len(x) else ()


@torch.no_grad()
def extract(model: FeatureModel, x: Tensor) -> Tensor:
    """Return the features ``[n, d]`` of pictures or token ids ``x`` ``[n, ...]`` in eval mode."""
    model.eval()
    device = next(model.parameters()).device
    numbers = x[:1].numel() * (_TOKEN_NUMBERS if x.dtype == torch.int32 else 1)
    at_once = _EVAL_NUMBERS["cpu" if device.type == "cpu" else "other"] // max(1, numbers)
    # Equal parts: a short one at the end costs nearly as much as a full one.
    parts = [model.features(to_float(part.to(device), model.layout)) for part in _equal_parts(x, max(1, at_once))]
    return torch.cat(parts) if parts else torch.zeros(0, model.width, device=device)


@torch.no_grad()
def predict(
    model: FeatureModel, features: Tensor, labels: Tensor, prototypes: Tensor | None, present: Tensor | None
) -> tuple[Tensor, int | None]:
    """Return the class that the head gives each sample, and how many the nearest global prototype gets right.

    Args:
        model: Gives the head.
        features: Shape ``[n, d]``.
        labels: Shape ``[n]``.
        prototypes: Global prototypes ``[C, d]``, or ``None``.
        present: Which of them there are, ``[C]``.

    Returns:
        An int64 tensor ``[n]``; a count, or ``None`` without prototypes.
    """
    labels = labels.to(features.device)
    predicted = model.head(features).argmax(dim=1)
    if prototypes is None or present is None or not bool(present.any()):
        return predicted, None
    # |z - p|^2 without |z|^2, which is the same for all prototypes of a sample.
    distance = prototypes.square().sum(dim=1) - 2 * features @ prototypes.T  # [n, C]
    nearest = distance.masked_fill(~present, torch.inf).argmin(dim=1)
    return predicted, int((nearest == labels).sum())
