"""What an alignment loss is, and the two levels at which a batch is compared with the global prototypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.precision import full_precision, outside_autocast

SMALL = 1e-6  # ratio of squared lengths below which a difference is rounding noise in float32
FLOOR = 1e-24  # squared length up to which a row has no direction: the gradient of normalising it leaves float32
CHUNK = 2**15  # entries of the [S, B, B] matrices prepared at once: hides the overhead of an operation, fits a cache

Missing = Literal["mask", "self"]
Kind = Literal["coordinates", "gram", "dissimilarities"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentLoss:
    r"""A loss that aligns features with global prototypes, as plain functions.

    ``prepare`` and ``compare`` are two halves of one loss. ``prepare(rows [S, n], means [S, n, n],
    weights [S, 2, n], target)`` does what depends on labels and target only, for S batches at once, and returns
    tensors that begin with the axis S; ``compare(x [n, d], *those of one batch) -> [2]`` is left for each step. They
    give the losses of two matrices: the class means ``means @ x``, in which each of a class's n samples stands for
    the mean of all and has a weight of 1 / n, and the samples ``x``. Row ``i`` of matrix ``l`` counts with
    ``weights[l, i] >= 0`` and belongs to the target's row ``rows[i]``. No shape depends on a value, so a GPU is never
    waited for. ``compare`` can be differentiated in ``x``, once.

    Attributes:
        kind: What the loss compares. ``coordinates``: each feature with the prototype of its class, column by column.
            ``gram``: inner products between classes, centred over the classes. ``dissimilarities``: squared distances
            between the directions of classes. Server and client choose by it which relations they make for the loss.
        weights: The factors :math:`\lambda` of :math:`L_{proto}` and :math:`\gamma` of :math:`L_{inst}` that a run
            uses unless its settings give others.
        pair: ``(a [n, d1], b [n, d2]) -> []``, the loss of two matrices row by row, differentiable in both. Only
            relational losses take different widths.
        target: ``(prototypes [C, d], present [C] bool) -> Tensor``, what a client computes once a round. Absent
            rows are never read.
        prepare: See above.
        compare: See above.
        relations: ``(matrix [C, C], present [C] bool) -> Tensor``, a target from relations between classes where
            there are no prototypes; ``None`` for a loss that compares coordinates.

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


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """What the features of one batch are compared with; ``target(features)`` does it.

    Attributes:
        loss: Entry of ``LOSSES``.
        constants: What its ``prepare`` made for this batch.
        factors: Factors of the two terms, shape ``[2]``, or ``None`` for 1 and 1.
    """

    loss: AlignmentLoss
    constants: tuple[Tensor, ...]
    factors: Tensor | None

    @outside_autocast
    def __call__(self, features: Tensor) -> Tensor:
        """Return :math:`L_{proto}` and :math:`L_{inst}`, shape ``[2]``, of ``features`` ``[B, d]``."""
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
    """Prepare :func:`alignment_terms` for a sequence of batches, many at a time.

    On a CPU the cost of the terms is the number of small operations, and half of them know everything they need
    before the epoch begins.

    Args:
        loss: Entry of ``LOSSES``.
        batches: Labels of each batch, shape ``[B]``, int64; ``B`` may differ between batches.
        target: As for :func:`alignment_terms`.
        present: Likewise.
        missing: Likewise.
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
    for size, equal in itertools.groupby(batches, len):  # usually all but the last
        while chunk := list(itertools.islice(equal, max(1, CHUNK // max(1, size) ** 2))):
            yield from _prepare(loss, torch.stack(chunk), target, present, missing)


@outside_autocast
def _prepare(
    loss: AlignmentLoss, labels: Tensor, target: Tensor, present: Tensor, missing: Missing
) -> Sequence[BatchTarget]:
    """Targets of the S batches ``labels`` ``[S, B]``."""
    valid = present[labels].to(target.dtype)  # [S, B]
    # Each of a class's n samples stands for the class mean with weight 1 / n: both levels have B rows, whatever the
    # labels, and go through one chain of operations.
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
    r"""Compare a batch with the global prototypes, as class means and sample by sample.

    .. math::
        L_{proto} = \mathcal L(P_i, P_g[U]), \qquad L_{inst} = \mathcal L(z[V], P_g[y_V])

    where :math:`P_i` holds the class means of the batch, :math:`U` the classes that occur in the batch and have a
    global prototype, and :math:`V` the samples of such classes. For many batches see :func:`batch_targets`.

    Reference: FedSAF, Eqs. (15) and (17) to (19).

    Args:
        loss: Entry of ``LOSSES``.
        features: Features :math:`z` of the batch, shape ``[B, d]``, any float dtype.
        labels: Their classes, shape ``[B]``, int64, in ``[0, C)``.
        target: ``loss.target(prototypes, present)`` or ``loss.relations(matrix, present)``.
        present: Classes that have a global prototype, shape ``[C]``, bool.
        missing: Samples whose class has no prototype are left out of :math:`L_{inst}` (``mask``), or count in its
            mean with a zero residual (``self``, as FedProto does).

    Returns:
        :math:`L_{proto}` and :math:`L_{inst}`, shape ``[]`` each, float32 (float64 for float64 features), >= 0.
        A term that has nothing to say is exactly zero and so is its gradient: :math:`L_{proto}` below two classes,
        and both under a relational loss below three points or when features or targets coincide.

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
    x = full_precision(x)
    return x, target.to(x.dtype)


