"""FedHPro's two losses on the client: HPCL and HPAL.

HPCL contrasts a feature with the hyper-prototypes of all classes. HPAL pulls a feature towards the hyper-prototypes of
its class. Both need two vectors per class: the mean direction of its hyper-prototypes (``directions``), and their mean
(``means``). :func:`hpcl` and :func:`hpal` define the losses. :class:`Anchors` is HPCL and HPAL together, in the fast
form that training uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.losses.base import attach_gradient
from isoproto.precision import full_precision, outside_autocast

TINY = 1e-6  # a vector of at most this length counts as zero: normalising it would give a huge gradient

MarginNorm = Literal["literal", "present"]
Form = Literal["paper", "paper_mean", "normalised", "normalised_mean"]


@torch.no_grad()
def client_margin(prototypes: Tensor, present: Tensor, *, norm: MarginNorm = "literal") -> Tensor:
    r"""Return the mean distance between a client's prototypes, the margin of HPCL.

    .. math::
        d_k = \frac{1}{(C - 1)^2} \sum_{c_1} \sum_{c_2 \ne c_1} \| p_k^{c_1} - p_k^{c_2} \|

    Reference: FedHPro, Eq. (10). The divisor is not the number of pairs: it is smaller if the client holds all C
    classes, and larger if the client holds few.

    Args:
        prototypes: The client's class means, shape ``[C, d]``. Absent rows are never read.
        present: Classes that the client holds, shape ``[C]``, bool.
        norm: ``literal`` divides as the formula does. ``present`` divides by :math:`n (n - 1)` for n classes present,
            which gives a true mean.

    Returns:
        Shape ``[]``, >= 0; 0 with fewer than two classes.

    Example:
        >>> p, all_three = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]), torch.tensor([True, True, True])
        >>> client_margin(p, all_three), client_margin(p, all_three, norm="present")
        (tensor(5.), tensor(3.3333))
    """
    held = full_precision(prototypes)[present]
    pairs = len(held) * (len(held) - 1) if norm == "present" else (len(present) - 1) ** 2
    return 2 * torch.pdist(held).sum() / max(1, pairs)


@outside_autocast
def hpcl(
    features: Tensor,
    labels: Tensor,
    directions: Tensor,
    present: Tensor,
    *,
    temperature: float = 0.05,
    margin: float | Tensor = 0.0,
    additive: bool = False,
) -> Tensor:
    r"""Contrast each feature with the hyper-prototypes of all classes.

    .. math::
        -\log \frac{e^{s_y / \tau}}{e^{s_y / \tau} + \sum_{c \ne y} e^{(s_c + d) / \tau}}, \qquad
        s_c = \langle \hat z, a^c \rangle

    It is computed as a cross-entropy in which the margin is added to the wrong logits, so that nothing overflows.

    Reference: FedHPro, Eqs. (11) and (12).

    Args:
        features: :math:`z`, shape ``[B, d]``, any float dtype. A feature of zero length has all :math:`s_c = 0` and
            no gradient.
        labels: :math:`y`, shape ``[B]``, int64, in ``[0, C)``.
        directions: :math:`a^c`, the mean of the normalised hyper-prototypes of a class, shape ``[C, d]``.
        present: Classes that have hyper-prototypes, shape ``[C]``, bool. Other rows are never read: features are not
            contrasted with them, and samples of these classes are left out of the mean.
        temperature: :math:`\tau`, > 0.
        margin: :math:`d`, >= 0.
        additive: Add :math:`d` itself to the denominator instead of adding it to the logits, as the published code
            does.

    Returns:
        Mean over the samples, shape ``[]``, float32 (float64 for float64 features), >= 0. Value and gradient are
        exactly 0 if no sample has a class that is present.

    Raises:
        ValueError: If the temperature is not positive, the margin is negative, or widths differ.

    Example:
        The similarities are (1, 0): ``log(1 + e**-1)``, and with the margin ``log(1 + e**0)``.

        >>> z, y, a = torch.tensor([[2.0, 0.0]]), torch.tensor([0]), torch.eye(2)
        >>> hpcl(z, y, a, torch.tensor([True, True]), temperature=1.0)
        tensor(0.3133)
        >>> hpcl(z, y, a, torch.tensor([True, True]), temperature=1.0, margin=1.0)
        tensor(0.6931)
    """
    x = full_precision(features)
    _check_width(x, directions)
    rows, offsets = _contrast(directions.to(x.dtype), present, temperature, margin, additive)
    losses = functional.cross_entropy(_unit(x) @ rows.T + offsets[labels], labels, reduction="none")
    return losses @ _shares(labels, present, x.dtype)


@outside_autocast
def hpal(features: Tensor, labels: Tensor, means: Tensor, present: Tensor, *, form: Form = "paper") -> Tensor:
    r"""Pull each feature towards the mean hyper-prototype of its class.

    .. math::
        \sum_{q=1}^d \mathrm{huber}(z_q - H^y_q), \qquad
        \mathrm{huber}(t) = \begin{cases} t^2 / 2 & |t| \le 1 \\ |t| - 1/2 & \text{else} \end{cases}

    Reference: FedHPro, Eq. (13).

    Args:
        features: :math:`z`, shape ``[B, d]``, any float dtype.
        labels: Their classes, shape ``[B]``, int64, in ``[0, C)``.
        means: :math:`H`, the mean of the hyper-prototypes of a class, shape ``[C, d]``.
        present: Classes that have hyper-prototypes, shape ``[C]``, bool. Other rows are never read, and samples of
            these classes are left out of the mean.
        form: ``paper`` is the formula. ``normalised`` compares :math:`\hat z` with :math:`\hat H^y`; that is one minus
            their cosine unless a coordinate differs by more than 1. ``paper_mean`` and ``normalised_mean`` also
            divide by d.

    Returns:
        Mean over the samples, shape ``[]``, float32 (float64 for float64 features), >= 0. Value and gradient are
        exactly 0 if no sample has a class that is present.

    Raises:
        ValueError: If the form is unknown or widths differ.

    Example:
        >>> z, h = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 0.0]])
        >>> hpal(z, torch.tensor([0]), h, torch.tensor([True]))
        tensor(3.5000)
        >>> hpal(z, torch.tensor([0]), h, torch.tensor([True]), form="normalised")
        tensor(0.4000)
    """
    x = full_precision(features)
    _check_width(x, means)
    rows, normalised, factor = _pull(means.to(x.dtype), present, form)
    x = _unit(x) if normalised else x
    losses = functional.smooth_l1_loss(x, rows[labels], reduction="none").sum(1)
    return losses @ (factor * _shares(labels, present, x.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class Anchors:
    """HPCL and HPAL together: what a client's features are compared with in a round.

    Make one per round with :meth:`of`, then call it with features and labels.

    Attributes:
        rows: Directions divided by the temperature, shape ``[C', d]``. C' is C, or C + 1 with an additive margin.
        table: One row per class, in four parts: the offsets of the logits ``[C']``, the one-hot vector ``[C']``, the
            mean ``[d]``, and 1 or 0 for whether the class has hyper-prototypes ``[1]``. They stand in one tensor since
            one gather is faster than four.
        normalised: Whether HPAL compares directions.
        factor: What HPAL is multiplied by, 1 or 1 / d.
    """

    rows: Tensor
    table: Tensor
    normalised: bool
    factor: float

    @classmethod
    def of(
        cls,
        directions: Tensor,
        means: Tensor,
        present: Tensor,
        *,
        temperature: float = 0.05,
        margin: float | Tensor = 0.0,
        additive: bool = False,
        form: Form = "paper",
    ) -> Anchors:
        """Prepare both losses. The arguments are those of :func:`hpcl` and :func:`hpal`.

        Example:
            >>> anchors = Anchors.of(torch.eye(2), torch.eye(2), torch.tensor([True, True]), temperature=1.0)
            >>> anchors(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
            tensor([0.3133, 0.5000])
        """
        rows, offsets = _contrast(full_precision(directions), present, temperature, margin, additive)
        means, normalised, factor = _pull(full_precision(means), present, form)
        held = present.to(rows.dtype).unsqueeze(1)
        hot = torch.eye(*offsets.shape, dtype=rows.dtype, device=rows.device)
        return cls(rows, torch.cat([offsets, hot, means, held], 1), normalised, factor)

    @outside_autocast
    def __call__(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return HPCL and HPAL, shape ``[2]``, of ``features`` ``[B, d]`` with ``labels`` ``[B]``.

        The gradient is written by hand, which is cheaper than what autograd records for two dozen small operations.
        """
        _check_width(features, self.rows)
        x = features.to(self.rows.dtype)
        with torch.no_grad():
            sizes = [len(self.rows), len(self.rows), x.shape[1], 1]
            offsets, hot, means, share = self.table.index_select(0, labels).split(sizes, 1)
            share = share / share.sum().clamp(min=1)  # [B, 1]
            inverse = _inverse_length(x)
            unit = x * inverse
            logs = functional.log_softmax(torch.addmm(offsets, unit, self.rows.T), 1)  # [B, C']
            contrast = ((logs.exp() - hot) * share) @ self.rows
            difference = (unit if self.normalised else x) - means
            clipped = difference.clamp(-1, 1)
            pull = clipped * (share * self.factor)
            losses = functional.nll_loss(logs, labels, reduction="none")
            halfway = torch.add(difference, clipped, alpha=-0.5)
            value = torch.stack([torch.dot(share.flatten(), losses), torch.dot(pull.flatten(), halfway.flatten())])
        backward = _backward_normalised if self.normalised else _backward
        return attach_gradient(value, x, backward, contrast, pull, unit, inverse)


def _backward(outer: Tensor, contrast: Tensor, pull: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    return torch.addcmul(outer[1] * pull, _tangential(contrast, unit), outer[0] * inverse)


def _backward_normalised(outer: Tensor, contrast: Tensor, pull: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    return _tangential(torch.addcmul(outer[0] * contrast, pull, outer[1]), unit).mul_(inverse)


def _tangential(gradient: Tensor, unit: Tensor) -> Tensor:
    """Return the part of a gradient ``[..., B, d]`` that is orthogonal to the unit rows ``[B, d]``.

    Normalising a row passes only this part of the gradient on.
    """
    return torch.addcmul(gradient, unit, (gradient * unit).sum(-1, keepdim=True), value=-1)


def _contrast(
    directions: Tensor, present: Tensor, temperature: float, margin: float | Tensor, additive: bool
) -> tuple[Tensor, Tensor]:
    """Return ``(rows, offsets)``: the logits of HPCL are ``unit features @ rows.T + offsets[labels]``."""
    if temperature <= 0 or margin < 0:
        raise ValueError(
            f"hpcl: the temperature must be > 0 and the margin >= 0, got {temperature} and {float(margin)}"
        )
    rows = torch.where(present.unsqueeze(1), directions, 0) / temperature
    # A sample whose class is not present has weight 0. Its offsets hold no minus infinity, so its numbers stay finite.
    absent = present.unsqueeze(1) & ~present
    offsets = torch.zeros_like(absent, dtype=rows.dtype).masked_fill(absent, -torch.inf)
    margin = torch.as_tensor(margin, dtype=rows.dtype, device=rows.device)
    if additive:  # an additional class whose exponential is the margin
        column = margin.log().expand(len(rows), 1)
        return functional.pad(rows, (0, 0, 0, 1)), torch.cat([offsets, column], 1)
    others = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    return rows, offsets + others * (margin / temperature)


def _pull(means: Tensor, present: Tensor, form: Form) -> tuple[Tensor, bool, float]:
    """Return the means to compare with, and the attributes ``normalised`` and ``factor`` of :class:`Anchors`."""
    known = ("paper", "paper_mean", "normalised", "normalised_mean")
    if form not in known:
        raise ValueError(f"hpal: unknown form {form!r}; `form` must be one of {', '.join(map(repr, known))}")
    means = torch.where(present.unsqueeze(1), means, 0)
    normalised = form.startswith("normalised")
    return _unit(means) if normalised else means, normalised, 1 / means.shape[1] if form.endswith("mean") else 1.0


def _unit(x: Tensor) -> Tensor:
    """Scale rows to length 1. Rows that count as zero become zero and pass no gradient."""
    return x * _inverse_length(x)


def _inverse_length(x: Tensor) -> Tensor:
    """Return one over the length of each row, ``[n, 1]``; 0 for rows that count as zero."""
    return functional.threshold(torch.linalg.vector_norm(x, dim=1, keepdim=True), TINY, torch.inf).reciprocal()


def _shares(labels: Tensor, present: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights ``[B]`` that give the mean over the samples whose class is present."""
    valid = present[labels].to(dtype)
    return valid / valid.sum().clamp(min=1)


def _check_width(features: Tensor, anchors: Tensor) -> None:
    if features.shape[1] != anchors.shape[1]:
        raise ValueError(
            f"features and hyper-prototypes must have the same width, got {tuple(features.shape)} and "
            f"{tuple(anchors.shape)}; give the model the federation's feature-dim"
        )
