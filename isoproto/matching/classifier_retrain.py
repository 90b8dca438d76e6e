"""Train a classifier on the server from the clients' classifier gradients, for long-tailed data.

First, a few *meta features* per class are fitted: the gradient of the classifier on them shall point where its
gradient on real features points. Then a new linear classifier is trained on the meta features. Every class has equally
many, so rare classes count as much as frequent ones.

The released code of FedHPro does this every round and replaces the averaged classifier by the result. The paper does
not mention it, so three details are our decision. The loss is the sum over the rows of the weight, with the bias as one
more row. Meta features are drawn from N(0, 1) once and kept between rounds. A class that never had a gradient is left
out of the training.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.matching.feature_gradients import cross_entropy_residuals
from isoproto.matching.hyperproto import TINY
from isoproto.precision import full_precision


@torch.no_grad()
def classifier_gradients(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean gradient of the cross-entropy with respect to the classifier, for each class of samples.

    A client sends these gradients.

    Args:
        features: Features, shape ``[n, d]``.
        labels: Their classes, shape ``[n]``, int64.
        weight: Weight of the classifier, shape ``[C, d]``.
        bias: Bias of the classifier, shape ``[C]``.

    Returns:
        Gradients with respect to the weight, ``[C, C, d]``, and to the bias, ``[C, C]``. The first axis is the class
        of the samples. Zero for classes without samples.

    Example:
        >>> x, y = torch.tensor([[2.0], [4.0]]), torch.tensor([0, 0])
        >>> classifier_gradients(x, y, torch.zeros(2, 1), torch.zeros(2))[0].flatten()
        tensor([-1.5000,  1.5000,  0.0000,  0.0000])
    """
    x = full_precision(features)
    residuals = cross_entropy_residuals(x @ weight.to(x).T + bias.to(x), labels)
    share = functional.one_hot(labels, len(weight)).to(x)
    share = share / share.sum(0).clamp(min=1)
    return torch.einsum("nc,nk,nd->ckd", share, residuals, x), share.T @ residuals


def fit_meta_features(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    weight_gradients: Tensor,
    bias_gradients: Tensor,
    present: Tensor,
    *,
    steps: int = 100,
    learning_rate: float = 0.1,
) -> Tensor:
    r"""Move each class's meta features so that they produce the wanted classifier gradients.

    .. math::
        A^c = \frac{1}{m} \sum_j r_j f_j^T, \qquad a^c = \frac{1}{m} \sum_j r_j, \qquad
        r_j = \mathrm{softmax}(W f_j + b) - e_c

    are the gradients of the mean cross-entropy of class c with respect to W and b. The loss of a class is a sum over
    the rows of A, with a as one more row: one minus the cosine between the row and the wanted row. Plain SGD lowers
    the loss of every present class.

    Args:
        features: Meta features f to start from, shape ``[C, m, d]``: ``initial_vectors`` in the first round, the last
            result later.
        weight: Weight W of the classifier through which the gradients were taken, shape ``[C, d]``.
        bias: Its bias b, shape ``[C]``.
        weight_gradients: For each class the wanted A, shape ``[C, C, d]``. Rows shorter than 1e-12 are left out.
        bias_gradients: For each class the wanted a, shape ``[C, C]``.
        present: Classes that have gradients, shape ``[C]``, bool. Gradients of other classes are never read, and their
            features stay as they are. Features of a class whose gradients are not finite stay as well.
        steps: Number of steps, >= 0.
        learning_rate: Step size.

    Returns:
        Meta features, shape ``[C, m, d]``, in the dtype of ``features``. They are computed in float64.

    Example:
        With a zero head and one meta feature f, the gradient of class 0 is (-f / 2, f / 2). Only its direction counts:

        >>> features, zero = torch.tensor([[[1.0, 1.0]], [[1.0, 0.0]]]), torch.zeros(2, 2)
        >>> wanted = torch.tensor([[[0.0, -1.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
        >>> fit_meta_features(features, zero, zero[0], wanted, zero, torch.tensor([True, False])).round(decimals=1)
        tensor([[[0.0000, 1.4000]],
        <BLANKLINE>
                [[1.0000, 0.0000]]])
    """
    weight, bias = weight.double(), bias.double()
    wanted = weight_gradients.double(), bias_gradients.double()
    usable = present & wanted[0].isfinite().flatten(1).all(1) & wanted[1].isfinite().all(1)
    wanted = torch.where(usable.view(-1, 1, 1), wanted[0], 0), torch.where(usable.view(-1, 1), wanted[1], 0)
    labels = torch.arange(len(features), device=features.device).unsqueeze(1).expand(features.shape[:2])
    moved = features.detach().double().clone().requires_grad_()
    stepper = torch.optim.SGD([moved], lr=learning_rate)
    for _ in range(steps):
        with torch.enable_grad():
            residuals = cross_entropy_residuals(moved @ weight.T + bias, labels) / features.shape[1]  # [C, m, C]
            loss = _row_distance(residuals.mT @ moved, wanted[0]) + _row_distance(residuals.sum(1), wanted[1])
            (moved.grad,) = torch.autograd.grad(loss, moved)
        stepper.step()
    moved = moved.detach()
    fitted = usable & moved.isfinite().flatten(1).all(1)
    return torch.where(fitted.view(-1, 1, 1), moved.to(features.dtype), features)


