"""Hyper-prototypes: a few vectors per class, fitted by gradient matching.

They are moved until the gradient of a head at these vectors points where its gradient at real features points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.matching.feature_gradients import HeadFunction, cross_entropy_residuals, squared_radius
from isoproto.precision import full_precision
from isoproto.registry import lookup

TINY = 1e-12  # a gradient shorter than this has no direction
ABSOLUTE = 1e-6  # the released code of FedHPro adds this to a product of magnitudes


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """Hyper-prototypes after gradient matching, and the losses on the way.

    Attributes:
        vectors: Hyper-prototypes, shape ``[C, I, d]``, in the dtype in which they were given.
        losses: Sum of the losses of all classes before each step and after the last step, shape ``[M + 1]``.
        before: Loss of each class before the first step, shape ``[C]``; 0 for classes that are not ``used``.
        after: Loss of each class after the last step, shape ``[C]``; 0 for classes that are not ``used``.
        used: Classes that were matched, shape ``[C]``, bool. A class is not, and keeps its vectors bit for bit, if one
            of the two gradients has no direction or if a number overflows on the way.
    """

    vectors: Tensor
    losses: Tensor
    before: Tensor
    after: Tensor
    used: Tensor


def cosine_distance(produced: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return one minus the cosine between each row of ``produced`` ``[C, d]`` and the row of ``wanted`` ``[C, d]``.

    Rows of ``wanted`` must have length 1.

    Returns:
        Loss in [0, 2], shape ``[C]``, and its derivative with respect to ``produced``, shape ``[C, d]``.

    Example:
        >>> cosine_distance(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
        (tensor([1.]), tensor([[-0.5000,  0.0000]]))
    """
    length = produced.norm(dim=1, keepdim=True).clamp(min=TINY)
    direction = produced / length
    cosine = (direction * wanted).sum(1, keepdim=True)
    return (1 - cosine).squeeze(1).clamp(0, 2), (cosine * direction - wanted) / length


