"""Label skew drawn from a Dirichlet distribution, in the two forms that the papers use."""

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_enough, gather

MAX_DRAWS = 100
"""Largest number of draws; then the best is taken. A draw takes about 1 ms for ten classes, 35 ms for Tiny-ImageNet."""

LEAST_SAMPLES = 40
"""A draw is good if all clients have this many samples: 10 / (1 - 0.75), a test part of one batch of ten (HtFLlib)."""

GROUP = 10
"""Clients that ``dirichlet_equal`` draws together."""


def dirichlet_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    r"""Cut each class by a Dirichlet draw, as FedSAF's experiments do (its Sec. V; HtFLlib's convention).

    For each class in turn, with :math:`n` samples, :math:`N` clients and :math:`n_i` the samples client :math:`i`
    has so far:

    .. math::
        p \sim \mathrm{Dir}(\alpha 1_N), \qquad
        p_i \leftarrow 0 \text{ where } n_i \ge n / N, \qquad
        p \leftarrow p / \textstyle\sum_i p_i

    and the shuffled class is cut at the cumulative shares. The cap keeps sizes closer together than a plain
    Dirichlet draw would. The draw is repeated until every client has :math:`\min(40, n / 2N)` samples, or
    ``min_samples`` if that is more. After ``MAX_DRAWS`` draws the one with the fewest missing samples is taken, and
    clients with fewer than ``min_samples`` are topped up: each takes samples of the largest client's largest class.

    With seed 1, 20 clients and the sizes of CIFAR-10, CIFAR-100 and Tiny-ImageNet this is the published partition.

    Raises:
        DataError: If the samples are fewer than ``clients * min_samples``.

    Example:
        >>> labels = np.repeat(np.arange(10), 6000)  # CIFAR-10, both parts
        >>> parts = dirichlet_partition(labels, None, 20, np.random.RandomState(1), PartitionOptions(alpha=0.1))
        >>> min(map(len, parts)), max(map(len, parts)), sum(len(set(labels[part])) for part in parts)
        (1164, 5994, 102)
    """
    check_enough(len(labels), clients, options.min_samples)
    least = max(options.min_samples, min(LEAST_SAMPLES, len(labels) / clients / 2))
    parts = _draw_until(labels, clients, options.alpha, least, rng)
    return _top_up(parts, labels, options.min_samples)


def dirichlet_equal_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    """Cut Dirichlet draws into equal clients, as FedHPro's published code does.

    The samples are shuffled and shared among groups of at most ``GROUP`` clients. In each group a draw as in
    ``dirichlet`` is repeated until every client has half of the average. The draws are then joined and cut into ``N``
    pieces whose sizes differ by at most one, so a client may hold parts of two neighbouring draws.

    The sizes of groups differ by at most one. The published code makes groups of ten and treats the last one as ten
    too; for multiples of ten this is the same.

    Raises:
        DataError: If the samples are fewer than ``clients * min_samples``.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = dirichlet_equal_partition(labels, None, 20, np.random.RandomState(0), PartitionOptions(alpha=0.2))
        >>> {len(part) for part in parts}
        {50}
    """
    check_enough(len(labels), clients, options.min_samples)
    order = rng.permutation(len(labels))
    groups = [len(group) for group in np.array_split(np.arange(clients), -(-clients // GROUP))]
    cuts = np.cumsum(groups)[:-1] * len(labels) // clients
    drawn = []
    for size, samples in zip(groups, np.split(order, cuts), strict=True):
        parts = _draw_until(labels[samples], size, options.alpha, len(samples) / size / 2, rng)
        drawn += [samples[part] for part in parts]
    return np.array_split(np.concatenate(drawn), clients)


def _draw_until(labels: Labels, clients: int, alpha: float, least: float, rng: np.random.RandomState) -> list[Indices]:
    """Draw at most ``MAX_DRAWS`` times until each client has ``least`` samples, and return the best draw."""
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    best, fewest_missing = (np.empty(0, np.int64), np.empty(0, np.int64)), np.inf
    for _ in range(MAX_DRAWS):
        order, owner, size = _draw(classes, len(labels), clients, alpha, rng)
        missing = np.maximum(least - size, 0).sum()
        if missing < fewest_missing:
            best, fewest_missing = (order, owner), missing
        if missing == 0:
            break
    return gather(*best, clients)


def _draw(
    classes: list[Indices], samples: int, clients: int, alpha: float, rng: np.random.RandomState
) -> tuple[Indices, Indices, Indices]:
    """Make one draw, and return the samples, the client of each, and the number of samples per client.

    The calls to ``rng`` and their order are those of the published partition.
    """
    size = np.zeros(clients, np.int64)
    order, owner = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for members in classes:  # in turn, since the cap depends on the classes before
        shuffled = members.copy()
        rng.shuffle(shuffled)
        share = rng.dirichlet(np.full(clients, alpha))
        below = size < samples / clients
        share = np.where(below, share, 0)
        # All shares underflowed (zero, NaN or infinite). As Dir(alpha) for alpha -> 0, give the class to one client.
        if not 0 < share.sum() < np.inf:
            share = np.eye(clients)[rng.choice(np.flatnonzero(below))]
        cuts = (np.cumsum(share / share.sum())[:-1] * len(members)).astype(np.int64)
        pieces = np.diff(cuts, prepend=0, append=len(members))
        size += pieces
        order.append(shuffled)
        owner.append(np.repeat(np.arange(clients), pieces))
    return np.concatenate(order), np.concatenate(owner), size


def _top_up(parts: list[Indices], labels: Labels, min_samples: int) -> list[Indices]:
    """Move samples to clients with fewer than ``min_samples``; the caller has checked that there are enough.

    They come from the largest class of the largest client, which misses them least. The receiver thus gets few new
    classes.
    """
    parts = list(parts)
    size = np.array([len(part) for part in parts])
    while size.min() < min_samples:
        poor, rich = size.argmin(), size.argmax()
        of_class = labels[parts[rich]] == np.bincount(labels[parts[rich]]).argmax()
        count = min(min_samples - size[poor], size[rich] - min_samples)
        moved = np.flatnonzero(of_class)[-count:]
        parts[poor] = np.concatenate([parts[poor], parts[rich][moved]])
        parts[rich] = np.delete(parts[rich], moved)
        size[[poor, rich]] = len(parts[poor]), len(parts[rich])
    return parts
