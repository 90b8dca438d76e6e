"""Counts, class sums and second moment as one vector, for noise and for the secure sum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isoproto.privacy.sensitivity import Reals, of_statistics


class Weights(NamedTuple):
    """Factors of the parts of the vector. They decide how the noise is dealt out.

    Attributes:
        counts: Factor of the counts.
        sums: Factor of the class sums.
        moment: Factor of the second moment.
    """

    counts: float = 1.0
    sums: float = 1.0
    moment: float = 1.0

    @classmethod
    def balanced(cls, bound: float) -> Weights:
        """Return weights with which a sample of length ``bound`` moves each of the three parts as far.

        Example:
            >>> Weights.balanced(2.0), Weights.balanced(2.0).sensitivity(2.0) == 2.0 * 3**0.5
            (Weights(counts=2.0, sums=1.0, moment=0.5), True)
        """
        return cls(bound, 1.0, 1 / bound)

    def sensitivity(self, bound: float) -> float:
        """Return how far a sample of length ``bound`` moves the vector."""
        return of_statistics(bound, counts=self.counts, sums=self.sums, moment=self.moment)


class Moments(NamedTuple):
    """Sums over samples, each of which adds up over clients.

    Attributes:
        counts: Samples of each class, ``[C]``.
        sums: Sum of the samples of each class, ``[C, D]``.
        moment: Sum of the products of all samples with themselves, ``[D, D]``, symmetric.
    """

    counts: Reals
    sums: Reals
    moment: Reals


def packed_length(classes: int, width: int) -> int:
    """Return the length of :func:`pack`'s vector: C + CD + D(D + 1) / 2.

    Example:
        >>> packed_length(classes=10, width=1024)
        535050
    """
    return classes + classes * width + width * (width + 1) // 2


def pack(moments: Moments, weights: Weights) -> Reals:
    r"""Write the parts one after the other.

    Of the second moment the upper triangle goes, with the entries beside the diagonal times :math:`\sqrt{2}`. So the
    vector is as long as the whole matrix (Frobenius), and noise beside the diagonal is halved in variance on reading.

    Returns:
        ``[C + C D + D (D + 1) / 2]``, float64.

    Example:
        >>> one = Moments(np.array([2.0]), np.array([[3.0, 4.0]]), np.array([[1.0, 5.0], [5.0, 2.0]]))
        >>> pack(one, Weights()).round(3).tolist()
        [2.0, 3.0, 4.0, 1.0, 7.071, 2.0]
    """
    triangle = moments.moment[np.triu_indices(len(moments.moment))] * _triangle_factors(len(moments.moment))
    return np.concatenate(
        [weights.counts * moments.counts, weights.sums * moments.sums.reshape(-1), weights.moment * triangle]
    )


def unpack(vector: Reals, classes: int, width: int, weights: Weights) -> Moments:
    """Read what :func:`pack` wrote, or a sum of such vectors.

    Raises:
        ValueError: If the length does not fit.

    Example:
        >>> one = Moments(np.array([2.0]), np.array([[3.0, 4.0]]), np.array([[1.0, 5.0], [5.0, 2.0]]))
        >>> unpack(pack(one, Weights()), classes=1, width=2, weights=Weights()).moment.round(9).tolist()
        [[1.0, 5.0], [5.0, 2.0]]
    """
    if vector.shape != (packed_length(classes, width),):
        raise ValueError(
            f"statistics of {classes} classes and {width} coordinates have {packed_length(classes, width)} numbers, "
            f"got {vector.shape}"
        )
    counts, sums, triangle = np.split(vector, [classes, classes + classes * width])
    moment = np.zeros((width, width))
    moment[np.triu_indices(width)] = triangle / _triangle_factors(width) / weights.moment
    moment += np.triu(moment, 1).T
    return Moments(counts / weights.counts, sums.reshape(classes, width) / weights.sums, moment)


def _triangle_factors(width: int) -> Reals:
    """Return the factor of each entry of the upper triangle, ``[D (D + 1) / 2]``."""
    rows, columns = np.triu_indices(width)
    return np.where(rows == columns, 1.0, np.sqrt(2.0))


def positive_part(matrix: Reals) -> Reals:
    r"""Return the nearest symmetric matrix without negative eigenvalues, ``[D, D]``.

    Noise can make a scatter matrix indefinite. This mends it without looking at a sample, so it costs no privacy.

    Example:
        >>> positive_part(np.array([[2.0, 0.0], [0.0, -1.0]])).tolist()
        [[2.0, 0.0], [0.0, 0.0]]
    """
    values, directions = np.linalg.eigh((matrix + matrix.T) / 2)
    mended: Reals = (directions * values.clip(min=0)) @ directions.T
    return mended
