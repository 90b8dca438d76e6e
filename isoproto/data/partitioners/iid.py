"""The partition without any skew."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_enough


def iid_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    """Deal all samples at random; sizes differ by at most one.

    Example:
        >>> parts = iid_partition(np.zeros(7, int), None, 3, np.random.RandomState(0), PartitionOptions())
        >>> [len(part) for part in parts]
        [3, 2, 2]
    """
    check_enough(len(labels), clients, options.min_samples)
    return np.array_split(rng.permutation(len(labels)), clients)
