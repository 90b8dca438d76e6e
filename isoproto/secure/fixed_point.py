r"""Real numbers as whole numbers, so that sums are exact and do not depend on their order.

.. math::
    q = \mathrm{round}(2^b x), \qquad \sum_k x_k \approx 2^{-b} \Big(\sum_k q_k \bmod 2^{64}\Big)

Each number is off by at most :math:`2^{-b-1}`. The sum of the whole numbers has no error at all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FRACTION_BITS = 24
MOST_CLIENTS = 2**16


def limit(bits: int = FRACTION_BITS, clients: int = MOST_CLIENTS) -> float:
    """Return the largest magnitude that every one of ``clients`` may add without overflow.

    Example:
        >>> limit(bits=24, clients=2**16) == 2.0**23
        True
    """
    return 2.0 ** (63 - bits) / clients


def encode(
    values: npt.ArrayLike, bits: int = FRACTION_BITS, clients: int = MOST_CLIENTS, *, what: str = "the vector"
) -> npt.NDArray[np.int64]:
    """Write real numbers as whole numbers, int64 of the same shape.

    Args:
        values: Real numbers, any shape; they are read as float64.
        bits: Binary digits after the point, b.
        clients: Most clients of a sum.
        what: Name of the numbers, for the error.

    Raises:
        ValueError: If a number is NaN or infinite, or if a sum over ``clients`` could overflow.

    Example:
        >>> encode([1.0, -0.25, 0.3], bits=4).tolist()
        [16, -4, 5]
    """
    real = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(real)
    if not finite.all():
        raise ValueError(f"{what} has {int((~finite).sum())} values that are NaN or infinite; they cannot be added")
    scaled = np.rint(np.ldexp(real, bits))
    largest, most = float(np.abs(scaled).max(initial=0.0)), limit(0, clients)
    if largest >= most:
        raise ValueError(
            f"{what} has a value of magnitude {largest / 2.0**bits:g}; with {bits} binary digits after the point and "
            f"up to {clients} clients, values must be below {limit(bits, clients):g}. Use fewer digits, or scale them"
        )
    return scaled.astype(np.int64)


def decode(total: npt.NDArray[np.int64], bits: int = FRACTION_BITS) -> npt.NDArray[np.float64]:
    """Return whole numbers as real ones, float64. It is exact for magnitudes up to ``2**53`` before scaling.

    Example:
        >>> decode(encode([1.5, -2.0]) + encode([0.25, 4.0])).tolist()
        [1.75, 2.0]
    """
    return np.ldexp(total.astype(np.float64), -bits)
