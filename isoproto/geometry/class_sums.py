"""Sums of vectors per class, as a value that adds up over batches, clients and federations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.precision import full_precision, outside_autocast


@dataclass(frozen=True, slots=True, eq=False)
class ClassSums:
    """Sum and count of the vectors of each class.

    ``+`` merges two of them: the result is the same as if all vectors had been summed together.

    Attributes:
        total: Sum of the vectors of each class, shape ``[C, d]``, float32 (float64 for float64 vectors).
        count: Number of vectors of each class, shape ``[C]``, int64.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
        >>> sums = ClassSums.of(x, torch.tensor([0, 0, 2]), num_classes=3)
        >>> sums.mean()
        tensor([[2., 0.],
                [0., 0.],
                [0., 5.]])
        >>> sums.present
        tensor([ True, False,  True])
    """

    total: Tensor
    count: Tensor

    @classmethod
    def zeros(
        cls,
        num_classes: int,
        width: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> ClassSums:
        """Make the sums of no vectors at all, the neutral element of ``+``."""
        count = torch.zeros(num_classes, dtype=torch.int64, device=device)
        return cls(torch.zeros(num_classes, width, dtype=dtype, device=device), count)

    @classmethod
    @outside_autocast
    def of(cls, vectors: Tensor, labels: Tensor, num_classes: int) -> ClassSums:
        """Sum ``vectors`` ``[B, d]`` by ``labels`` ``[B]``, int64 in ``[0, C)``."""
        # A matrix product fixes the order of the additions on a GPU too, which index_add does not.
        one_hot = functional.one_hot(labels, num_classes)  # [B, C]
        vectors = full_precision(vectors)
        return cls(one_hot.T.to(vectors.dtype) @ vectors, one_hot.sum(0))

    def __add__(self, other: ClassSums) -> ClassSums:
        if self.total.shape != other.total.shape:
            raise ValueError(
                f"class sums add up only with the same classes and width, "
                f"got totals {tuple(self.total.shape)} and {tuple(other.total.shape)}"
            )
        return ClassSums(self.total + other.total, self.count + other.count)

    @property
    def present(self) -> Tensor:
        """Classes with at least one vector, shape ``[C]``, bool."""
        return self.count > 0

    def mean(self) -> Tensor:
        """Return the class means, shape ``[C, d]``; rows of absent classes are zero."""
        return self.total / self.count.clamp(min=1).unsqueeze(1)
