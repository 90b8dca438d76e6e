"""The partition that the data come with: a client is a user, a role, a site."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_smallest
from isoproto.errors import DataError


def natural_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    """Give each client all samples of one domain; nothing is drawn.

    Clients are in ascending order of their samples, so that architectures, which are dealt out by client number, are
    spread evenly over sizes (FedSAF, Sec. V, Shakespeare). With fewer clients than domains, the largest domains are
    taken.

    Raises:
        DataError: If there are no domains or too few of them, or a client would get fewer than ``min_samples`` samples.

    Example:
        >>> domains = np.array([0, 1, 1, 1, 2, 2])
        >>> parts = natural_partition(np.zeros(6, int), domains, 2, np.random.RandomState(0), PartitionOptions())
        >>> [part.tolist() for part in parts]
        [[4, 5], [1, 2, 3]]
    """
    if domains is None:
        raise DataError("partition 'natural' needs a data set with domains or users, and this one has none")
    names, sizes = np.unique(domains, return_counts=True)
    if len(names) < clients:
        raise DataError(
            f"partition 'natural' gives each client one domain, and {clients} clients are more than the {len(names)} "
            "domains; use fewer clients, or partition 'domain', which shares a domain out"
        )
    chosen = names[np.argsort(sizes, kind="stable")[-clients:]]
    parts = [np.flatnonzero(domains == name) for name in chosen]
    return check_smallest(parts, options.min_samples, "use fewer clients or a smaller `min-samples`")
