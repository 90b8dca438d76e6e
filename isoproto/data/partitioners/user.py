"""Natural partitions: each domain of the data is a user, and a client is one user or a group of users."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_smallest
from isoproto.data.partitioners.domain import whole_domains


def user_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    """Make each of the ``N`` largest users a client, in ascending order of size (Shakespeare's roles, LEAF).

    The data set's domains are the users, and smaller users stay unused. Architectures are dealt out by client number,
    so this order spreads them evenly over small and large clients. Nothing is drawn at random.

    Raises:
        DataError: If there are no domains, fewer than ``N`` of them, or a user has fewer than ``min_samples``.

    Example:
        >>> users = np.array([0, 0, 1, 2, 2, 2])
        >>> parts = user_partition(np.zeros(6, int), users, 2, np.random.RandomState(0), PartitionOptions())
        >>> [users[part].tolist() for part in parts]
        [[0, 0], [2, 2, 2]]
    """
    users = whole_domains("user", domains, clients)
    names, counts = np.unique(users, return_counts=True)
    largest = np.sort(np.argsort(-counts, kind="stable")[:clients])
    ascending = names[largest[np.argsort(counts[largest], kind="stable")]]
    parts = [np.flatnonzero(users == name) for name in ascending]
    return check_smallest(parts, options.min_samples)


def user_groups_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    """Make each client a group of whole users, with groups of about equal size; every sample is used.

    The users are taken in descending order of size, ties in random order, and each joins the smallest group so far.

    Raises:
        DataError: If there are no domains, fewer than ``N`` of them, or a group has fewer than ``min_samples``.

    Example:
        >>> users = np.array([0, 0, 1, 2, 2, 2])
        >>> parts = user_groups_partition(np.zeros(6, int), users, 2, np.random.RandomState(0), PartitionOptions())
        >>> [sorted(set(users[part])) for part in parts] == [[2], [0, 1]]
        True
    """
    users = whole_domains("user_groups", domains, clients)
    names, of_sample, counts = np.unique(users, return_inverse=True, return_counts=True)
    group, size = np.empty(len(names), np.int64), np.zeros(clients, np.int64)
    for user in np.lexsort((rng.permutation(len(names)), -counts)):
        group[user] = size.argmin()
        size[group[user]] += counts[user]
    parts = [np.flatnonzero(group[of_sample] == client) for client in range(clients)]
    return check_smallest(parts, options.min_samples)
