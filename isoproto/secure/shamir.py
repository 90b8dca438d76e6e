r"""A secret in shares: any ``needed`` of them give it back, fewer say nothing about it.

.. math::
    f(x) = s + a_1 x + \dots + a_{t-1} x^{t-1} \pmod P, \qquad s = \sum_j f(x_j) \prod_{m \ne j} \frac{x_m}{x_m - x_j}

with :math:`P = 2^{256} + 297`, a prime, so that every secret of 32 bytes is a number below it. Source: Shamir, "How to
Share a Secret", Communications of the ACM 22, 1979.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from isoproto.secure.stream import key_stream

PRIME = 2**256 + 297
SHARE_BYTES = 33


def split(secret: bytes, points: Sequence[int], needed: int, seed: bytes) -> list[bytes]:
    """Return a share of 33 bytes for each point.

    Args:
        secret: 32 bytes.
        points: Different whole numbers from 1 up, one for each holder.
        needed: How many shares give the secret back.
        seed: 32 random bytes, from which the coefficients come. It must be used for no other secret.

    Raises:
        ValueError: If there are fewer points than ``needed``, or points that are equal or not positive.

    Example:
        >>> shares = split(bytes(range(32)), [1, 2, 5], needed=2, seed=bytes(32))
        >>> join({5: shares[2], 1: shares[0]}) == bytes(range(32))
        True
    """
    if not 1 <= needed <= len(points) or len(set(points)) < len(points) or min(points) < 1:
        raise ValueError(f"cannot split a secret so that {needed} of the shares at points {list(points)} give it back")
    # 64 random bytes modulo a prime of 33 bytes: no value is more likely than another by more than 2^-255.
    random = key_stream(seed, 8 * (needed - 1)).astype("<u8").tobytes()
    chosen = [int.from_bytes(random[start : start + 64], "little") % PRIME for start in range(0, len(random), 64)]
    coefficients = [int.from_bytes(secret, "little"), *chosen]
    return [_value(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points]


def _value(coefficients: list[int], point: int) -> int:
    """Return the polynomial's value at a point."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret of shares by point, or nothing if they are not shares of 32 bytes.

    A wrong share among them gives a wrong secret. The caller compares it with what is known of the secret.
    """
    weights = _weights(tuple(sorted(shares)))
    secret = sum(int.from_bytes(shares[point], "little") * weight for point, weight in weights.items()) % PRIME
    return secret.to_bytes(32, "little") if secret < 2**256 else None


@functools.lru_cache(maxsize=64)
def _weights(points: tuple[int, ...]) -> dict[int, int]:
    """Return the weight of each point's share in the value at zero. Clients with the same holders share them."""
    weights = {}
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        weights[point] = above * pow(below, -1, PRIME) % PRIME
    return weights
