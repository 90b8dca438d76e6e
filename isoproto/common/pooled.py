r"""Statistics that only their sum is known of: what a client puts in, and how the server reads the sum.

A client writes counts, class sums and the whole second moment of its samples as one vector of whole numbers. Such
vectors add up exactly, and with Gaussian noise they protect single samples. The server reads

.. math::
    W = M - \sum_c \frac{s_c s_c^\top}{n_c}

from the sum. docs/secure-sum.md has the sensitivities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isoproto.common.statistics import Totals, moments
from isoproto.privacy.noise import noisy
from isoproto.privacy.sensitivity import with_rounding
from isoproto.privacy.statistics import Moments, Weights, pack, packed_length, positive_part, unpack
from isoproto.secure.fixed_point import FRACTION_BITS, MOST_CLIENTS, decode, encode

Whole = npt.NDArray[np.int64]

# A noisy count below so many deviations of its noise does not show that anybody holds the class.
_DEVIATIONS = 3.0
# Numbers of a message stay below this, so that a sum over `MOST_CLIENTS` cannot overflow.
MOST = 2**63 // MOST_CLIENTS


class Pooled(NamedTuple):
    """What the server reads from the sum.

    Attributes:
        totals: Statistics of all clients in it.
        published: Classes whose rows clients are sent, ``[C]``, bool.
    """

    totals: Totals
    published: Tensor


@dataclass(frozen=True)
class Packing:
    """How statistics become a vector, and how much noise it gets.

    Attributes:
        clip: Largest length of a sample in the frame, c.
        noise_multiplier: Deviation of the noise over the sensitivity, z; 0 for no noise.
        contributors: Fewest clients of a sum. They share its noise out among them, and as many must hold a class whose
            row is published; 1 if each client adds all of the noise.
    """

    clip: float
    noise_multiplier: float = 0.0
    contributors: int = 1

    @property
    def weights(self) -> Weights:
        """Factors of counts, sums and moment: one sample moves each of them as far."""
        return Weights.balanced(self.clip)

    def packed(self, phi: Tensor, labels: Tensor, num_classes: int) -> Whole:
        """Write samples' statistics as whole numbers, without noise.

        Args:
            phi: Coordinates of n samples in V versions each, ``[n, V, D]``. Versions share their sample's weight.
            labels: Their classes, ``[n]``, int64.
            num_classes: Number of classes C.

        Returns:
            Vector ``[L]``, int64, with :math:`L = 2C + CD + D(D + 1)/2`: for each class 1 if the client holds it, and
            then counts, sums and moment. With noise the first C numbers are 0.

        Raises:
            ValueError: If the sums are too large for whole numbers, or are not finite.

        Example:
            >>> phi, labels = torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]]), torch.tensor([0, 0])
            >>> vector = Packing(clip=2.0).packed(phi, labels, num_classes=1)
            >>> [float(x) for x in decode(vector)]
            [1.0, 4.0, 1.0, 2.0, 0.5, 0.0, 2.0]
        """
        phi = self._clipped(phi.double())
        counts = torch.bincount(labels, minlength=num_classes).double()
        sums = phi.new_zeros(num_classes, phi.shape[2]).index_add_(0, labels, phi.mean(1))
        moment = moments(phi, torch.zeros_like(labels), 1)[0]
        vector = pack(Moments(counts.numpy(), sums.numpy(), moment.numpy()), self.weights)
        holds = (counts > 0).double().numpy() * (self.noise_multiplier == 0)  # one sample could change it by 1
        both = np.concatenate([holds, vector])
        return encode(both, clients=2 * MOST_CLIENTS, what="the statistics of this client")

    def noise(self, length: int, seed: bytes) -> Whole:
        """Return the noise that a client adds, ``[length]``, int64.

        Args:
            length: Numbers in the vector, L.
            seed: 32 secret random bytes; the same again if the same message is sent again.
        """
        return noisy(
            np.zeros(length),
            sensitivity=self.weights.sensitivity(self.clip),
            noise_multiplier=self.noise_multiplier,
            seed=seed,
            contributors=self.contributors,
        )

    def deviation(self, length: int, vectors: int) -> float:
        """Return the deviation of each number's noise in the sum of so many vectors."""
        moved = with_rounding(self.weights.sensitivity(self.clip), length, FRACTION_BITS)
        return self.noise_multiplier * moved * math.sqrt(vectors / self.contributors)

    def pooled(self, vector: Whole, num_classes: int, vectors: int) -> Pooled:
        """Read the sum of clients' vectors.

        Without noise, classes are published that at least ``contributors`` clients hold. With noise they are those
        whose count is above three deviations of the noise, and the others count as held by nobody. What noise made
        negative in the scatter becomes zero.

        Args:
            vector: The sum, ``[L]``, int64.
            num_classes: Number of classes C.
            vectors: How many vectors with noise are in the sum.

        Example:
            >>> packing = Packing(clip=2.0)
            >>> phi, labels = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([1, 1])
            >>> found = packing.pooled(2 * packing.packed(phi, labels, num_classes=2), num_classes=2, vectors=0)
            >>> found.totals.counts.tolist(), found.totals.sums.tolist(), found.totals.scatter.tolist()
            ([0.0, 4.0], [[0.0], [6.0]], [[1.0]])
            >>> found.published.tolist()
            [False, True]
        """
        width = width_of(len(vector), num_classes)
        holders, packed = np.split(decode(vector), [num_classes])
        found = unpack(packed, num_classes, width, self.weights)
        least = max(0.5, _DEVIATIONS * self.deviation(len(vector), vectors) / self.weights.counts)
        held = found.counts > least
        counts, sums = np.where(held, found.counts, 0.0), np.where(held[:, None], found.sums, 0.0)
        rows = sums / np.sqrt(np.maximum(counts, 1.0))[:, None]
        scatter = positive_part(found.moment - rows.T @ rows)
        totals = Totals(*(torch.from_numpy(numbers) for numbers in (counts, sums, scatter)))
        return Pooled(totals, torch.from_numpy(held if self.noise_multiplier else holders >= self.contributors))

    def _clipped(self, phi: Tensor) -> Tensor:
        """Shorten samples that float32 left a little longer than ``clip``, so that the sensitivity holds."""
        factor = self.clip / phi.norm(dim=2, keepdim=True).clamp(min=self.clip)
        return phi.mul(factor)


def vector_length(num_classes: int, width: int) -> int:
    """Return the length of a vector, L.

    Example:
        >>> vector_length(num_classes=10, width=1536)
        1195796
    """
    return num_classes + packed_length(num_classes, width)


def width_of(length: int, num_classes: int) -> int:
    """Return the number of coordinates D of a vector of this length.

    Raises:
        ValueError: If statistics of no width have this length.

    Example:
        >>> width_of(1195796, num_classes=10)
        1536
    """
    # L = 2 C + C D + D (D + 1) / 2, solved for D.
    both, rest = 2 * num_classes + 1, length - 2 * num_classes
    width = (math.isqrt(both * both + 8 * rest) - both) // 2 if rest > 0 else 0
    if width < 1 or vector_length(num_classes, width) != length:
        raise ValueError(f"no statistics of {num_classes} classes have {length} numbers")
    return width