def _row_distance(produced: Tensor, wanted: Tensor) -> Tensor:
    """Sum one minus the cosine over all pairs of rows (the last axis). Rows without a direction are left out."""
    lengths = produced.norm(dim=-1), wanted.norm(dim=-1)
    directed = (lengths[0] >= TINY) & (lengths[1] >= TINY)
    cosine = (produced * wanted).sum(-1) / (lengths[0].clamp(min=TINY) * lengths[1].clamp(min=TINY))
    return torch.where(directed, 1 - cosine, 0).sum()


@torch.no_grad()
def train_classifier(
    features: Tensor,
    known: Tensor,
    *,
    generator: torch.Generator,
    epochs: int = 100,
    batch_size: int = 50,
    learning_rate: float = 0.01,
) -> tuple[Tensor, Tensor]:
    r"""Train a new linear classifier on meta features by cross-entropy and plain SGD.

    Args:
        features: Meta features, shape ``[C, m, d]``.
        known: Classes whose features were fitted in this round or before, shape ``[C]``, bool. Features of other
            classes are never read. The classifier's rows for these classes start at random like all rows, and training
            only lowers their logits.
        generator: Draws the start, uniform within :math:`1 / \sqrt d` as in ``nn.Linear``, and the order of samples.
        epochs: Number of passes over all features.
        batch_size: Number of features per step.
        learning_rate: Step size.

    Returns:
        ``(weight [C, d], bias [C])``, float32 (float64 for float64 features).

    Example:
        >>> features = torch.tensor([[[4.0, 0.0]], [[0.0, 4.0]]])
        >>> generator = torch.Generator().manual_seed(0)
        >>> weight, bias = train_classifier(features, torch.tensor([True, True]), generator=generator)
        >>> (features.squeeze(1) @ weight.T + bias).argmax(1)
        tensor([0, 1])
    """
    classes, per_class, width = features.shape
    x = full_precision(features[known]).flatten(0, 1)
    y = known.nonzero().repeat_interleave(per_class)
    bound = 1 / math.sqrt(width)
    weight = torch.empty(classes, width).uniform_(-bound, bound, generator=generator).to(x)
    bias = torch.empty(classes).uniform_(-bound, bound, generator=generator).to(x)
    for _ in range(epochs):
        for index in torch.randperm(len(y), generator=generator).to(y).split(batch_size):
            residuals = cross_entropy_residuals(x[index] @ weight.T + bias, y[index]) / len(index)
            weight -= learning_rate * residuals.T @ x[index]
            bias -= learning_rate * residuals.sum(0)
    return weight, bias
