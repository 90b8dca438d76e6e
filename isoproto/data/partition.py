"""Deal the samples of a data set out to clients, and split each client's share into training and test part."""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isoproto.data.base import ClientData, Dataset
from isoproto.data.partitioners import (
    ARGUMENTS,
    PARTITIONERS,
    Indices,
    Labels,
    Partitioner,
    PartitionOptions,
    long_tail,
    thin,
)
from isoproto.data.partitioners.base import gather
from isoproto.errors import ConfigError, DataError
from isoproto.registry import lookup

__all__ = [
    "PARTITIONERS",
    "SPLITS",
    "ClientSplit",
    "PartitionOptions",
    "Partitioner",
    "class_counts",
    "client_data",
    "hold_out",
    "partition_table",
    "split_clients",
]

logger = logging.getLogger("isoproto")

_MAX_SEED = 2**32 - 1
_DEFAULT = PartitionOptions()
Deal = Callable[[Indices], list[Indices]]
"""Deals the given samples out and returns one part for each client."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientSplit:
    """The samples that one client trains on and those it is tested on: disjoint int64 indices into a data set."""

    train: Indices
    test: Indices


def split_clients(
    dataset: Dataset,
    *,
    partition: str,
    clients: int,
    seed: int,
    options: PartitionOptions = _DEFAULT,
    split: str = "merged",
    test_fraction: float = 0.25,
) -> list[ClientSplit]:
    """Deal a data set out to clients and split each share into a training and a test part.

    The same arguments give the same result on every machine, so each node can compute it and take its share.
    Classes that no client holds are logged as a warning.

    Args:
        dataset: The data set to deal out.
        partition: Key of ``PARTITIONERS``. Some take an argument: ``classes:0,1,3;2,7;4`` lists the classes of each
            client.
        clients: Number of clients ``N``, >= 1.
        seed: Seed of the partition and of each client's split into training and test part, in ``[0, 2**32)``.
        options: Options of the partitioner. If ``split`` is ``merged``, ``min_samples`` and ``imbalance`` concern
            training and test part together, else the training part alone.
        split: How training and test parts are made.

            ``merged``: the official parts are pooled and dealt out, then each client draws its test part (FedSAF's
            protocol).

            ``official``: the official training part is dealt out. The official test samples of a class (and domain)
            go to clients in proportion to their training samples of it, by largest remainders, each sample to one
            client at most. If a class has training samples, but none in a domain, its test samples of this domain go
            to clients in proportion to all their training samples of the domain.

            ``global``: the training parts are those of ``official``, and every client is tested on the whole official
            test part.

            ``stratified``: as ``official``, with a test part that is drawn from all samples, of each class (and
            domain) its share up to one sample.
        test_fraction: Size of the test part, in ``[0, 1)``. If ``split`` is ``merged``, it is a share of the client's
            samples. Unless it is 0, a client with two samples or more then has at least one in each part, and a single
            sample is for training. If ``split`` is ``stratified``, it is a share of all samples, rounded, at least one.

    Raises:
        ConfigError: If a name is unknown or a number out of range.
        DataError: If the data cannot be dealt out as asked.

    Example:
        >>> from isoproto.data import load_dataset
        >>> shares = split_clients(load_dataset("digits4"), partition="iid", clients=20, seed=1)
        >>> {(len(share.train), len(share.test)) for share in shares}
        {(240, 80)}
    """
    if clients < 1:
        raise ConfigError(f"the number of clients must be >= 1, got {clients}")
    if not 0 <= seed <= _MAX_SEED:
        raise ConfigError(f"`partition-seed` must be in [0, {_MAX_SEED}], got {seed}")
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"`test-fraction` must be in [0, 1), got {test_fraction}")
    name, _, argument = partition.partition(":")
    partitioner = lookup(PARTITIONERS, "partition", name)
    if argument:
        if name not in ARGUMENTS:
            raise ConfigError(f"partition {name!r} takes no argument, got {argument!r}; {', '.join(ARGUMENTS)} do")
        keyword, parse = ARGUMENTS[name]
        partitioner = functools.partial(partitioner, **{keyword: parse(argument)})
    options = replace(options, domain_names=dataset.domains)
    rng = np.random.RandomState(seed)
    kept = thin(_kind(dataset), options.max_samples, rng)
    less = _only(dataset, kept)
    deal = functools.partial(_dealt, less, partitioner, clients, rng, options)
    shares = lookup(SPLITS, "split", split)(less, deal, rng, test_fraction)
    _report_unheld(less, shares)
    return [ClientSplit(train=kept[share.train], test=kept[share.test]) for share in shares]


def _kind(dataset: Dataset) -> Indices:
    """Return a number for each sample that stands for its class, domain and official part together."""
    kinds: Indices = 2 * _group(dataset) + _numpy(dataset.test)
    return kinds


def _group(dataset: Dataset) -> Indices:
    """Return each sample's class plus its domain times the number of classes."""
    labels, domains = _numpy(dataset.y), _domains(dataset)
    return labels if domains is None else labels + len(dataset.classes) * domains


