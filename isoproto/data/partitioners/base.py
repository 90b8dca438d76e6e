"""The options of all partitioners, and the dealing and checking that they share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from isoproto.errors import ConfigError, DataError

Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """Options that every partitioner gets; each uses those that concern it.

    All but ``domain_names`` are settings of a run with the same names. An option of one partitioner alone is a keyword
    of its function, and the user writes it behind the colon: see ``ARGUMENTS``.

    Attributes:
        alpha: Concentration of ``dirichlet`` and ``dirichlet_equal``, dimensionless, > 0; small is uneven.
        classes_per_client: Classes that a client holds under ``shards``, >= 1.
        min_samples: Least number of samples of every client, >= 0; 0 allows empty clients.
        imbalance: Ratio of the sizes of the first and the last class, which is made before samples are dealt, >= 1.
        max_samples: Number of samples to which the data set is reduced before all else, >= 0; 0 keeps all.
        domain_names: Names of the data set's domains, by which ``one_domain`` orders them. ``split_clients`` fills it
            in from the data set.

    Raises:
        ConfigError: If a value is out of range.
    """

    alpha: float = 0.1
    classes_per_client: int = 2
    min_samples: int = 2
    imbalance: float = 1.0
    max_samples: int = 0
    domain_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise ConfigError(f"`alpha` must be finite and > 0, got {self.alpha}")
        if self.classes_per_client < 1:
            raise ConfigError(f"`classes-per-client` must be >= 1, got {self.classes_per_client}")
        if self.min_samples < 0:
            raise ConfigError(f"`min-samples` must be >= 0, got {self.min_samples}")
        if not 1 <= self.imbalance < float("inf"):
            raise ConfigError(f"`imbalance` must be finite and >= 1, got {self.imbalance}")
        if self.max_samples < 0:
            raise ConfigError(f"`max-samples` must be >= 0, got {self.max_samples}")

    @classmethod
    def of(cls, settings: object) -> "PartitionOptions":
        """Return the options that the settings of a run say.

        Args:
            settings: An object with an attribute for each field but ``domain_names``, such as a ``RunConfig``.

        Raises:
            ConfigError: If a value is out of range.
        """
        return cls(**{f.name: getattr(settings, f.name) for f in fields(cls) if f.name != "domain_names"})


Partitioner = Callable[[Labels, Indices | None, int, np.random.RandomState, PartitionOptions], list[Indices]]
"""``partition(labels, domains, clients, rng, options)`` returns each client's indices into ``labels`` ``[n]``.

Every node of a federation computes the whole partition and takes its share. The generator is therefore NumPy's
``RandomState``, whose numbers never change between NumPy versions; those of ``Generator`` may.
"""


def check_enough(samples: int, clients: int, min_samples: int) -> None:
    """Raise ``DataError`` if no partition at all could give each client ``min_samples`` samples."""
    if samples < clients * min_samples:
        raise DataError(
            f"{samples} samples cannot give {clients} clients at least {min_samples} samples each "
            f"({clients * min_samples} are needed); use fewer clients, a smaller `min-samples`, or more data"
        )


def check_smallest(
    parts: list[Indices], min_samples: int, remedy: str = "use fewer clients or a smaller `min-samples`"
) -> list[Indices]:
    """Return ``parts``, or raise ``DataError`` if a part has fewer than ``min_samples`` samples."""
    sizes = [len(part) for part in parts]
    if min(sizes) < min_samples:
        raise DataError(
            f"client {int(np.argmin(sizes))} of {len(parts)} would get {min(sizes)} sample(s), fewer than "
            f"`min-samples` = {min_samples}; {remedy}"
        )
    return parts


def gather(order: Indices, owner: Indices, clients: int) -> list[Indices]:
    """Give sample ``order[i]`` to client ``owner[i]``, and return each client's samples in the order of ``order``.

    Example:
        >>> [part.tolist() for part in gather(np.array([5, 3, 4, 7]), np.array([1, 0, 1, 0]), 3)]
        [[3, 7], [5, 4], []]
    """
    sizes = np.bincount(owner, minlength=clients)
    return np.split(order[np.argsort(owner, kind="stable")], np.cumsum(sizes)[:-1])


def deal(groups: Iterable[tuple[Indices, Indices]], clients: int, rng: np.random.RandomState) -> list[Indices]:
    """Deal each group of samples at random and evenly among its holders; a group without holders stays unused.

    Args:
        groups: Pairs of samples and the distinct clients that share them. Shares differ by at most one sample, and the
            first holders get the larger shares.
        clients: Number of clients ``N``.
        rng: Decides which holder gets which sample.

    Example:
        >>> groups = [(np.array([0, 1, 2]), np.array([1, 0])), (np.array([3]), np.array([1]))]
        >>> [len(part) for part in deal(groups, 2, np.random.RandomState(0))]
        [1, 3]
    """
    order, owner = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for samples, holders in groups:
        if len(holders):
            order.append(rng.permutation(samples))
            owner.append(np.resize(holders, len(samples)))
    return gather(np.concatenate(order), np.concatenate(owner), clients)