def _check(loss: AlignmentLoss, target: Tensor, present: Tensor, missing: Missing) -> None:
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
    """Relations ``[S, n, n]`` between samples of the classes ``rows`` ``[S, n]``."""
    pairs = rows.unsqueeze(2) * len(relations) + rows.unsqueeze(1)  # one index is looked up twice as fast as two
    return relations.flatten().index_select(0, pairs.flatten()).view_as(pairs)


def both_levels(gram: Tensor, means: Tensor) -> Tensor:
    """Gram matrices ``[2, n, n]`` of the class means and of the samples, from that of the samples."""
    return torch.stack([means @ gram @ means.T, gram])


def check_width(x: Tensor, prototypes: Tensor) -> None:
    """Raise if features ``[n, d]`` cannot be compared with prototypes coordinate by coordinate."""
    if x.shape != prototypes.shape:
        raise ValueError(
            f"features and prototypes must have the same width, got {tuple(x.shape)} and {tuple(prototypes.shape)} "
            f"for the same batch; give the model the federation's feature-dim, or use 'gcsa' or 'rcsa'"
        )


def directions(x: Tensor, noise: float = SMALL**2) -> tuple[Tensor, Tensor]:
    """Rows ``[..., n, d]`` of length 1, and which rows have a direction at all.

    The others are shorter than float32 can normalise, or rounding noise: their squared length is ``noise`` times the
    mean or less. Rows that did not come about by a subtraction are exact however long their neighbours are, and take
    ``noise = 0``.
    """
    energy = x.square().sum(-1)
    keep = energy > (noise * energy.mean(-1, keepdim=True)).clamp(min=FLOOR)
    return x * torch.where(keep, energy, 1).rsqrt().unsqueeze(-1), keep


def one_minus_cosine(a: Tensor, b: Tensor, informative: Tensor) -> Tensor:
    """One minus the cosine of two matrices; 0 with a zero gradient for zero or uninformative ones."""
    informative = informative & a.any() & b.any()
    cosine = functional.cosine_similarity(a.flatten(), b.flatten(), dim=0, eps=1e-20)
    return torch.where(informative, 1 - cosine, 0)


Backward = Callable[..., Tensor]


class _ClosedForm(torch.autograd.Function):
    """Losses whose gradient is written out; see :func:`attach_gradient`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, x: Tensor, backward: Backward, *constants: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401 - torch's own
        ctx.written_out = inputs[2]
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        constants = ctx.saved_tensors
        return None, ctx.written_out(outer, *constants), None, *(None for _ in constants)


def attach_gradient(value: Tensor, x: Tensor, backward: Backward, *constants: Tensor) -> Tensor:
    """Give losses ``value`` ``[L]`` the gradient ``backward(outer [L], *constants)`` with respect to ``x``.

    Autograd's own bookkeeping for the thirty small operations behind a value costs more than the closed form. What is
    left for ``backward`` sees the weights of the L losses in ``outer``, and can add them up before the large products.
    """
    attached: Tensor = _ClosedForm.apply(value, x, backward, *constants)
    return attached


def gram_backward(outer: Tensor, slope: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """Gradient ``[n, d]`` of losses that know ``x`` ``[n, d]`` by its Gram matrix.

    ``scale[l] * slope[l]`` ``[n, n]``, symmetric, is half the gradient of loss ``l`` with respect to that matrix.
    """
    return ((outer * scale) @ slope.flatten(1)).view_as(slope[0]) @ x


def full_precision_pair(a: Tensor, b: Tensor, *, any_width: bool) -> tuple[Tensor, Tensor]:
    """Both matrices in full precision, if their rows can be compared."""
    if a.dim() != 2 or b.dim() != 2 or len(a) != len(b) or not (any_width or a.shape == b.shape):
        wanted = "as many rows" if any_width else "the same shape"
        raise ValueError(f"pair: needs two matrices of {wanted}, got {tuple(a.shape)} and {tuple(b.shape)}")
    return full_precision(a), full_precision(b)