def coordinate_sign_distance(produced: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return twice the number of coordinates whose signs differ, with a narrow ramp at zero.

    .. math::
        \sum_q 1 - \frac{a_q b_q}{|a_q| |b_q| + 10^{-6}}

    The released code of FedHPro computes this where the paper has Eq. (8). Its slope is nearly zero except where
    :math:`|a_q b_q|` is about 1e-6 or less. There it depends on the lengths of the gradients.

    Returns:
        Loss in [0, 2 d], shape ``[C]``, and its derivative with respect to ``produced``, shape ``[C, d]``.

    Example:
        >>> coordinate_sign_distance(torch.tensor([[3.0, 2.0]]), torch.tensor([[1.0, -1.0]]))[0].round(decimals=3)
        tensor([2.])
    """
    scale = produced.abs() * wanted.abs() + ABSOLUTE
    return (1 - produced * wanted / scale).sum(1), -ABSOLUTE * wanted / scale.square()


Distance = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
DISTANCES: dict[str, Distance] = {"cosine": cosine_distance, "coordinate_sign": coordinate_sign_distance}


@torch.no_grad()
def match_gradients(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor,
    gradients: Tensor,
    present: Tensor,
    *,
    steps: int = 30,
    learning_rate: float = 0.1,
    optimizer: str = "sgd",
    distance: str = "cosine",
) -> Matching:
    r"""Move each class's hyper-prototypes so that their gradient points where the clients' gradient points.

    .. math::
        g_{HP}^c = \frac{1}{I} \sum_j \frac{\partial CE(W s_j^c + b, c)}{\partial s_j^c} = W^T \bar r^c, \qquad
        L_{GM} = \sum_c 1 - \frac{\langle g^c, g_{HP}^c \rangle}{\|g^c\| \|g_{HP}^c\|}

    Reference: FedHPro, Eqs. (7) to (9). A linear head makes the second derivative explicit: with
    :math:`p_j = \mathrm{softmax}(W s_j + b)` and :math:`v = \partial L_{GM} / \partial \bar r^c`,

    .. math::
        \frac{\partial L_{GM}}{\partial s_j^c} = \frac{1}{I} W^T [p_j \circ (v - \langle p_j, v \rangle)]

    Classes are independent problems and are solved all at once, in float64.

    Args:
        vectors: Hyper-prototypes S to start from, shape ``[C, I, d]``.
        weight: Weight :math:`W` of the head through which ``gradients`` were taken, shape ``[C, d]``.
        bias: Bias :math:`b` of this head, shape ``[C]``.
        gradients: The clients' gradients :math:`g^c`, shape ``[C, d]``. Only their directions count. Rows of absent
            classes are never read.
        present: Classes that have a gradient, shape ``[C]``, bool. A class is left out if either gradient, the
            clients' or that of the hyper-prototypes, is not finite or shorter than 1e-12.
        steps: Number of steps M >= 0.
        learning_rate: Step size >= 0. With 0 the vectors stay as they are.
        optimizer: ``sgd`` (plain) or ``adam``, with the defaults of ``torch.optim``. Each call starts a new one.
        distance: A name in ``DISTANCES``: ``cosine`` as in the paper, or ``coordinate_sign`` as in the released code.

    Raises:
        ConfigError: If there is no such ``optimizer`` or ``distance``.
        ValueError: If the shapes do not belong together.

    Example:
        With two classes every gradient is a multiple of ``W[0] - W[1]``, so there is nothing to learn:

        >>> gradients, present = torch.tensor([[-3.0, 3.0], [1.0, -1.0]]), torch.tensor([True, False])
        >>> matching = match_gradients(torch.zeros(2, 1, 2), torch.eye(2), torch.zeros(2), gradients, present)
        >>> matching.before.round(decimals=9), matching.used
        (tensor([0., 0.], dtype=torch.float64), tensor([ True, False]))
    """
    descend = lookup({"sgd": _descend_on_logits, "adam": _descend_on_vectors}, "optimizer", optimizer)
    compare = lookup(DISTANCES, "distance", distance)
    _check_shapes(vectors, gradients, present, weight, bias)
    wanted, usable = _wanted(gradients.double(), present, compare)
    # Residuals sum to zero, so a vector that is added to all rows of W has no effect. Removing it saves digits.
    weight = weight.double()
    head = _LinearHead(weight - weight.mean(0), bias.double(), wanted, compare)
    moved, losses = descend(head, vectors.double(), steps, learning_rate)
    return _summary(vectors, moved, losses, usable)


class _LinearHead:
    """The matching loss of a linear head, as a function of its logits ``[C, I, C]``, with its derivative."""

    def __init__(self, weight: Tensor, bias: Tensor, wanted: Tensor, compare: Distance) -> None:
        self.weight, self.bias, self.compare = weight, bias, compare
        self.image, self.wanted = weight, wanted
        if compare is cosine_distance and weight.shape[1] > weight.shape[0]:
            # Cosines need inner products only, so C coordinates in the row space of W are enough instead of d.
            basis, triangle = torch.linalg.qr(weight.T)
            self.image, self.wanted = triangle.T, wanted @ basis

    def logits(self, vectors: Tensor) -> Tensor:
        return vectors @ self.weight.T + self.bias

    def loss(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each class and its derivative; NaN and 0 where the gradient has no direction."""
        p = logits.softmax(-1)
        others = p.mean(1).fill_diagonal_(0)
        residual = others - others.sum(1).diag()  # mean over I; computed as in `cross_entropy_residuals`
        produced = residual @ self.image
        good = produced.norm(dim=1) >= TINY
        loss, slope = self.compare(produced, self.wanted)
        v = torch.where(good.unsqueeze(1), slope, 0) @ self.image.T / logits.shape[1]  # [C, C]
        # Only differences within a row of v count. Taken from the entry of the class itself, they keep their digits
        # where p approaches 1 and v is huge.
        v = (v - v.diagonal().unsqueeze(1)).unsqueeze(1)
        weighted = p * v
        push = torch.addcmul(weighted, p, weighted.sum(-1, keepdim=True), value=-1)
        return torch.where(good, loss, math.nan), push


def _descend_on_logits(head: _LinearHead, start: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
    """Take the steps of plain SGD on logits, and return to features once at the end.

    Plain SGD stays in the row space of W, so this gives the same vectors. A step costs C / 2d of a step on features.
    """
    logits, gram = head.logits(start), head.weight @ head.weight.T
    total, losses = torch.zeros_like(logits), []
    for _ in range(steps):
        loss, push = head.loss(logits)
        losses.append(loss)
        total += push
        logits = torch.add(logits, push @ gram, alpha=-rate)
    losses.append(head.loss(logits)[0])
    return start - rate * (total @ head.weight), torch.stack(losses)


def _descend_on_vectors(head: _LinearHead, start: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
    """Take the steps of Adam on features, since Adam scales each coordinate of the features."""
    vectors, losses = start.clone(), []
    adam = torch.optim.Adam([vectors], lr=rate)
    for _ in range(steps):
        loss, push = head.loss(head.logits(vectors))
        losses.append(loss)
        vectors.grad = push @ head.weight
        adam.step()
    losses.append(head.loss(head.logits(vectors))[0])
    return vectors, torch.stack(losses)


def match_gradients_autograd(
    vectors: Tensor,
    head: HeadFunction,
    gradients: Tensor,
    present: Tensor,
    *,
    steps: int = 30,
    learning_rate: float = 0.1,
    optimizer: str = "sgd",
    distance: str = "cosine",
) -> Matching:
    """Match gradients through any head that can be differentiated twice.

    Arguments and result are those of :func:`match_gradients`, which is faster for a linear head. Everything is computed
    in the dtype of ``vectors``, which must be the dtype of the head; float64 is advised. Parameters of ``head`` get no
    gradient.

    Example:
        >>> gradients, present = torch.tensor([[-3.0, 3.0], [1.0, -1.0]]), torch.tensor([True, False])
        >>> matching = match_gradients_autograd(torch.zeros(2, 1, 2), torch.tanh, gradients, present)
        >>> matching.before.round(decimals=6), matching.used
        (tensor([0., 0.]), tensor([ True, False]))
    """
    create = lookup({"sgd": torch.optim.SGD, "adam": torch.optim.Adam}, "optimizer", optimizer)
    compare = lookup(DISTANCES, "distance", distance)
    _check_shapes(vectors, gradients, present)
    wanted, usable = _wanted(gradients.to(vectors), present, compare)
    own, losses = _own_classes(vectors), []
    moved = vectors.detach().clone().requires_grad_()
    stepper = create([moved], lr=learning_rate)
    with torch.enable_grad():
        for step in range(steps + 1):
            logits = head(moved.flatten(0, 1)).unflatten(0, own.shape)
            (single,) = torch.autograd.grad(logits, moved, cross_entropy_residuals(logits, own), create_graph=True)
            produced = single.mean(1)
            loss = torch.where(produced.norm(dim=1) >= TINY, compare(produced, wanted)[0], math.nan)
            losses.append(loss.detach())
            if step < steps:
                (moved.grad,) = torch.autograd.grad(loss.nansum(), moved)
                stepper.step()
    return _summary(vectors, moved.detach(), torch.stack(losses), usable)


def _own_classes(x: Tensor) -> Tensor:
    """Return the class of each hyper-prototype in ``x`` ``[C, I, ...]``, shape ``[C, I]``."""
    return torch.arange(len(x), device=x.device).unsqueeze(1).expand(x.shape[:2])


def _wanted(gradients: Tensor, present: Tensor, compare: Distance) -> tuple[Tensor, Tensor]:
    """Return the gradients to match, zero where a class has none, and which classes have one."""
    length = gradients.norm(dim=1)
    usable = present & (length >= TINY) & length.isfinite()
    wanted = torch.where(usable.unsqueeze(1), gradients, 0)
    if compare is cosine_distance:
        wanted = wanted / torch.where(usable, length, 1).unsqueeze(1)
    return wanted, usable


def _summary(start: Tensor, moved: Tensor, losses: Tensor, usable: Tensor) -> Matching:
    """Collect the result; classes that could not be matched get their vectors back."""
    moved = moved.to(start.dtype)  # the cast to float32 may overflow
    used = usable & losses[0].isfinite() & moved.isfinite().flatten(1).all(1)
    losses = torch.where(used, losses.nan_to_num(1.0), 0)  # no direction counts like an orthogonal one
    vectors = torch.where(used.view(-1, 1, 1), moved, start)
    return Matching(vectors, losses.sum(1), losses[0], losses[-1], used)


def _check_shapes(
    vectors: Tensor, gradients: Tensor, present: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> None:
    got = {"gradients": gradients, "present": present, "weight": weight, "bias": bias}
    classes, width = (vectors.shape[0], vectors.shape[-1]) if vectors.ndim == 3 else (-1, -1)
    matrix, column = (classes, width), (classes,)
    wanted = {"gradients": matrix, "present": column, "weight": matrix, "bias": column}
    if any(x is not None and x.shape != wanted[name] for name, x in got.items()):
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in got.items() if x is not None)
        raise ValueError(
            f"gradient matching needs vectors [C, I, d], gradients and weight [C, d], present and bias [C], "
            f"got vectors {tuple(vectors.shape)}, {shapes}"
        )


def initial_vectors(classes: int, per_class: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw hyper-prototypes from N(0, 1), shape ``[C, I, d]``, as the paper starts."""
    return torch.randn(classes, per_class, width, generator=generator)


def draw_spread(classes: int, per_class: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw offsets of about length 1 for :func:`spread_about`, shape ``[C, I, d]``.

    Server and clients draw the same offsets from the same seed, so the offsets need not be sent.
    """
    return torch.randn(classes, per_class, width, generator=generator) / math.sqrt(width)


def spread_about(prototypes: Tensor, present: Tensor, spread: Tensor, size: float = 0.3) -> Tensor:
    r"""Surround each prototype with hyper-prototypes: :math:`s_j^c = P^c + \sigma r \delta_j^c`.

    :math:`r` is the root-mean-square distance of the present prototypes from their mean.

    Args:
        prototypes: Prototypes :math:`P`, shape ``[C, d]``. Rows of absent classes are never read; the result is zero
            for them.
        present: Classes that have a prototype, shape ``[C]``, bool.
        spread: Offsets :math:`\delta` from :func:`draw_spread`, shape ``[C, I, d]``.
        size: Factor :math:`\sigma`, dimensionless, >= 0.

    Example:
        >>> p, offsets = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])
        >>> spread_about(p, torch.tensor([True, True]), offsets, size=0.5)
        tensor([[[ 1.0000,  0.5000]],
        <BLANKLINE>
                [[-0.5000,  0.0000]]])
    """
    p = full_precision(prototypes)
    vectors = p.unsqueeze(1) + size * squared_radius(p, present).sqrt() * spread.to(p)
    return torch.where(present.view(-1, 1, 1), vectors, 0)


def summaries(vectors: Tensor) -> tuple[Tensor, Tensor]:
    r"""Reduce hyper-prototypes to the two rows per class that the clients' losses depend on.

    .. math::
        a^c = \frac{1}{I} \sum_j \frac{s_j^c}{\|s_j^c\|}, \qquad H^c = \frac{1}{I} \sum_j s_j^c

    The mean cosine in Eq. (11) of FedHPro is the inner product of a normalised feature with :math:`a^c`. That is why
    :math:`a^c` is not normalised again. :math:`H` is Eq. (9).

    Args:
        vectors: Hyper-prototypes :math:`s`, shape ``[C, I, d]``.

    Returns:
        ``(a, H)``, shape ``[C, d]`` each.

    Example:
        >>> summaries(torch.tensor([[[2.0, 0.0], [0.0, 4.0]]]))
        (tensor([[0.5000, 0.5000]]), tensor([[1., 2.]]))
    """
    return functional.normalize(vectors, dim=2).mean(1), vectors.mean(1)


def movement(vectors: Tensor, start: Tensor) -> float:
    r"""Return how far hyper-prototypes have moved: :math:`\|S - S_0\|_F / \|S_0\|_F`."""
    return float((vectors.double() - start.double()).norm() / start.double().norm().clamp(min=TINY))


def anchor_cosines(vectors: Tensor, present: Tensor) -> tuple[float, float] | None:
    """Return the smallest and the mean cosine between the anchors of two present classes.

    The anchor of a class is its mean direction, the first result of :func:`summaries`.

    Returns:
        ``(minimum, mean)``, or ``None`` if fewer than two classes are present.

    Example:
        >>> anchor_cosines(torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]], [[-1.0, 0.0]]]), torch.tensor([True, True, True]))
        (-1.0, -0.3333333333333333)
    """
    anchors = functional.normalize(summaries(vectors[present].double())[0], dim=1)
    n = len(anchors)
    if n < 2:
        return None
    pairs = torch.triu_indices(n, n, 1)
    cosines = (anchors @ anchors.T)[pairs[0], pairs[1]]
    return float(cosines.min()), float(cosines.mean())