def _only(dataset: Dataset, kept: Indices) -> Dataset:
    if len(kept) == len(dataset.y):
        return dataset
    index = torch.from_numpy(kept)
    domain = None if dataset.domain is None else dataset.domain[index]
    return replace(dataset, x=dataset.x[index], y=dataset.y[index], test=dataset.test[index], domain=domain)


def _merged(dataset: Dataset, deal: Deal, rng: np.random.RandomState, test_fraction: float) -> list[ClientSplit]:
    """Deal out all samples, then let each client draw its test part (FedSAF's protocol).

    The calls to ``rng`` are those of HtFLlib's split: one permutation per client.
    """
    parts = deal(np.arange(len(dataset.y)))
    shares = []
    for part in parts:
        shuffled = part[rng.permutation(len(part))]
        most = len(part) - 1 if test_fraction and len(part) > 1 else len(part)
        train = min(max(int((1 - test_fraction) * len(part)), 1), most)
        shares.append(ClientSplit(train=shuffled[len(part) - train :], test=shuffled[: len(part) - train]))
    return shares


def _official(dataset: Dataset, deal: Deal, rng: np.random.RandomState, test_fraction: float) -> list[ClientSplit]:
    """Take training parts from the official training part, and test parts from the official test part."""
    train, test = _official_parts(dataset, "official")
    parts = deal(train)
    tests = _deal_in_proportion(_group(dataset), len(dataset.classes), parts, rng.permutation(test), rng)
    return [ClientSplit(train=a, test=b) for a, b in zip(parts, tests, strict=True)]


def _global(dataset: Dataset, deal: Deal, rng: np.random.RandomState, test_fraction: float) -> list[ClientSplit]:
    """Deal out the official training part, and test every client on the whole official test part.

    FedHPro's Table A9 can be read in this way.
    """
    train, test = _official_parts(dataset, "global")
    return [ClientSplit(train=part, test=test) for part in deal(train)]


def _stratified(dataset: Dataset, deal: Deal, rng: np.random.RandomState, test_fraction: float) -> list[ClientSplit]:
    """Draw a test part by class and domain, then do as ``_official``.

    FedHPro's HAM10000 has no official test part.
    """
    test = torch.zeros(len(dataset.y), dtype=torch.bool)
    test[torch.from_numpy(thin(_group(dataset), max(1, round(test_fraction * len(test))), rng))] = True
    return _official(replace(dataset, test=test), deal, rng, test_fraction)


def _official_parts(dataset: Dataset, split: str) -> tuple[Indices, Indices]:
    is_test = _numpy(dataset.test)
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if not len(train) or not len(test):
        raise DataError(
            f'{dataset.source}: `split = "{split}"` needs official training and test samples, got {len(train)} and '
            f'{len(test)}; use `split = "merged"`'
        )
    return train, test


def _dealt(
    dataset: Dataset,
    partitioner: Partitioner,
    clients: int,
    rng: np.random.RandomState,
    options: PartitionOptions,
    samples: Indices,
) -> list[Indices]:
    """Make the classes of some samples as rare as ``options.imbalance`` says, then deal the samples out."""
    labels, domains = _numpy(dataset.y), _domains(dataset)
    samples = samples[long_tail(labels[samples], len(dataset.classes), options.imbalance, rng)]
    parts = partitioner(labels[samples], None if domains is None else domains[samples], clients, rng, options)
    return [samples[part] for part in parts]


