"""Clients that hold one class each, and one client that holds all: the second label skew of FedHPro."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_smallest, deal
from isoproto.errors import DataError


def nid2_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
    *,
    one_class_share: float = 0.5,
) -> list[Indices]:
    """Give all clients but the last a share of one class each, and the last one the rest (FedHPro Sec. 5, NID2).

    The class of each client is drawn at random; no class is drawn twice before each has a client. The one-class clients
    of a class share the fraction ``one_class_share`` of it evenly, and the last client gets the rest of it. With 7
    clients this is the paper's setting; the paper does not say how large the shares are.

    Raises:
        DataError: If the fraction is not in (0, 1), or a client would get fewer than ``min_samples`` samples.

    Example:
        >>> labels = np.repeat([0, 1, 2], 8)
        >>> parts = nid2_partition(labels, None, 3, np.random.RandomState(0), PartitionOptions())
        >>> [np.bincount(labels[part], minlength=3).tolist() for part in parts]
        [[0, 0, 4], [0, 4, 0], [8, 4, 4]]
    """
    return _one_class_clients(labels, clients, rng, options, one_class_share, keep_all=True)


def nid2_equal_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
    *,
    one_class_share: float = 0.5,
) -> list[Indices]:
    """Do as ``nid2``, but give the last client an equal share of every class, so that sizes are closer.

    The last client gets the fraction ``1 - one_class_share`` of every class. For a class without a one-class client the
    rest stays unused. With a fraction of 0.9, 7 clients and CIFAR-10's training part, six clients have 4,500 samples
    and one has 5,000.

    Raises:
        DataError: If the fraction is not in (0, 1), or a client would get fewer than ``min_samples`` samples.

    Example:
        >>> labels = np.repeat([0, 1, 2], 8)
        >>> parts = nid2_equal_partition(labels, None, 3, np.random.RandomState(0), PartitionOptions())
        >>> [np.bincount(labels[part], minlength=3).tolist() for part in parts]
        [[0, 0, 4], [0, 4, 0], [4, 4, 4]]
    """
    return _one_class_clients(labels, clients, rng, options, one_class_share, keep_all=False)


def _one_class_clients(
    labels: Labels, clients: int, rng: np.random.RandomState, options: PartitionOptions, share: float, *, keep_all: bool
) -> list[Indices]:
    if not 0 < share < 1:
        raise DataError(f"partition 'nid2' gives one-class clients a fraction in (0, 1) of their class, got {share:g}")
    present = rng.permutation(np.unique(labels))
    home = present[np.arange(clients - 1) % len(present)]  # [N - 1], the class of each one-class client
    everything = np.array([clients - 1])
    groups = []
    for name in present:
        members, holders = rng.permutation(np.flatnonzero(labels == name)), np.flatnonzero(home == name)
        cut = int(share * len(members) + 0.5)
        first, rest = members[:cut], members[cut:]
        groups.append((rest if len(holders) or not keep_all else members, everything))
        groups.append((first, holders))
    parts = deal(groups, clients, rng)
    return check_smallest(parts, options.min_samples)


def parse_share(text: str) -> float:
    """Read the fraction in ``nid2:0.5``.

    Raises:
        DataError: If the text is not a number.

    Example:
        >>> parse_share("0.9")
        0.9
    """
    try:
        return float(text)
    except ValueError as err:
        raise DataError(f"partition 'nid2:{text}' must name a fraction, as in 'nid2:0.5'") from err
