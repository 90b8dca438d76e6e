"""The partition that gives every client the same number of classes."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_smallest, deal
from isoproto.errors import DataError


def shards_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    """Give each client samples of exactly ``k = classes_per_client`` classes, all samples used.

    Each client has ``k`` places. The ``N k`` places are shared among the classes so that the largest shard (samples of
    a class / its holders) is as small as possible. Classes with large shards are dealt first. A class goes to the
    clients with most free places, among these to those with fewest samples, and ties are broken at random. So sizes
    differ by at most the largest shard, plus ``k`` samples where a class cannot be divided evenly.
    With fewer places than classes, ``N k < C``, classes drawn at random stay unused.

    Raises:
        DataError: If there are fewer than ``k`` classes, or too few samples for all places or for ``min_samples``.

    Example:
        >>> labels = np.repeat([0, 1, 2], 8)
        >>> parts = shards_partition(labels, None, 6, np.random.RandomState(0), PartitionOptions(classes_per_client=2))
        >>> {(len(part), len(set(labels[part]))) for part in parts}
        {(4, 2)}
    """
    places = clients * options.classes_per_client
    present, counts = np.unique(labels, return_counts=True)
    kept = rng.permutation(len(present))[:places]
    present, counts = present[kept], counts[kept]
    holders = _holders(counts, places, clients)
    free, size = np.full(clients, options.classes_per_client), np.zeros(clients, np.int64)
    groups = []
    for i in np.argsort(-counts / holders, kind="stable"):
        takers = np.lexsort((rng.permutation(clients), size, -free))[: holders[i]]
        free[takers] -= 1
        size[takers] += counts[i] // holders[i]
        size[takers[: counts[i] % holders[i]]] += 1  # as `deal` does
        groups.append((np.flatnonzero(labels == present[i]), takers))
    parts = deal(groups, clients, rng)
    return check_smallest(parts, options.min_samples)


def _holders(counts: Indices, places: int, clients: int) -> Indices:
    """Return the number of places of each class, 1 to ``min(clients, count)``; they sum to ``places``."""
    most = np.minimum(counts, clients)
    if most.sum() < places:
        raise DataError(
            f"partition 'shards' cannot give {clients} clients {places // clients} classes each: there are "
            f"{len(counts)} classes with {int(counts.sum())} samples; lower `classes-per-client` or use fewer clients"
        )
    holders = np.ones(len(counts), np.int64)
    for _ in range(places - len(counts)):
        holders[np.argmax(np.where(holders < most, counts / holders, 0))] += 1
    return holders
