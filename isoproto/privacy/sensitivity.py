r"""How far one sample can move what a client sends, in Euclidean length.

A sample's coordinates :math:`\phi` are clipped to length c. A sample in several versions (warped copies) counts as the
mean of the versions, of which each is clipped. Then all bounds hold as they are, since a mean of vectors that are no
longer than a bound is no longer either.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]


def clipped(vectors: npt.ArrayLike, bound: float) -> Reals:
    """Shorten vectors that are longer than ``bound``; the others stay.

    Args:
        vectors: Vectors ``[..., D]``.
        bound: Greatest length c, > 0.

    Returns:
        The vectors, ``[..., D]``, float64.

    Example:
        >>> clipped([[3.0, 4.0], [0.3, 0.4]], bound=1.0).tolist()
        [[0.6, 0.8], [0.3, 0.4]]
    """
    _positive(bound, "bound")
    real = np.asarray(vectors, dtype=np.float64)
    length = np.linalg.norm(real, axis=-1, keepdims=True)
    short: Reals = real / np.maximum(1.0, length / bound)
    return short


def of_statistics(bound: float, *, counts: float = 1.0, sums: float = 1.0, moment: float = 1.0) -> float:
    r"""Return the sensitivity of counts, class sums and second moment as one vector.

    .. math::
        z = (\alpha\, n_c,\ \gamma\, s_c,\ \beta M), \qquad M = \sum_i \phi_i \phi_i^\top, \qquad
        \Delta = \sqrt{\alpha^2 + \gamma^2 c^2 + \beta^2 c^4}

    A sample of class y adds 1 to :math:`n_y`, :math:`\phi` to :math:`s_y` and :math:`\phi \phi^\top` to M, whose
    Frobenius norm is :math:`|\phi|^2 \le c^2`. A sample of length c reaches the bound. The scatter within classes is
    not sent, since class means move with every sample; the server computes it from z.

    Args:
        bound: Greatest length c of a sample.
        counts: Weight :math:`\alpha` of the counts.
        sums: Weight :math:`\gamma` of the class sums.
        moment: Weight :math:`\beta` of the second moment.

    Example:
        >>> round(of_statistics(1.0), 6)
        1.732051
    """
    _positive(bound, "bound")
    return math.hypot(counts, sums * bound, moment * bound**2)


def of_gradients(bound: float) -> float:
    r"""Return the sensitivity of the gradient of all class rows.

    .. math::
        G = \sum_i (p_i - e_{y_i}) [\phi_i; 1]^\top, \qquad \Delta = \sqrt{2}\, \sqrt{c^2 + 1}

    A sample adds a product of two vectors, whose Frobenius norm is the product of their lengths. With q the probability
    of the right class, :math:`|p - e_y|^2 = (1 - q)^2 + \sum_{c \ne y} p_c^2 \le 2 (1 - q)^2 \le 2`.

    This needs probabilities that depend on nothing of the client but the sample itself. A prior of the client's own
    class counts breaks it, because one sample then moves the probabilities of all others.

    Example:
        >>> round(of_gradients(1.0), 6)
        2.0
    """
    _positive(bound, "bound")
    return math.sqrt(2 * (bound**2 + 1))


def of_losses(most: float, candidates: int) -> float:
    r"""Return the sensitivity of sums of losses under several candidates: :math:`L \sqrt{J}`.

    Each sample's loss is clipped to L, and a sample changes each of the J sums by at most that. Whether a sample is
    held out must depend on that sample alone (on a digest of it, say), not on how many others there are.

    Args:
        most: Greatest loss L of a sample.
        candidates: Number of sums J.

    Example:
        >>> of_losses(2.0, candidates=9)
        6.0
    """
    _positive(most, "most")
    return most * math.sqrt(candidates)


def with_rounding(sensitivity: float, length: int, bits: int) -> float:
    r"""Return the sensitivity after rounding to fixed point: :math:`\Delta + \sqrt{L}\, 2^{-b}`.

    Rounding moves each of L numbers by at most half a step, before and after the change.

    Example:
        >>> with_rounding(1.0, length=2**20, bits=24) == 1.0 + 2.0**-14
        True
    """
    return sensitivity + math.sqrt(length) * 2.0**-bits


def _positive(value: float, name: str) -> None:
    if not value > 0 or math.isinf(value):
        raise ValueError(f"`{name}` must be a positive number, got {value}")
