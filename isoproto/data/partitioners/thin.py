"""Reduce a data set to fewer samples in the same proportions, before it is dealt out."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels


def thin(groups: Labels, most: int, rng: np.random.RandomState) -> Indices:
    """Draw ``most`` samples so that each group keeps its share, up to one sample.

    Args:
        groups: Group of each sample, shape ``[n]``.
        most: Samples to keep, >= 0; with 0, or with ``n`` or more, everything is kept and nothing is drawn.
        rng: Draws which samples of a group are kept.

    Returns:
        Indices of the samples that are kept, ascending.

    Example:
        >>> groups = np.repeat([0, 1, 2], [600, 300, 100])
        >>> np.bincount(groups[thin(groups, 20, np.random.RandomState(0))]).tolist()
        [12, 6, 2]
    """
    if not 0 < most < len(groups):
        return np.arange(len(groups))
    drawn = rng.permutation(len(groups))
    order = drawn[np.argsort(groups[drawn], kind="stable")]  # group by group, each in a random order
    return np.sort(order[np.arange(most) * len(groups) // most])
