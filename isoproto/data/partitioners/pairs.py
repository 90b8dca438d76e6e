"""Clients that hold two classes, and clients that hold all: FedHPro's label skew of texts (AG-NID)."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_smallest, deal
from isoproto.errors import DataError


def pairs_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
    *,
    full_clients: int | None = None,
) -> list[Indices]:
    """Give the last ``full_clients`` clients all classes, and every other client two classes (FedHPro's AG-NID).

    All pairs of classes are put in a random order and assigned in turn, again from the start if there are more clients.
    The holders of a class share it evenly, and a class that nobody holds stays unused. By default half of the clients,
    rounded up, have all classes: so it is in AG-NID_K10, with 5 of 10 clients. In AG-NID_K50 it is 10 of 50.

    Raises:
        DataError: If ``full_clients`` is more than the number of clients, or a client would get fewer than
            ``min_samples`` samples.

    Example:
        >>> labels = np.repeat([0, 1, 2, 3], 70)
        >>> parts = pairs_partition(labels, None, 10, np.random.RandomState(0), PartitionOptions())
        >>> [len(set(labels[part])) for part in parts]
        [2, 2, 2, 2, 2, 4, 4, 4, 4, 4]
    """
    full = (clients + 1) // 2 if full_clients is None else full_clients
    if full > clients:
        raise DataError(f"partition 'pairs' cannot give all classes to {full} of {clients} clients; name fewer")
    present = np.unique(labels)
    holds = np.ones((clients, len(present)), dtype=np.bool_)
    if full < clients and len(present) > 2:
        first, second = np.triu_indices(len(present), 1)
        pair = rng.permutation(len(first))[np.arange(clients - full) % len(first)]
        few = np.arange(clients - full)
        holds[: clients - full] = False
        holds[few, first[pair]] = holds[few, second[pair]] = True
    # The first holders get the larger shares, so a random order keeps them from always being the same clients.
    groups = (
        (np.flatnonzero(labels == name), rng.permutation(np.flatnonzero(column)))
        for name, column in zip(present, holds.T, strict=True)
    )
    parts = deal(groups, clients, rng)
    return check_smallest(parts, options.min_samples)


def parse_full_clients(text: str) -> int:
    """Read the number of clients in ``pairs:10``.

    Raises:
        DataError: If the text is not a whole number >= 0.

    Example:
        >>> parse_full_clients("10")
        10
    """
    if not text.strip().isdecimal():
        raise DataError(f"partition 'pairs:{text}' must say how many clients have all classes, as in 'pairs:10'")
    return int(text)
