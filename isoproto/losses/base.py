"""What an alignment loss is, and the two levels at which a batch is compared with the global prototypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.precision import full_precision, outside_autocast

SMALL = 1e-6  # ratio of squared lengths below which a difference is rounding noise in float32


@dataclass(frozen=True, slots=True)
class AlignmentLoss:
    """A loss that aligns features with global prototypes, as plain functions.

    Attributes:
        pair: ``(a [n, d1], b [n, d2]) -> []``, the loss of two matrices row by row, differentiable in both. Only
            relational losses take different widths.
        target: ``(prototypes [C, d], present [C] bool) -> Tensor``, what a client computes once a round. Absent
            rows are never read.
        levels: ``(x [n, d], rows [n], averages [L, n, n], weights [L, n], target) -> [L]``, the losses of ``L``
            matrices that are made from the same samples, differentiable in ``x``. Row ``i`` of level ``l`` is the
            average ``averages[l, i] @ x``, counts with ``weights[l, i]`` >= 0 and belongs to the target's row
            ``rows[i]``. No shape depends on a value, so a GPU is never waited for.
        relations: ``(matrix [C, C], present [C] bool) -> Tensor``, a target from relations between classes where
            there are no prototypes; ``None`` for a loss that compares coordinates.
    """

    pair: Callable[[Tensor, Tensor], Tensor]
    target: Callable[[Tensor, Tensor], Tensor]
    levels: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    relations: Callable[[Tensor, Tensor], Tensor] | None = None

    @outside_autocast
    def indexed(self, x: Tensor, rows: Tensor, valid: Tensor, target: Tensor) -> Tensor:
        """Loss of the ``valid`` ``[n]`` rows of ``x`` ``[n, d]`` against the target's rows ``rows`` ``[n]``.

        Example:
            >>> from isoproto.losses import LOSSES
            >>> target = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
            >>> x, rows = torch.tensor([[1.0, 0.0], [3.0, 4.0], [9.0, 9.0]]), torch.tensor([0, 1, 1])
            >>> LOSSES["mse"].indexed(x, rows, torch.tensor([True, True, False]), target)
            tensor(4.2500)
        """
        x = full_precision(x)
        weights = valid.to(x.dtype).unsqueeze(0)
        return self.levels(x, rows, torch.diag_embed(weights), weights, target.to(x.dtype))[0]


@outside_autocast
def alignment_terms(
    loss: AlignmentLoss,
    features: Tensor,
    labels: Tensor,
    target: Tensor,
    present: Tensor,
    *,
    missing: Literal["mask", "self"] = "mask",
) -> tuple[Tensor, Tensor]:
    r"""Compare a batch with the global prototypes, as class means and sample by sample.

    .. math::
        L_{proto} = \mathcal L(P_i, P_g[U]), \qquad L_{inst} = \mathcal L(z[V], P_g[y_V])

    where :math:`P_i` holds the class means of the batch, :math:`U` the classes that occur in the batch and have a
    global prototype, and :math:`V` the samples of such classes.

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
    _check(loss, features, target, present, missing)
    x = full_precision(features)
    valid = present.index_select(0, labels).to(x.dtype)  # [B]
    # Each of a class's n samples stands for the class mean with weight 1 / n. So both levels are [B, B] whatever
    # the labels, and go through one chain of operations: on a CPU their number is the cost, not their size.
    same = (labels.unsqueeze(1) == labels).to(x.dtype)
    inverse = valid / same.sum(1)
    averages = torch.stack([same * inverse, torch.diag(valid)])
    weights = torch.stack([inverse, valid])
    proto, instance = loss.levels(x, labels, averages, weights, target.to(x.dtype)).unbind()
    if loss.relations is None:  # relational losses ask for three points themselves
        proto = proto * (inverse.sum() > 1.5)
    if missing == "self":
        instance = instance * valid.mean()
    return proto, instance


def _check(loss: AlignmentLoss, features: Tensor, target: Tensor, present: Tensor, missing: str) -> None:
    classes = len(present)
    wanted = (classes, classes) if loss.relations else (classes, features.shape[1])
    if target.shape != wanted:
        kind = "relations between classes" if loss.relations else "prototypes as wide as the features"
        raise ValueError(
            f"alignment_terms: the target must hold {kind}, shape {wanted}, got {tuple(target.shape)} "
            f"for features {tuple(features.shape)}; make it with the loss's own `target`"
        )
    if missing == "self" and loss.relations:
        raise ValueError(
            "alignment_terms: `missing` = 'self' is for coordinate losses ('mse', 'cosine'); "
            "a relational loss takes 'mask'"
        )


def gather_pairs(relations: Tensor, rows: Tensor) -> Tensor:
    """Relations ``[n, n]`` between samples of the classes ``rows`` ``[n]``."""
    return relations.index_select(0, rows).index_select(1, rows)


def one_minus_cosine(a: Tensor, b: Tensor, informative: Tensor) -> Tensor:
    """One minus the cosine of matrices ``[L, n, n]``; 0 with a zero gradient for zero or uninformative ones."""
    a, b = a.flatten(1), b.flatten(1)
    cosine = functional.cosine_similarity(a, b, dim=1, eps=1e-20)
    informative = (informative & a.any(1) & b.any(1)).to(cosine.dtype)
    return informative - informative * cosine


def full_precision_pair(a: Tensor, b: Tensor, *, any_width: bool) -> tuple[Tensor, Tensor]:
    """Both matrices in full precision, if their rows can be compared."""
    if a.dim() != 2 or b.dim() != 2 or len(a) != len(b) or not (any_width or a.shape == b.shape):
        wanted = "as many rows" if any_width else "the same shape"
        raise ValueError(f"pair: needs two matrices of {wanted}, got {tuple(a.shape)} and {tuple(b.shape)}")
    return full_precision(a), full_precision(b)