def _deal_in_proportion(
    group: Indices, classes: int, parts: list[Indices], test: Indices, rng: np.random.RandomState
) -> list[Indices]:
    """Deal test samples to clients in proportion to their training samples of each group, by largest remainders.

    A group is a class in a domain. If nobody holds a group, but somebody holds its class in another domain, the
    proportions are those of all training samples of the group's domain. So a domain is tested on all its classes even
    if its clients draw only a fraction of it.

    Args:
        group: The group of each sample of the data set: its class plus ``classes`` times its domain, in ``[0, G)``.
        classes: Number of classes.
        parts: Training samples of each of the ``N`` clients.
        test: Test samples in random order.
        rng: Breaks ties, so that low client numbers have no advantage.
    """
    groups = int(group.max()) + 1
    held = np.stack([np.bincount(group[part], minlength=groups) for part in parts])  # [N, G]
    available = np.bincount(group[test], minlength=groups)  # [G]
    label, total = np.arange(groups) % classes, held.sum(0)
    alone = np.flatnonzero((total == 0) & (np.bincount(label, total)[label] > 0))
    held[:, alone] = np.add.reduceat(held, np.arange(0, groups, classes), axis=1)[:, alone // classes]
    total = held.sum(0)
    share, remainder = np.divmod(held * available, np.maximum(total, 1))
    left = np.where(total > 0, available, 0) - share.sum(0)
    rank = np.lexsort((rng.random_sample(held.shape), -remainder), axis=0).argsort(axis=0)
    share += rank < left  # [N, G]

    order = test[np.argsort(group[test], kind="stable")]
    order = order[total[group[order]] > 0]  # a class that nobody learns is not tested
    owner = np.repeat(np.tile(np.arange(len(parts)), groups), share.T.ravel())
    return gather(order, owner, len(parts))


Split = Callable[[Dataset, Deal, np.random.RandomState, float], list[ClientSplit]]

SPLITS: dict[str, Split] = {
    "merged": _merged,
    "official": _official,
    "global": _global,
    "stratified": _stratified,
}


def client_data(dataset: Dataset, split: ClientSplit) -> ClientData:
    """Copy the samples of one client out of the data set into new tensors.

    Example:
        >>> from isoproto.data import load_dataset
        >>> digits = load_dataset("digits4")
        >>> client_data(digits, ClientSplit(train=np.arange(3), test=np.arange(5, 7))).test_x.shape
        torch.Size([2, 1, 32, 32])
    """
    train, test = torch.from_numpy(split.train), torch.from_numpy(split.test)
    return ClientData(
        train_x=dataset.x[train],
        train_y=dataset.y[train],
        test_x=dataset.x[test],
        test_y=dataset.y[test],
        classes=dataset.classes,
    )


def hold_out(data: ClientData, part: float, generator: torch.Generator) -> ClientData:
    """Hold out a part of a client's training samples, of every class alike as far as whole samples allow.

    Args:
        data: The client's samples.
        part: Which part of the training samples, from 0 to below 1. Of fewer than ``1 / part`` none is held out.
        generator: Draws the samples; on the CPU.

    Example:
        >>> labels = torch.tensor([0] * 6 + [1] * 4)
        >>> data = ClientData(torch.arange(10), labels, torch.zeros(0), torch.zeros(0), ("cat", "dog"))
        >>> parts = hold_out(data, 0.2, torch.Generator().manual_seed(0))
        >>> parts.train_y.tolist(), parts.held_y.tolist()
        ([0, 0, 0, 0, 0, 1, 1, 1], [0, 1])
    """
    samples = len(data.train_y)
    shuffled = torch.randperm(samples, generator=generator)
    by_class = shuffled[data.train_y[shuffled].sort(stable=True).indices]
    held = torch.zeros(samples, dtype=torch.bool)
    place = torch.arange(samples, dtype=torch.float64)
    held[by_class] = ((place + 1) * part).floor() > (place * part).floor()
    return replace(
        data,
        train_x=data.train_x[~held],
        train_y=data.train_y[~held],
        held_x=data.train_x[held],
        held_y=data.train_y[held],
    )


def class_counts(labels: Tensor | Labels, num_classes: int) -> Indices:
    """Return the number of samples of each class, shape ``[C]``.

    Example:
        >>> class_counts(torch.tensor([0, 2, 2]), 4)
        array([1, 0, 2, 0])
    """
    return np.bincount(np.asarray(labels), minlength=num_classes)


_LONGEST_NAME = 12  # characters of a class's name in a table


def partition_table(
    counts: Indices,
    width: int = 100,
    max_rows: int = 40,
    *,
    clients: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> str:
    """Return a table of samples per client and class, for the log.

    Each client has a row. Each class has a column if that fits; otherwise the client's largest classes are listed as
    ``class:samples``.

    Args:
        counts: Samples of each client and class, shape ``[N, C]``.
        width: Longest line in characters, >= 40.
        max_rows: Largest number of clients listed, >= 1; the first line sums up all clients.
        clients: Names of the clients; by default their numbers.
        classes: Names of the classes, which are cut after twelve characters; by default their numbers.

    Example:
        >>> print(partition_table(np.array([[5, 0], [12, 3]])))
        2 clients, 20 samples; a client has 5 to 15 samples (median 10) of 1 to 2 classes (median 1.5)
        client  samples  classes |  0  1
             0        5        1 |  5  .
             1       15        2 | 12  3
        >>> print(partition_table(np.array([[5, 3]]), clients=["ward"], classes=["cat", "dog"]).splitlines()[-2:])
        ['client  samples  classes | cat dog', '  ward        8        2 |   5   3']
    """
    clients = clients or [str(i) for i in range(len(counts))]
    classes = [name[:_LONGEST_NAME] for name in classes] or [str(c) for c in range(counts.shape[1])]
    samples, held = counts.sum(1), (counts > 0).sum(1)
    summary = (
        f"{len(counts)} clients, {samples.sum()} samples; a client has {samples.min()} to {samples.max()} samples "
        f"(median {np.median(samples):g}) of {held.min()} to {held.max()} classes (median {np.median(held):g})"
    )
    first = max(len("client"), *(len(name) for name in clients[:max_rows]))
    lead = f"{'client':>{first}}  samples  classes |"
    cell = max(len(str(counts.max())), *map(len, classes)) + 1
    if len(lead) + cell * counts.shape[1] <= width:
        lead += "".join(f"{name:>{cell}}" for name in classes)
        cells = ["".join(f"{n or '.':>{cell}}" for n in row) for row in counts.tolist()]
    else:
        cells = [_largest_classes(row, classes, width - len(lead)) for row in counts]
        lead += " largest classes"
    rows = [f"{clients[i]:>{first}}  {samples[i]:>7}  {held[i]:>7} |{text}" for i, text in enumerate(cells[:max_rows])]
    more = [f"   ...  and {len(counts) - max_rows} clients more"] if len(counts) > max_rows else []
    return "\n".join([summary, lead, *rows, *more])


def _largest_classes(counts: Indices, classes: Sequence[str], width: int) -> str:
    """Return as many ``class:samples`` as fit into ``width`` characters, largest first."""
    text = ""
    for label in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]:
        longer = f"{text} {classes[label]}:{counts[label]}"
        if len(longer) > width - len(" ..."):
            return f"{text} ..."
        text = longer
    return text


def _report_unheld(dataset: Dataset, shares: list[ClientSplit]) -> None:
    used = np.concatenate([part for share in shares for part in (share.train, share.test)])
    labels = _numpy(dataset.y)
    everything = class_counts(labels, len(dataset.classes))
    lost = np.flatnonzero((everything > 0) & (class_counts(labels[used], len(dataset.classes)) == 0))
    if len(lost):
        names = ", ".join(repr(dataset.classes[c]) for c in lost[:10]) + (", ..." if len(lost) > 10 else "")
        logger.warning(
            "%d classes are held by no client and their %d samples are not used: %s",
            len(lost),
            everything[lost].sum(),
            names,
        )


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.numpy()


def _domains(dataset: Dataset) -> Indices | None:
    return None if dataset.domain is None else dataset.domain.numpy()
