"""The partition by domain: clients differ in how their pictures look, not in what they show."""

import re

import numpy as np

from isoproto.data.partitioners.base import Indices, Labels, PartitionOptions, check_smallest, deal
from isoproto.errors import DataError


def domain_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
    *,
    domain_shares: tuple[tuple[int, float | None], ...] = (),
) -> list[Indices]:
    """Give each client samples of one domain (FedSAF Sec. V, feature shift; FedHPro Sec. 5, domain skew).

    With ``N`` clients and ``D`` domains, each domain has ``floor(N / D)`` clients or one more. Its samples are dealt to
    them at random, and the sizes of their parts differ by at most one. With ``N < D``, ``D - N`` domains stay unused.
    Which client holds which domain is drawn at random. Architectures are dealt out by client number, so without this
    draw each architecture would meet the same domains.

    ``domain_shares`` may say, for each domain in the data set's order, how many clients have it and which fraction of
    its samples each of them draws. No sample is drawn twice, and samples that nobody draws stay unused. FedHPro has
    counts of 3, 7, 6 and 4 with 1 % (digits), and of 3, 1, 2 and 4 with 20 % (Office-Caltech).

    Raises:
        DataError: If there are no domains, the shares do not cover all domains and clients, or a client would get
            fewer than ``min_samples`` samples.

    Example:
        >>> domains = np.array([0, 0, 0, 0, 1, 1, 1, 1])
        >>> parts = domain_partition(np.zeros(8, int), domains, 4, np.random.RandomState(0), PartitionOptions())
        >>> sorted(domains[part].tolist() for part in parts)
        [[0, 0], [0, 0], [1, 1], [1, 1]]
    """
    domains = _required("domain", domains)
    if domain_shares:
        return check_smallest(_dealt_by_shares(domains, clients, rng, domain_shares), options.min_samples)
    names = rng.permutation(np.unique(domains))
    home = rng.permutation(names[np.arange(clients) % len(names)])  # [N], the domain of each client
    groups = ((np.flatnonzero(domains == name), np.flatnonzero(home == name)) for name in names)
    parts = deal(groups, clients, rng)
    return check_smallest(parts, options.min_samples)


def _dealt_by_shares(
    domains: Indices, clients: int, rng: np.random.RandomState, domain_shares: tuple[tuple[int, float | None], ...]
) -> list[Indices]:
    names, counts = np.unique(domains), [count for count, _ in domain_shares]
    if (len(counts), sum(counts)) != (len(names), clients):
        raise DataError(
            f"partition 'domain' must name clients for each of the {len(names)} domains, {clients} clients in all, got "
            f'{counts}; write `partition = "domain:3,7,6,4"` for 20 clients of four domains'
        )
    home = rng.permutation(np.repeat(names, counts))  # [N], the domain of each client
    groups = []
    for name, (count, fraction) in zip(names, domain_shares, strict=True):
        members = rng.permutation(np.flatnonzero(domains == name))
        if fraction is not None:
            members = members[: count * int(fraction * len(members) + 1e-9)]
        groups.append((members, np.flatnonzero(home == name)))
    return deal(groups, clients, rng)


def parse_domain_shares(text: str) -> tuple[tuple[int, float | None], ...]:
    """Read ``"3@0.01,7@0.01,6,4"``: for each domain its number of clients, and the fraction that each of them draws.

    Raises:
        DataError: If the text has another form, or the clients of a domain would draw more than there is.

    Example:
        >>> parse_domain_shares("3@0.01, 7")
        ((3, 0.01), (7, None))
    """
    items = [re.fullmatch(r"\s*(\d+)\s*(?:@\s*(\d*\.?\d+))?\s*", item) for item in text.split(",")]
    shares = tuple((int(item[1]), None if item[2] is None else float(item[2])) for item in items if item)
    if None in items or any(f is not None and not 0 < max(count, 1) * f <= 1 + 1e-9 for count, f in shares):
        raise DataError(
            f"partition 'domain:{text}' must name, for each domain, its clients and, if they shall not share all "
            "of it, the fraction that each draws: at most 1 for all of them together, as in 'domain:3@0.01,7@0.1'"
        )
    return shares


def one_domain_partition(
    labels: Labels,
    domains: Indices | None,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
) -> list[Indices]:
    """Let client ``i`` be domain ``i``, in the order of their names (FedSAF Sec. V, feature shift).

    With fewer clients than domains the last domains stay unused. Nothing is drawn at random. So each architecture meets
    the same domain as in the paper, in whatever order a copy of the data set has its domains.

    Raises:
        DataError: If there are no domains, fewer than ``N`` of them, or one has fewer than ``min_samples`` samples.

    Example:
        >>> domains = np.array([1, 0, 0, 1])
        >>> options = PartitionOptions(domain_names=("photo", "art"))
        >>> parts = one_domain_partition(np.zeros(4, int), domains, 2, np.random.RandomState(0), options)
        >>> [part.tolist() for part in parts]
        [[0, 3], [1, 2]]
    """
    domains = whole_domains("one_domain", domains, clients)
    ordered = sorted(np.unique(domains), key=lambda domain: options.domain_names[domain])
    parts = [np.flatnonzero(domains == domain) for domain in ordered[:clients]]
    return check_smallest(parts, options.min_samples)


def whole_domains(partition: str, domains: Indices | None, clients: int) -> Indices:
    """Return ``domains``, or raise ``DataError`` if there are none, or fewer domains than clients."""
    domains = _required(partition, domains)
    found = len(np.unique(domains))
    if clients > found:
        raise DataError(
            f"partition {partition!r} cannot make {clients} clients of {found} domains, each of them whole; use fewer "
            "clients, or partition 'domain', which shares domains out"
        )
    return domains


def _required(partition: str, domains: Indices | None) -> Indices:
    if domains is None:
        raise DataError(f"partition {partition!r} needs a data set with domains, and this one has none; choose another")
    return domains
