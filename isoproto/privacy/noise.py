"""Gaussian noise from a cipher, so that nobody can guess it; from a seed, so that a repeated message has the same."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from isoproto.privacy.sensitivity import Reals, with_rounding
from isoproto.secure.fixed_point import FRACTION_BITS, MOST_CLIENTS, encode
from isoproto.secure.stream import key_stream


def normals(length: int, seed: bytes) -> Reals:
    r"""Return independent standard normal numbers, ``[length]``, float64.

    .. math::
        \sqrt{-2 \ln u}\, (\cos 2 \pi v, \sin 2 \pi v)

    with u and v uniform, from AES-256 in counter mode. Source: Box and Muller, "A Note on the Generation of Random
    Normal Deviates", 1958. No number is larger than 8.6, of which the chance is below 1e-17.

    Args:
        length: How many.
        seed: 32 secret random bytes, used for nothing else.

    Example:
        >>> found = normals(100_000, bytes(32))
        >>> bool(abs(found.mean()) < 0.02), bool(abs(found.std() - 1) < 0.02)
        (True, True)
    """
    half = (length + 1) // 2
    uniform = ((key_stream(seed, 2 * half) >> np.uint64(11)) + 1.0) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:length]


def noise(length: int, *, sensitivity: float, noise_multiplier: float, seed: bytes, contributors: int = 1) -> Reals:
    r"""Return the noise that a client adds, ``[length]``, float64: normal, of deviation :math:`z \Delta / \sqrt{n}`.

    Alone (n = 1) the client's own message is private. Under the secure sum, n clients share the noise out, and the sum
    of at least n such messages is private.

    Args:
        length: Numbers in the message.
        sensitivity: How far one sample moves the message, :math:`\Delta`.
        noise_multiplier: Deviation of the noise over the sensitivity, z.
        seed: 32 secret random bytes for this message; the same again if the same message is sent again.
        contributors: Fewest clients n that surely add their noise and keep it to themselves: the sum's minimum, less
            the clients that could be in league with the server.

    Raises:
        ValueError: If ``contributors`` is below 1, or if the sensitivity or the multiplier is negative or not finite.

    Example:
        >>> alone = noise(4, sensitivity=2.0, noise_multiplier=3.0, seed=bytes(32))
        >>> among_nine = noise(4, sensitivity=2.0, noise_multiplier=3.0, seed=bytes(32), contributors=9)
        >>> bool(np.allclose(alone, 3 * among_nine))
        True
    """
    deviation = noise_multiplier * sensitivity
    if contributors < 1 or not min(noise_multiplier, sensitivity) >= 0 or not math.isfinite(deviation):
        raise ValueError(
            f"noise needs at least 1 contributor and finite numbers that are not negative, got {contributors} "
            f"contributors, noise multiplier {noise_multiplier} and sensitivity {sensitivity}"
        )
    return deviation / math.sqrt(contributors) * normals(length, seed)


def noisy(
    values: Reals,
    *,
    sensitivity: float,
    noise_multiplier: float,
    seed: bytes,
    contributors: int = 1,
    bits: int = FRACTION_BITS,
) -> npt.NDArray[np.int64]:
    """Return a message with noise in fixed point, for the secure sum.

    Values and noise are rounded one by one, so that the sensitivity grows by no more than
    :func:`~isoproto.privacy.sensitivity.with_rounding` says. The noise is made for the larger one.

    Args:
        values: The message, ``[L]``.
        sensitivity: How far one sample moves it, before rounding.
        noise_multiplier: See :func:`noise`; 0 adds none.
        seed: See :func:`noise`.
        contributors: See :func:`noise`.
        bits: Binary digits after the point.

    Returns:
        Whole numbers, ``[L]``, int64. :func:`isoproto.secure.fixed_point.decode` reads their sum.

    Raises:
        ValueError: If values, or the noise, are too large for fixed point, or if an argument of :func:`noise` is wrong.

    Example:
        >>> noisy(np.array([1.0, 2.0]), sensitivity=1.0, noise_multiplier=0.0, seed=bytes(32), bits=4).tolist()
        [16, 32]
    """
    moved = with_rounding(sensitivity, len(values), bits)
    added = noise(
        len(values), sensitivity=moved, noise_multiplier=noise_multiplier, seed=seed, contributors=contributors
    )
    # Two numbers for each client: half of the room for each.
    room = 2 * MOST_CLIENTS
    return encode(values, bits, room, what="the message") + encode(added, bits, room, what="the noise")
