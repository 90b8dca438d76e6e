"""Load a client's samples: its share of a data set that is split over all clients, or all of the data of a device."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from isoproto.config import RunConfig
from isoproto.data import (
    ClientData,
    ClientSplit,
    Dataset,
    PartitionOptions,
    TextDataset,
    class_names,
    client_data,
    load_dataset,
    split_clients,
    with_classes,
)
from isoproto.errors import ConfigError
from isoproto.settings.sections import Data
from models import HeadShape, ModelSpec, TextSpec, head_for


class Share(NamedTuple):
    """A client's samples, their domain, and what a model for them must fit.

    Attributes:
        data: Training and test samples.
        domain: The domain that all of them come from; empty if there are several domains or none.
        spec: What a model must fit: the shape of a sample, the classes, the feature width, the kind of head.
        words: The characters that each token id stands for; empty for pictures.
    """

    data: ClientData
    domain: str
    spec: ModelSpec | TextSpec
    words: tuple[str, ...] = ()


def share_of(config: RunConfig, outside: str, partition: int | None, partitions: int) -> Share:
    """Load the data set and take the client's samples of it.

    Args:
        config: The settings that hold for this client.
        outside: What to do with samples of classes that the federation does not have: ``refuse`` or ``drop``.
        partition: Number of the client's share; ``None`` if all of the data are its own.
        partitions: How many shares there are.

    Raises:
        ConfigError: If the settings do not fit the data, or if they augment texts.
        DataError: If the data cannot be read.
    """
    dataset = _dataset(config.data, config.data_dir, config.classes, outside)
    split = _split(config, outside, partition, partitions)
    if isinstance(dataset, TextDataset) and config.augment != "none":
        raise ConfigError(
            f"`augment = {config.augment}` changes pictures, and data {config.data!r} is text; set it to 'none'"
        )
    spec = _spec(dataset, config.feature_dim, head_for(config.heads, partition or 0, config.feature_dim))
    words = dataset.words if isinstance(dataset, TextDataset) else ()
    return Share(client_data(dataset, split), _domain(dataset, split), spec, words)


def partition_of(node: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return partition id and number of partitions from the node's configuration; ``None, 0`` for its own data.

    Raises:
        ConfigError: If the node's configuration names neither, or no valid partition.
    """
    partition, partitions = node.get("partition-id"), node.get("num-partitions", 0)
    if partition is None:
        if "data" not in node:
            raise ConfigError(
                "node config: neither `partition-id` (with `num-partitions`: its share of the run's data) nor `data` "
                f"(its own) is there, got {sorted(node)}; start the node with one of them in --node-config"
            )
        return None, 0
    if type(partition) is not int or type(partitions) is not int or not 0 <= partition < partitions:
        raise ConfigError(
            "node config: `partition-id` must be a whole number below `num-partitions`, got "
            f"partition-id = {partition!r}, num-partitions = {partitions!r}; "
            'start the node with --node-config "partition-id=0 num-partitions=4", or name its own `data` instead'
        )
    return partition, partitions


@functools.lru_cache(maxsize=4)
def _dataset(data: str, data_dir: str, classes: str, outside: str) -> Dataset:
    """Read a data set and number its classes as the federation does, once per process."""
    return with_classes(load_dataset(data, data_dir), class_names(classes), outside=outside)


def _split(config: Data, outside: str, partition: int | None, partitions: int) -> ClientSplit:
    # A device keeps all of its own data, whatever the run says of data that it splits.
    keeps_all = PartitionOptions(min_samples=config.min_samples)
    options = keeps_all if partition is None else PartitionOptions.of(config)
    return _splits(
        (config.data, config.data_dir, config.classes, outside),
        config.partition if partition is not None else "iid",
        max(1, partitions),
        config.partition_seed,
        options,
        config.split,
        config.test_fraction,
    )[partition or 0]


@functools.lru_cache(maxsize=4)
def _splits(
    data: tuple[str, str, str, str],
    partition: str,
    clients: int,
    seed: int,
    options: PartitionOptions,
    split: str,
    test_fraction: float,
) -> list[ClientSplit]:
    """Split a data set over all clients, once per process."""
    return split_clients(
        _dataset(*data),
        partition=partition,
        clients=clients,
        seed=seed,
        options=options,
        split=split,
        test_fraction=test_fraction,
    )


def _spec(dataset: Dataset, feature_dim: int, head: HeadShape) -> ModelSpec | TextSpec:
    """Return what a model for a data set must fit."""
    classes = len(dataset.classes)
    if not isinstance(dataset, TextDataset):
        channels, height, width = dataset.x.shape[1:]
        return ModelSpec(channels, height, width, feature_dim, classes, head)
    return TextSpec(dataset.vocabulary, dataset.x.shape[1], feature_dim, classes, head)


def _domain(dataset: Dataset, split: ClientSplit) -> str:
    if dataset.domain is None or not len(split.train):
        return ""
    held = torch.cat([dataset.domain[torch.from_numpy(part)] for part in (split.train, split.test)]).unique()
    return dataset.domains[int(held)] if len(held) == 1 else ""
