"""Gradients of the cross-entropy with respect to features, summed per class.

Clients send their means. Gradient matching (``isoproto.matching.hyperproto``) moves vectors until they give the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isoproto.geometry.class_sums import ClassSums
from isoproto.precision import full_precision, outside_autocast

HeadFunction = Callable[[Tensor], Tensor]
"""A head as a function from features ``[n, d]`` to logits ``[n, C]``. Rows must not influence one another."""

SAME_POINT = 1e-6  # prototypes with a squared radius below this share of their mean square are one point in float32
LEAST = 1e-30  # up to this squared radius they count as one point too: a head to tell them apart overflows float32
NEVER = -1e30  # a logit whose softmax is exactly 0; minus infinity would make products NaN


def cross_entropy_residuals(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of each sample's cross-entropy with respect to its logits: softmax minus one-hot.

    The entry of the sample's class is computed as minus the sum of the other entries. So rows sum to zero, and the
    entry keeps its relative accuracy where ``p - 1`` would be rounding noise.

    Args:
        logits: Shape ``[..., C]``.
        labels: Shape ``[...]``, int64 in ``[0, C)``.

    Example:
        >>> cross_entropy_residuals(torch.tensor([[40.0, 0.0]]), torch.tensor([0]))
        tensor([[-4.2484e-18,  4.2484e-18]])
    """
    own = labels.unsqueeze(-1)
    others = logits.softmax(-1).scatter(-1, own, 0.0)
    return others.scatter(-1, own, -others.sum(-1, keepdim=True))


@outside_autocast
@torch.no_grad()
def linear_gradients(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> ClassSums:
    r"""Sum each class's feature gradients through a linear head, in closed form.

    .. math::
        n^c g^c = \sum_{i: y_i = c} \frac{\partial CE(W z_i + b, c)}{\partial z_i}
                = W^T \sum_{i: y_i = c} (\mathrm{softmax}(W z_i + b) - e_c)

    Reference: FedHPro, Eq. (5). Add up the sums of all batches; their mean is :math:`g^c`. Float32 is enough:
    residuals keep their relative accuracy (see :func:`cross_entropy_residuals`), and all residuals of a class have
    the same sign in each entry.

    Args:
        features: Features :math:`z`, shape ``[n, d]``.
        labels: Their classes :math:`y`, shape ``[n]``, int64 in ``[0, C)``.
        weight: Weight :math:`W` of the head, shape ``[C, d]``.
        bias: Bias :math:`b` of the head, shape ``[C]``.

    Returns:
        Sums and counts of this batch. Those of several batches add up.

    Example:
        A zero feature makes both classes equally likely, so the residual is (-1/2, 1/2):

        >>> sums = linear_gradients(torch.zeros(1, 2), torch.tensor([0]), 4 * torch.eye(2), torch.zeros(2))
        >>> sums.mean()
        tensor([[-2.,  2.],
                [ 0.,  0.]])
    """
    z = full_precision(features)
    weight, bias = weight.to(z), bias.to(z)
    residuals = cross_entropy_residuals(z @ weight.T + bias, labels)
    sums = ClassSums.of(residuals, labels, len(weight))
    return ClassSums(sums.total @ weight, sums.count)


@outside_autocast
def head_gradients(head: HeadFunction, features: Tensor, labels: Tensor, num_classes: int) -> ClassSums:
    """Sum each class's feature gradients through any head, by one reverse pass.

    For a linear head, :func:`linear_gradients` gives the same. Parameters of ``head`` get no gradient. The caller sets
    the mode of the head (dropout, running statistics).

    Example:
        >>> sums = head_gradients(lambda z: 4 * z, torch.zeros(1, 2), torch.tensor([0]), num_classes=2)
        >>> sums.mean()[0]
        tensor([-2.,  2.])
    """
    with torch.enable_grad():
        z = full_precision(features).detach().requires_grad_()
        logits = head(z)
        (gradients,) = torch.autograd.grad(logits, z, cross_entropy_residuals(logits.detach(), labels))
    return ClassSums.of(gradients, labels, num_classes)


def squared_radius(prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the mean squared distance of the present rows from their mean, shape ``[]``; 0 if they are one point.

    Example:
        >>> squared_radius(torch.tensor([[0.0, 0.0], [0.0, 2.0], [9.0, 9.0]]), torch.tensor([True, True, False]))
        tensor(1.)
    """
    rows = full_precision(prototypes[present])
    if len(rows) < 2:
        return rows.new_zeros(())
    square = (rows - rows.mean(0)).square().sum(1).mean()
    return torch.where(square > (SAME_POINT * rows.square().sum(1).mean()).clamp(min=LEAST), square, 0.0)


@torch.no_grad()
def prototype_head(prototypes: Tensor, present: Tensor, sharpness: float = 10.0) -> tuple[Tensor, Tensor]:
    r"""Turn prototypes into a linear head, for federations that share no classifier.

    .. math::
        W = \frac{\beta}{r^2} P, \qquad b_c = -\frac{\beta}{2 r^2} \|P_c\|^2

    Up to a constant the logits are :math:`-\beta \|z - P_c\|^2 / (2 r^2)`, so the nearest prototype wins. :math:`r` is
    the root-mean-square distance of the present prototypes from their mean.

    Args:
        prototypes: Prototypes :math:`P`, shape ``[C, d]``. Absent rows are never read.
        present: Classes that have a prototype, shape ``[C]``, bool.
        sharpness: Factor :math:`\beta`, dimensionless, > 0.

    Returns:
        ``(W [C, d], b [C])``. The probability of an absent class is exactly 0. If all prototypes are one point, all
        present classes are equally likely.

    Example:
        >>> p = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [float("nan"), 0.0]])
        >>> prototype_head(p, torch.tensor([True, True, False]), sharpness=2.0)
        (tensor([[ 2.,  0.],
                [-2.,  0.],
                [ 0.,  0.]]), tensor([-1.0000e+00, -1.0000e+00, -1.0000e+30]))
    """
    p = torch.where(present.unsqueeze(1), full_precision(prototypes), 0)
    square = squared_radius(p, present)
    scale = torch.where(square > 0, sharpness / square, 0.0)
    return scale * p, torch.where(present, -scale / 2 * p.square().sum(1), NEVER)


def gradient_limit(weight: Tensor) -> float:
    r"""Return the longest that a feature gradient through the linear head ``weight`` ``[C, d]`` can be.

    The gradient is :math:`W^T r` with a residual :math:`\|r\|_1 \le 2`. A hundredth and a little more is for rounding.

    Example:
        >>> round(gradient_limit(torch.tensor([[3.0, 4.0], [0.0, 1.0]])), 3)
        10.1
    """
    return 2.02 * float(weight.double().norm(dim=1).max()) + 1e-6
