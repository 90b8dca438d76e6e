"""Hyper-prototypes: a few vectors per class, fitted so that a head's gradient on them points as on real features."""

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

TINY = 1e-12  # length below which a gradient's direction means nothing
ABSOLUTE = 1e-6  # what the released code adds to a product of magnitudes


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """Hyper-prototypes after gradient matching, and how it went.

    Attributes:
        vectors: Shape ``[C, I, d]``, in the dtype they came in.
        losses: Sum of the classes' losses before each step and after the last, shape ``[M + 1]``.
        before: Loss of each class before the first step, shape ``[C]``; 0 where not ``used``.
        after: The same after the last step.
        used: Classes with two gradients to compare, shape ``[C]``, bool. The others, and any that leave the finite
            numbers on the way, keep their vectors bit for bit.
    """

    vectors: Tensor
    losses: Tensor
    before: Tensor
    after: Tensor
    used: Tensor


def cosine_distance(produced: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """One minus the cosine of each row of ``produced`` ``[C, d]`` and ``wanted``, whose rows have length 1.

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
    r"""Twice the number of coordinates whose signs differ, with a narrow ramp at zero.

    .. math::
        \sum_q 1 - \frac{a_q b_q}{|a_q| |b_q| + 10^{-6}}

    This is what the released code of FedHPro computes where the paper has Eq. (8). It has a slope only where
    :math:`|a_q b_q|` is about 1e-6 or less, and depends on the gradients' length there.

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
        vectors: Hyper-prototypes S, shape ``[C, I, d]``.
        weight: :math:`W` of the head through which ``gradients`` were taken, shape ``[C, d]``.
        bias: :math:`b`, shape ``[C]``.
        gradients: :math:`g^c`, shape ``[C, d]``. Only the direction counts. Rows of absent classes are never read.
        present: Classes that have a gradient, shape ``[C]``, bool. A gradient that is not finite or shorter than
            1e-12, on either side, counts as none.
        steps: M >= 0.
        learning_rate: Step size >= 0; with 0 the vectors stay as they are.
        optimizer: ``sgd`` (plain) or ``adam``, with the defaults of ``torch.optim``; afresh in every call.
        distance: ``cosine``, or ``coordinate_sign`` for comparison; see ``DISTANCES``.

    Raises:
        ConfigError: If there is no such ``optimizer`` or ``distance``.
        ValueError: If the shapes do not belong together.

    Example:
        With two classes every gradient is a multiple of ``W[0] - W[1]``, and there is nothing to learn:

        >>> gradients, present = torch.tensor([[-3.0, 3.0], [1.0, -1.0]]), torch.tensor([True, False])
        >>> matching = match_gradients(torch.zeros(2, 1, 2), torch.eye(2), torch.zeros(2), gradients, present)
        >>> matching.before.round(decimals=9), matching.used
        (tensor([0., 0.], dtype=torch.float64), tensor([ True, False]))
    """
    descend = lookup({"sgd": _descend_on_logits, "adam": _descend_on_vectors}, "optimizer", optimizer)
    compare = lookup(DISTANCES, "distance", distance)
    _check_shapes(vectors, gradients, present, weight, bias)
    wanted, usable = _wanted(gradients.double(), present, compare)
    # Residuals sum to zero, so that what all rows of W share has no effect; without it fewer digits are lost.
    weight = weight.double()
    head = _LinearHead(weight - weight.mean(0), bias.double(), wanted, compare)
    moved, losses = descend(head, vectors.double(), steps, learning_rate)
    return _summary(vectors, moved, losses, usable)


class _LinearHead:
    """The loss as a function of logits, ``[C, I, C]``, and its derivative."""

    def __init__(self, weight: Tensor, bias: Tensor, wanted: Tensor, compare: Distance) -> None:
        self.weight, self.bias, self.compare = weight, bias, compare
        self.image, self.wanted = weight, wanted
        if compare is cosine_distance and weight.shape[1] > weight.shape[0]:
            # Cosines need inner products only: C coordinates in the row space of W do instead of d.
            basis, triangle = torch.linalg.qr(weight.T)
            self.image, self.wanted = triangle.T, wanted @ basis

    def logits(self, vectors: Tensor) -> Tensor:
        return vectors @ self.weight.T + self.bias

    def loss(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of each class, NaN where the gradient has no direction, and its derivative, 0 there."""
        p = logits.softmax(-1)
        others = p.mean(1).fill_diagonal_(0)
        residual = others - others.sum(1).diag()  # mean over I; see `cross_entropy_residuals`
        produced = residual @ self.image
        good = produced.norm(dim=1) >= TINY
        loss, slope = self.compare(produced, self.wanted)
        v = torch.where(good.unsqueeze(1), slope, 0) @ self.image.T / logits.shape[1]  # [C, C]
        # Only differences within a row of v count. Those from the own class survive p -> 1, where v is huge.
        v = (v - v.diagonal().unsqueeze(1)).unsqueeze(1)
        weighted = p * v
        push = torch.addcmul(weighted, p, weighted.sum(-1, keepdim=True), value=-1)
        return torch.where(good, loss, math.nan), push


def _descend_on_logits(head: _LinearHead, start: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
    """Plain SGD stays in the row space of W: step on logits, at C / 2d of the cost, and go back to features once."""
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
    """Adam scales each coordinate of the features, so its steps are taken there."""
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
    """Match gradients through any head that can be differentiated twice; see ``match_gradients``.

    Everything happens in the dtype of ``vectors``, which must be the head's; float64 is advised. Parameters of
    ``head`` get no gradient.

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
    """The class of each hyper-prototype, shape ``[C, I]``, for ``x`` ``[C, I, ...]``."""
    return torch.arange(len(x), device=x.device).unsqueeze(1).expand(x.shape[:2])


def _wanted(gradients: Tensor, present: Tensor, compare: Distance) -> tuple[Tensor, Tensor]:
    """The gradients to match, zero where there is none, and where there is one."""
    length = gradients.norm(dim=1)
    usable = present & (length >= TINY) & length.isfinite()
    wanted = torch.where(usable.unsqueeze(1), gradients, 0)
    if compare is cosine_distance:
        wanted = wanted / torch.where(usable, length, 1).unsqueeze(1)
    return wanted, usable


def _summary(start: Tensor, moved: Tensor, losses: Tensor, usable: Tensor) -> Matching:
    moved = moved.to(start.dtype)  # where it may be beyond the numbers there are
    used = usable & losses[0].isfinite() & moved.isfinite().flatten(1).all(1)
    losses = torch.where(used, losses.nan_to_num(1.0), 0)  # no direction is as good as an orthogonal one
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
    """Draw hyper-prototypes from N(0, 1), shape ``[C, I, d]``: the paper's start."""
    return torch.randn(classes, per_class, width, generator=generator)


def draw_spread(classes: int, per_class: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw offsets of about length 1 for ``spread_about``, shape ``[C, I, d]``.

    Server and clients draw the same from the same seed, so that the offsets need not travel.
    """
    return torch.randn(classes, per_class, width, generator=generator) / math.sqrt(width)


def spread_about(prototypes: Tensor, present: Tensor, spread: Tensor, size: float = 0.3) -> Tensor:
    r"""Surround each prototype with hyper-prototypes: :math:`s_j^c = P^c + \sigma r \delta_j^c`.

    :math:`r` is the root-mean-square distance of the present prototypes from their mean.

    Args:
        prototypes: P, shape ``[C, d]``. Absent rows are never read; theirs are zero in the result.
        present: Which classes have one, shape ``[C]``, bool.
        spread: :math:`\delta` from ``draw_spread``, shape ``[C, I, d]``.
        size: :math:`\sigma`, dimensionless, >= 0.

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

    The mean cosine of Eq. (11) of FedHPro is the inner product of a normalised feature with :math:`a^c`, which is
    therefore not normalised again; :math:`H` is Eq. (9).

    Args:
        vectors: Shape ``[C, I, d]``.

    Returns:
        ``(a, H)``, shape ``[C, d]`` each.

    Example:
        >>> summaries(torch.tensor([[[2.0, 0.0], [0.0, 4.0]]]))
        (tensor([[0.5000, 0.5000]]), tensor([[1., 2.]]))
    """
    return functional.normalize(vectors, dim=2).mean(1), vectors.mean(1)


def movement(vectors: Tensor, start: Tensor) -> float:
    r"""How far hyper-prototypes have gone: :math:`\|S - S_0\|_F / \|S_0\|_F`."""
    return float((vectors.double() - start.double()).norm() / start.double().norm().clamp(min=TINY))


def anchor_cosines(vectors: Tensor, present: Tensor) -> tuple[float, float] | None:
    """Smallest and mean cosine between the anchors (the first of ``summaries``) of two present classes.

    Returns:
        ``(minimum, mean)``, or None if fewer than two classes are present.

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
