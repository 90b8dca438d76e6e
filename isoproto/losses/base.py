r"""Alignment losses: what a loss consists of, and how a batch is compared with the global prototypes.

A batch is compared twice. The *prototype term* compares the class means of the batch with the global prototypes. The
*instance term* compares each sample with the prototype of its class. See :func:`alignment_terms`.

How to write a loss
-------------------

If the loss compares coordinates and is a mean over the rows, write its ``pair`` function and let
:meth:`AlignmentLoss.of_pair` make the rest. Here is the mean absolute difference:

>>> def pair(a, b):  # [n, d] and [n, d]
...     return (a - b).abs().mean()
>>> L1 = AlignmentLoss.of_pair(pair, weights=(0.1, 0.1))

Every other loss, and every loss that shall be fast, has the two functions ``prepare`` and ``compare``. ``prepare``
runs once an epoch, for S batches at a time. It sees labels and the target, but no features. ``compare`` runs in each
step, for one batch. It sees the features and whatever ``prepare`` made for this batch. Here is the same loss in full:

>>> def target(prototypes, present):  # [C, d] and [C]: what a client computes once a round
...     return torch.where(present.unsqueeze(1), prototypes, 0)
>>> def prepare(rows, means, weights, target):  # [S, n], [S, n, n], [S, 2, n] and [C, d]
...     share = weights / weights.sum(2, keepdim=True).clamp(min=1)
...     return means, share, target[rows]
>>> def compare(x, means, share, wanted):  # [n, d], [n, n], [2, n] and [n, d]
...     levels = torch.stack([means @ x, x])  # level 0: the class mean of each sample; level 1: the sample
...     return (share * (levels - wanted).abs().mean(2)).sum(1)
>>> FAST_L1 = AlignmentLoss(
...     kind="coordinates", weights=(0.1, 0.1), pair=pair, target=target, prepare=prepare, compare=compare
... )

Both give the same terms. The class means are (0, 0) and (4, 0), and the prototypes (0, 0) and (3, 0):

>>> z, labels = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 0, 1])
>>> prototypes, present = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([True, True])
>>> for loss in (L1, FAST_L1):
...     alignment_terms(loss, z, labels, loss.target(prototypes, present), present)
(tensor(0.2500), tensor(0.5000))
(tensor(0.2500), tensor(0.5000))

To make a loss available, put it into the table ``LOSSES`` of this package.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.precision import full_precision, outside_autocast

SMALL = 1e-6  # below this ratio of squared lengths a difference is rounding noise of float32
FLOOR = 1e-24  # up to this squared length a row has no direction: the gradient of normalising it overflows float32
CHUNK = 2**15  # entries of the [S, B, B] matrices prepared at once: large enough to hide call overhead, fits a cache

Missing = Literal["mask", "self"]
Kind = Literal["coordinates", "gram", "dissimilarities"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentLoss:
    r"""A loss that aligns features with global prototypes, as a record of plain functions.

    The head of this module shows how to write one. The functions ``prepare`` and ``compare`` together give two losses,
    one for each level:

    * Level 0 compares the class means of the batch, ``means @ x``. Its matrix has n rows like the batch: each of a
      class's m samples is replaced by the mean of all m, and has the weight 1 / m.
    * Level 1 compares the samples, ``x``.

    Row ``i`` of level ``l`` counts with ``weights[l, i] >= 0``, and is compared with row ``rows[i]`` of the target.
    A row of weight 0 must not change the loss. No shape may depend on the value of a tensor: otherwise the CPU would
    have to wait for the GPU in every step, and clients could not be trained together (``torch.vmap``).

    Attributes:
        kind: What the loss compares. ``coordinates``: each feature with the prototype of its class, column by column.
            ``gram``: inner products between classes, centred over the classes. ``dissimilarities``: squared distances
            between the directions of classes. The server and the clients read it to decide which relations between
            classes they make for the loss.
        weights: The factors :math:`\lambda` of the prototype term and :math:`\gamma` of the instance term. A run uses
            them unless its settings give others.
        pair: ``(a [n, d1], b [n, d2]) -> []``. The loss of two matrices row by row, differentiable in both. The widths
            d1 and d2 may differ unless the loss compares coordinates.
        target: ``(prototypes [C, d], present [C] bool) -> Tensor``. What a client computes once a round from the
            prototypes. It must not depend on rows of absent classes.
        prepare: ``(rows [S, n], means [S, n, n], weights [S, 2, n], target) -> tensors``. The part of the loss that
            depends on labels and target only, for S batches at once. Each tensor returned begins with the axis S.
        compare: ``(x [n, d], *tensors) -> [2]``. The losses of one batch at both levels, from the features and the
            tensors that ``prepare`` returned for this batch. It can be differentiated in ``x`` once.
        relations: ``(matrix [C, C], present [C] bool) -> Tensor``. Makes the target from relations between classes,
            for use where there are no prototypes. ``None`` for a loss that compares coordinates.

    Raises:
        ValueError: If ``relations`` is missing for a kind that needs it, or given for ``coordinates``.
    """

    kind: Kind
    weights: tuple[float, float]
    pair: Callable[[Tensor, Tensor], Tensor]
    target: Callable[[Tensor, Tensor], Tensor]
    prepare: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]
    compare: Callable[..., Tensor]
    relations: Callable[[Tensor, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        """Refuse a kind that does not fit ``relations``."""
        if (self.kind == "coordinates") != (self.relations is None):
            raise ValueError(
                f"AlignmentLoss: kind = {self.kind!r} {'takes no' if self.relations else 'needs'} `relations`; a loss "
                "of kind 'gram' or 'dissimilarities' has this function, and a loss of 'coordinates' has none"
            )

    @classmethod
    def of_pair(cls, pair: Callable[[Tensor, Tensor], Tensor], *, weights: tuple[float, float]) -> AlignmentLoss:
        """Make a loss that compares coordinates from its ``pair`` function alone.

        The result is slower than a loss with its own ``prepare`` and ``compare``, since it calls ``pair`` row by row.

        Args:
            pair: ``(a [n, d], b [n, d]) -> []``, the loss of two matrices. It must be the mean over the rows of a
                loss of each row, and must work under ``torch.vmap``.
            weights: Factors of the prototype term and of the instance term, see ``AlignmentLoss.weights``.

        Example:
            >>> prototypes, present = torch.tensor([[1.0, 2.0]]), torch.tensor([True])
            >>> loss = AlignmentLoss.of_pair(lambda a, b: (a - b).abs().mean(), weights=(0.1, 0.1))
            >>> alignment_terms(loss, torch.zeros(3, 2), torch.tensor([0, 0, 0]), prototypes, present)
            (tensor(0.), tensor(1.5000))
        """
        return cls(
            kind="coordinates",
            weights=weights,
            pair=pair,
            target=present_rows,
            prepare=_prepare_rows,
            compare=functools.partial(_compare_rows, pair),
        )


def present_rows(prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the prototypes in full precision, shape ``[C, d]``; rows of absent classes are zero."""
    return torch.where(present.unsqueeze(1), full_precision(prototypes), 0)


