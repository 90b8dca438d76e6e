"""The partition by domain: clients differ in how their pictures look, not in what they show."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_smallest, deal
from isoproto.errors import DataError


def domain_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    """Give each client samples of one domain (FedSAF Sec. V, feature shift; FedHPro Sec. 5, domain skew).

    With ``N`` clients over ``D`` domains each domain has ``floor(N / D)`` or one more client, and its samples are
    dealt to them at random, disjointly, sizes differing by at most one. With ``N < D``, ``D - N`` domains stay
    unused. Which client holds which domain is drawn, so that domains do not go in step with the architectures,
    which are dealt out by client number.

    Raises:
        DataError: If there are no domains, or a client would get fewer than ``min_samples`` samples.

    Example:
        >>> domains = np.array([0, 0, 0, 0, 1, 1, 1, 1])
        >>> parts = domain_partition(np.zeros(8, int), domains, 4, np.random.RandomState(0), PartitionOptions())
        >>> sorted(domains[part].tolist() for part in parts)
        [[0, 0], [0, 0], [1, 1], [1, 1]]
    """
    if domains is None:
        raise DataError("partition 'domain' needs a data set with domains, and this one has none; choose another")
    names = rng.permutation(np.unique(domains))
    home = rng.permutation(names[np.arange(clients) % len(names)])  # [N], the domain of each client
    groups = ((np.flatnonzero(domains == name), np.flatnonzero(home == name)) for name in names)
    parts = deal(groups, clients, rng)
    return check_smallest(parts, options.min_samples, "use fewer clients or a smaller `min-samples`")
