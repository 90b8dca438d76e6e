"""Clients of two classes beside clients of all, FedHPro's label skew of texts (AG-NID)."""

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
    """Give the last ``full_clients`` clients all classes and every other one two (FedHPro's AG-NID).

    The pairs of classes are gone through in an order that is drawn, and again from the start; a class is shared
    evenly by its holders, and one that nobody holds stays unused. AG-NID_K10 is 10 clients of which 5 have all
    classes (the default, half of them rounded up), AG-NID_K50 is 50 of which 10 have.

    Raises:
        DataError: If more clients shall have all classes than there are, or one would get fewer than
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
    # Holders in an order that is drawn: the first ones get the larger shares, and not always the same ones.
    groups = (
        (np.flatnonzero(labels == name), rng.permutation(np.flatnonzero(column)))
        for name, column in zip(present, holds.T, strict=True)
    )
    parts = deal(groups, clients, rng)
    return check_smallest(parts, options.min_samples)


def parse_full_clients(text: str) -> int:
    """Read the number of clients in ``pairs:10``.

    Raises:
        DataError: If it is no whole number >= 0.

    Example:
        >>> parse_full_clients("10")
        10
    """
    if not text.strip().isdecimal():
        raise DataError(f"partition 'pairs:{text}' must say how many clients have all classes, as in 'pairs:10'")
    return int(text)