def _prepare_rows(rows: Tensor, means: Tensor, weights: Tensor, prototypes: Tensor) -> tuple[Tensor, ...]:
    share = weights / weights.sum(2, keepdim=True).clamp(min=1)
    return means, share, prototypes[rows]


def _compare_rows(
    pair: Callable[[Tensor, Tensor], Tensor], x: Tensor, means: Tensor, share: Tensor, wanted: Tensor
) -> Tensor:
    """Loss ``[2]`` at both levels, as a weighted mean of ``pair`` over single rows."""
    check_width(x, wanted)
    # A row without weight is compared as ones with ones: zeros could make `pair` divide by zero, and NaN times the
    # weight 0 would still be NaN.
    counts = (share > 0).unsqueeze(2)
    a, b = torch.where(counts, torch.stack([means @ x, x]), 1), torch.where(counts, wanted, 1)  # [2, n, d]
    losses = torch.vmap(lambda one, other: pair(one.unsqueeze(0), other.unsqueeze(0)))(a.flatten(0, 1), b.flatten(0, 1))
    return (losses.view_as(share) * share).sum(1)


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """What the features of one batch are compared with. Call it with the features to get both terms.

    Attributes:
        loss: The loss that compares.
        constants: The tensors that ``loss.prepare`` made for this batch.
        factors: What the two terms are multiplied by, shape ``[2]``; ``None`` stands for 1 and 1.
    """

    loss: AlignmentLoss
    constants: tuple[Tensor, ...]
    factors: Tensor | None

    @outside_autocast
    def __call__(self, features: Tensor) -> Tensor:
        """Return the prototype term and the instance term of ``features`` ``[B, d]``, shape ``[2]``."""
        terms = self.loss.compare(features.to(self.constants[0].dtype), *self.constants)
        return terms if self.factors is None else terms * self.factors


