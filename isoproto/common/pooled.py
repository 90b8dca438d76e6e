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


@dataclass(frozen=True)
class Packing:
    """How statistics become a vector, and how much noise it gets.

    Attributes:
        clip: Largest length of a sample in the frame, c.
        noise_multiplier: Deviation of the noise over the sensitivity, z; 0 for no noise.
        contributors: Fewest clients that share the noise of a sum out among them; 1 if each adds all of it.
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
            Vector ``[L]``, int64, with :math:`L = C + CD + D(D + 1)/2`.

        Raises:
            ValueError: If the sums are too large for whole numbers, or are not finite.

        Example:
            >>> phi, labels = torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]]), torch.tensor([0, 0])
            >>> vector = Packing(clip=2.0).packed(phi, labels, num_classes=1)
            >>> [float(x) for x in decode(vector)]
            [4.0, 1.0, 2.0, 0.5, 0.0, 2.0]
        """
        phi = self._clipped(phi.double())
        counts = torch.bincount(labels, minlength=num_classes).double()
        sums = phi.new_zeros(num_classes, phi.shape[2]).index_add_(0, labels, phi.mean(1))
        moment = moments(phi, torch.zeros_like(labels), 1)[0]
        vector = pack(Moments(counts.numpy(), sums.numpy(), moment.numpy()), self.weights)
        return encode(vector, clients=2 * MOST_CLIENTS, what="the statistics of this client")

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

    def totals(self, vector: Whole, num_classes: int, vectors: int) -> Totals:
        """Read the sum of clients' vectors.

        With noise, a class counts as held if its count is above three deviations of the noise. What noise made
        negative in the scatter becomes zero.

        Args:
            vector: The sum, ``[L]``, int64.
            num_classes: Number of classes C.
            vectors: How many vectors with noise are in the sum.

        Example:
            >>> packing = Packing(clip=2.0)
            >>> phi, labels = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([1, 1])
            >>> found = packing.totals(2 * packing.packed(phi, labels, num_classes=2), num_classes=2, vectors=0)
            >>> found.counts.tolist(), found.sums.tolist(), found.scatter.tolist()
            ([0.0, 4.0], [[0.0], [6.0]], [[1.0]])
        """
        width = width_of(len(vector), num_classes)
        found = unpack(decode(vector), num_classes, width, self.weights)
        least = max(0.5, _DEVIATIONS * self.deviation(len(vector), vectors) / self.weights.counts)
        held = found.counts > least
        counts, sums = np.where(held, found.counts, 0.0), np.where(held[:, None], found.sums, 0.0)
        rows = sums / np.sqrt(np.maximum(counts, 1.0))[:, None]
        scatter = positive_part(found.moment - rows.T @ rows)
        return Totals(torch.from_numpy(counts), torch.from_numpy(sums), torch.from_numpy(scatter))

    def _clipped(self, phi: Tensor) -> Tensor:
        """Shorten samples that float32 left a little longer than ``clip``, so that the sensitivity holds."""
        factor = self.clip / phi.norm(dim=2, keepdim=True).clamp(min=self.clip)
        return phi.mul(factor)


def width_of(length: int, num_classes: int) -> int:
    """Return the number of coordinates D of a vector of this length.

    Raises:
        ValueError: If statistics of no width have this length.

    Example:
        >>> width_of(535050, num_classes=10)
        1024
    """
    # L = C + C D + D (D + 1) / 2, solved for D.
    both = 2 * num_classes + 1
    width = (math.isqrt(both * both + 8 * (length - num_classes)) - both) // 2 if length > num_classes else 0
    if width < 1 or packed_length(num_classes, width) != length:
        raise ValueError(f"no statistics of {num_classes} classes have {length} numbers")
    return width
