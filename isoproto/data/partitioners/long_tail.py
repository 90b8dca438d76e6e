"""A long tail: later classes are made rarer before the samples are dealt out."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels

_ROUNDING = 1e-9  # a power that is a whole number must not be floored to one less


def long_tail(labels: Labels, num_classes: int, imbalance: float, rng: np.random.RandomState) -> Indices:
    r"""Draw samples so that classes get exponentially rarer in the order of their numbers, and return those kept.

    .. math::
        n_c = \lfloor n_{max} \rho^{-c / (C - 1)} \rfloor, \qquad n_{max} = n / C

    Reference: FedHPro Sec. 5, LT. A class with fewer samples keeps all, and no class loses its last sample.

    Args:
        labels: Class of each sample, shape ``[n]``.
        num_classes: :math:`C`.
        imbalance: :math:`\rho`, >= 1; with 1 everything is kept and nothing is drawn.
        rng: Draws which samples of a class are kept.

    Returns:
        Indices of the samples that are kept, ascending.

    Example:
        >>> labels = np.repeat(np.arange(10), 5000)  # CIFAR-10, training part
        >>> np.bincount(labels[long_tail(labels, 10, 100, np.random.RandomState(0))]).tolist()
        [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    if imbalance == 1:
        return np.arange(len(labels))
    rarity = np.arange(num_classes) / max(1, num_classes - 1)
    most = np.maximum(1, len(labels) / num_classes * (1 / imbalance) ** rarity + _ROUNDING).astype(np.int64)  # [C]
    drawn = rng.permutation(len(labels))
    order = drawn[np.argsort(labels[drawn], kind="stable")]  # class by class, each in a random order
    start = np.searchsorted(labels[order], labels[order])
    return np.sort(order[np.arange(len(order)) - start < most[labels[order]]])