def batch_targets(
    loss: AlignmentLoss,
    batches: Iterable[Tensor],
    target: Tensor,
    present: Tensor,
    *,
    missing: Missing = "mask",
    dtype: torch.dtype = torch.float32,
) -> Iterator[BatchTarget]:
    """Prepare the comparison of a whole epoch's batches, many batches at a time.

    Half of the small operations of :func:`alignment_terms` need labels and target only. On a CPU the number of small
    operations is what the terms cost, so this half is done before the epoch and for many batches at once.

    Args:
        loss: The loss that compares, an entry of ``LOSSES``.
        batches: Labels of each batch, shape ``[B]``, int64. ``B`` may differ between batches.
        target: ``loss.target(prototypes, present)`` or ``loss.relations(matrix, present)``.
        present: Classes that have a global prototype, shape ``[C]``, bool.
        missing: What happens to samples whose class has no prototype, see :func:`alignment_terms`.
        dtype: Precision of the comparison, float32 or float64.

    Yields:
        The target of each batch, in order.

    Raises:
        ValueError: If ``target`` and ``present`` differ in classes, or ``missing = "self"`` meets a relational loss.

    Example:
        >>> from isoproto.losses import LOSSES
        >>> prototypes, present = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([True, True])
        >>> epoch = [torch.tensor([0, 0, 1]), torch.tensor([1, 0])]
        >>> for batch in batch_targets(LOSSES["mse"], epoch, prototypes, present):
        ...     batch(torch.zeros(len(batch.constants[0][0]), 2))
        tensor([2.2500, 1.5000])
        tensor([2.2500, 2.2500])
    """
    _check(loss, target, present, missing)
    target = target.to(dtype)
    for size, equal in itertools.groupby(batches, len):  # usually all batches but the last have one size
        while chunk := list(itertools.islice(equal, max(1, CHUNK // max(1, size) ** 2))):
            yield from _prepare(loss, torch.stack(chunk), target, present, missing)


@outside_autocast
def _prepare(
    loss: AlignmentLoss, labels: Tensor, target: Tensor, present: Tensor, missing: Missing
) -> Sequence[BatchTarget]:
    """Return the targets of S batches with labels ``[S, B]``."""
    valid = present[labels].to(target.dtype)  # [S, B]
    # The class mean is written once per sample of the class, with weight 1 / m for m samples. So both levels have B
    # rows, whatever the labels are, and one chain of operations serves both.
    same = (labels.unsqueeze(2) == labels.unsqueeze(1)).to(target.dtype)
    inverse = valid / same.sum(2)
    means = same * inverse.unsqueeze(1)  # [S, B, B]
    two_classes = inverse.sum(1, keepdim=True) > 1.5
    weights = torch.stack([inverse * two_classes, valid], 1)  # [S, 2, B]
    constants = zip(*(constant.unbind() for constant in loss.prepare(labels, means, weights, target)), strict=True)
    if missing == "mask":
        return [BatchTarget(loss, batch, None) for batch in constants]
    share = valid.mean(1)
    factors = torch.stack([torch.ones_like(share), share], 1).unbind()
    return [BatchTarget(loss, batch, factor) for batch, factor in zip(constants, factors, strict=True)]


def alignment_terms(
    loss: AlignmentLoss,
    features: Tensor,
    labels: Tensor,
    target: Tensor,
    present: Tensor,
    *,
    missing: Missing = "mask",
) -> tuple[Tensor, Tensor]:
    r"""Compare the features of a batch with the global prototypes, by class means and sample by sample.

    .. math::
        L_{proto} = \mathcal L(P_i, P_g[U]), \qquad L_{inst} = \mathcal L(z[V], P_g[y_V])

    :math:`P_i` holds the class means of the batch, :math:`U` the classes that occur in the batch and have a global
    prototype, and :math:`V` the samples of such classes. :func:`batch_targets` is faster for many batches.

    Reference: FedSAF, Eqs. (15) and (17) to (19).

    Args:
        loss: The loss that compares, an entry of ``LOSSES``.
        features: Features :math:`z` of the batch, shape ``[B, d]``, any float dtype.
        labels: Their classes, shape ``[B]``, int64, in ``[0, C)``.
        target: ``loss.target(prototypes, present)`` or ``loss.relations(matrix, present)``.
        present: Classes that have a global prototype, shape ``[C]``, bool.
        missing: What happens to samples whose class has no prototype. ``mask`` leaves them out of
            :math:`L_{inst}`. ``self`` counts them in its mean with a loss of zero, as FedProto does.

    Returns:
        :math:`L_{proto}` and :math:`L_{inst}`, shape ``[]`` each, float32 (float64 for float64 features), >= 0.
        A term and its gradient are exactly zero where nothing can be compared. That is :math:`L_{proto}` with fewer
        than two classes, and either term of a relational loss with fewer than three points or when all features or
        all targets coincide.

    Raises:
        ValueError: If the target's shape does not fit the classes and the features, or if ``missing = "self"``
            meets a relational loss.

    Example:
        Class means (0, 0) and (4, 0) against prototypes (0, 0) and (3, 0), mean over rows and columns:

        >>> from isoproto.losses import LOSSES
        >>> z = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [4.0, 0.0]])
        >>> prototypes, present = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([True, True])
        >>> target = LOSSES["mse"].target(prototypes, present)
        >>> alignment_terms(LOSSES["mse"], z, torch.tensor([0, 0, 1]), target, present)
        (tensor(0.2500), tensor(0.5000))
    """
    x, target = _common_precision(features, target)
    (batch,) = batch_targets(loss, [labels], target, present, missing=missing, dtype=x.dtype)
    proto, instance = batch(x).unbind()
    return proto, instance


def _common_precision(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features in full precision, and the target in the same dtype."""
    x = full_precision(x)
    return x, target.to(x.dtype)


def _check(loss: AlignmentLoss, target: Tensor, present: Tensor, missing: Missing) -> None:
    """Raise if the target does not fit the classes, or ``missing`` does not fit the loss."""
    classes = len(present)
    if len(target) != classes or (loss.relations and target.shape != (classes, classes)):
        kind = "relations between classes, [C, C]" if loss.relations else "prototypes, [C, d]"
        raise ValueError(
            f"the alignment target must hold {kind} with C = {classes} as in `present`, got {tuple(target.shape)}; "
            f"make it with the loss's own `target`"
        )
    if missing == "self" and loss.relations:
        raise ValueError(
            "`missing` = 'self' is for coordinate losses ('mse', 'cosine'); a relational loss takes 'mask'"
        )


def gather_pairs(relations: Tensor, rows: Tensor) -> Tensor:
    """Look up relations between classes ``[C, C]`` for samples of the classes ``rows`` ``[S, n]``: ``[S, n, n]``."""
    pairs = rows.unsqueeze(2) * len(relations) + rows.unsqueeze(1)  # one flat index is twice as fast as two indices
    return relations.flatten().index_select(0, pairs.flatten()).view_as(pairs)


def both_levels(gram: Tensor, means: Tensor) -> Tensor:
    """Return the Gram matrices of class means and of samples, ``[2, n, n]``, given the samples' one ``[n, n]``."""
    return torch.stack([means @ gram @ means.T, gram])


def check_width(x: Tensor, prototypes: Tensor) -> None:
    """Raise if features ``[n, d]`` cannot be compared with prototypes coordinate by coordinate."""
    if x.shape != prototypes.shape:
        raise ValueError(
            f"features and prototypes must have the same width, got {tuple(x.shape)} and {tuple(prototypes.shape)} "
            f"for the same batch; give the model the federation's feature-dim, or use 'gcsa' or 'rcsa'"
        )


def directions(x: Tensor, noise: float = SMALL**2) -> tuple[Tensor, Tensor]:
    """Scale the rows of ``x`` ``[..., n, d]`` to length 1, and say which rows have a direction.

    A row has none if it is shorter than float32 can normalise, or if it is rounding noise: its squared length is at
    most ``noise`` times the mean squared length. Only a subtraction leaves rounding noise. Rows that come from none
    are exact even beside much longer rows, so callers pass ``noise = 0`` for them.
    """
    energy = x.square().sum(-1)
    keep = energy > (noise * energy.mean(-1, keepdim=True)).clamp(min=FLOOR)
    return x * torch.where(keep, energy, 1).rsqrt().unsqueeze(-1), keep


def one_minus_cosine(a: Tensor, b: Tensor, informative: Tensor) -> Tensor:
    """Return one minus the cosine of two matrices. Value and gradient are 0 unless ``informative`` and both nonzero."""
    informative = informative & a.any() & b.any()
    cosine = functional.cosine_similarity(a.flatten(), b.flatten(), dim=0, eps=1e-20)
    return torch.where(informative, 1 - cosine, 0)


Backward = Callable[..., Tensor]


class _ClosedForm(torch.autograd.Function):
    """Autograd function of losses with a hand-written gradient; see :func:`attach_gradient`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, x: Tensor, backward: Backward, *constants: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401 - torch's signature
        ctx.written_out = inputs[2]
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        constants = ctx.saved_tensors
        return None, ctx.written_out(outer, *constants), None, *(None for _ in constants)


def attach_gradient(value: Tensor, x: Tensor, backward: Backward, *constants: Tensor) -> Tensor:
    """Give losses ``value`` ``[L]`` the gradient ``backward(outer [L], *constants)`` with respect to ``x``.

    The closed form is cheaper than what autograd records for the thirty small operations behind a value. ``outer``
    holds the derivatives of the final loss with respect to the L values. So ``backward`` can add the L gradients up
    before it takes the large products.
    """
    attached: Tensor = _ClosedForm.apply(value, x, backward, *constants)
    return attached


def gram_backward(outer: Tensor, slope: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """Return the gradient ``[n, d]`` of losses that depend on ``x`` ``[n, d]`` through its Gram matrix only.

    ``scale[l] * slope[l]`` ``[n, n]`` is half the gradient of loss ``l`` with respect to that matrix, and symmetric.
    """
    return ((outer * scale) @ slope.flatten(1)).view_as(slope[0]) @ x


def full_precision_pair(a: Tensor, b: Tensor, *, any_width: bool) -> tuple[Tensor, Tensor]:
    """Return both matrices in full precision, or raise if their rows cannot be compared."""
    if a.dim() != 2 or b.dim() != 2 or len(a) != len(b) or not (any_width or a.shape == b.shape):
        wanted = "as many rows" if any_width else "the same shape"
        raise ValueError(f"pair: needs two matrices of {wanted}, got {tuple(a.shape)} and {tuple(b.shape)}")
    return full_precision(a), full_precision(b)
