"""The ClientApp: decode a message, call plain functions, encode the reply."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

<<<<<<< HEAD
from client_app.client import Client
from client_app.hosted import Steps, Work, answer_for_all, as_partition, hosted_partitions, introduce_all
from client_app.introduction import introduce
from client_app.local_round import examine_client, train_client, training
from isoproto import wire
from isoproto.engines.host import Host, flower_host
from isoproto.errors import WireError
=======
from client_app.batched import TOGETHER, Member, Trained, pays, train_cohort
from client_app.store import ClientStore
from client_app.training import (
    Alignment,
    Anchoring,
    LocalSettings,
    Statistics,
    extract,
    predict,
    train,
)
from client_app.view import Own, View, needs_own, wants_gradients
from isoproto import paths, wire
from isoproto.config import RunConfig, Scalar
from isoproto.data import (
    ClientData,
    ClientSplit,
    Dataset,
    PartitionOptions,
    TextDataset,
    class_counts,
    class_names,
    client_data,
    load_dataset,
    split_clients,
    with_classes,
)
from isoproto.data.folders import data_folder, lies_in
from isoproto.errors import ConfigError, DivergenceError, StateError, WireError
from isoproto.fingerprint import fingerprint, package_folder
from isoproto.geometry.prototypes import Contribution
from isoproto.losses import LOSSES
from isoproto.matching.classifier_retrain import classifier_gradients
from isoproto.matching.feature_gradients import linear_gradients
from isoproto.own_code import is_own
from isoproto.precision import wide
from isoproto.seeding import derive, torch_generator
from models import FeatureModel, HeadShape, ModelSpec, TextSpec, architecture_for, create_model, head_for
>>>>>>> h-data

# One thread per worker: the simulation runs a worker per core, and small models crawl with more.
torch.set_num_threads(1)


def make_app(host_of: Callable[[], Host]) -> ClientApp:
    """Return a ClientApp for the clients of a host.

    Args:
        host_of: Says for each message whether this process simulates clients. It gets nothing of the message or the
            context, so a server cannot make a real device believe that it is simulated.
    """
    made = ClientApp()

    @made.query()
    def query(message: Message, context: Context) -> Message:
        """Say who this client is and what it has."""
        return answer_query(message, context, host_of())

    @made.train()
    def train_round(message: Message, context: Context) -> Message:
        """Evaluate, train, evaluate again, measure class means, and save the model."""
        return answer(message, context, host_of(), train_client, training)

    @made.evaluate()
    def evaluate_round(message: Message, context: Context) -> Message:
        """Evaluate the client's own model as it stands after the round."""
        return answer(message, context, host_of(), examine_client)

    return made


app = make_app(flower_host)


def answer_query(message: Message, context: Context, host: Host) -> Message:
    """Introduce this node's client, or all clients of the node in a simulation with fewer nodes than clients."""
    settings, node = wire.read_query(message.content).settings, context.node_config
    clients = int(settings.get("clients", 0))
    if not (clients and host.worker):
        client = Client.of(settings, node, context.node_id, host)
        return Message(wire.write_client_info(introduce(client)), reply_to=message)
    parts = introduce_all(
        hosted_partitions(node, clients),
        lambda partition: Client.of(settings, as_partition(node, partition, clients), context.node_id, host),
    )
    return Message(wire.join(parts), reply_to=message)


def answer(message: Message, context: Context, host: Host, work: Work, steps: Steps | None = None) -> Message:
    """Answer for this node's client, or for all clients that the message names.

    Args:
        message: What the server asks.
        context: The node's context.
        host: Whether the node is simulated. A real device answers for itself alone.
        work: What a client does.
        steps: The same as a generator, for clients that train batched.
    """
    node = context.node_config
    hosted = wire.read_hosted(message.content)
    if not hosted:
        reply = work(*_decode(message, node, context.node_id, host))
        reply.save()
        return Message(reply.content, reply_to=message)
    if not host.worker:
        raise WireError(
            f"the server wants an answer for partitions {hosted!r:.200}; a real node answers for itself alone"
        )
    clients = int(wire.read_settings(message.content).get("clients", 0))
    parts = answer_for_all(
        hosted,
        lambda partition: _decode(message, as_partition(node, partition, clients), context.node_id, host),
        work,
        steps,
    )
    return Message(wire.join(parts), reply_to=message)


def _decode(message: Message, node: Mapping[str, Any], node_id: int, host: Host) -> tuple[Client, wire.Broadcast]:
    """Return the client that a message is for, and what the server sent to it."""
    client = Client.of(wire.read_settings(message.content), node, node_id, host)
    broadcast = wire.read_broadcast(
        message.content, num_classes=client.num_classes, feature_dim=client.config.feature_dim
    )
    return client, broadcast
<<<<<<< HEAD
=======


def _train(client: Client, model: FeatureModel, view: View) -> tuple[dict[str, float], Statistics | None]:
    if not len(client.data.train_y):
        return {}, None
    return train(
        model,
        client.data,
        local_settings(client),
        _alignment(view, client),
        _batch_order(client, view),
        _anchoring(view, client),
    )


def _job(client: Client, model: FeatureModel, view: View) -> Job:
    member = Member(
        parameters={name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        data=client.data,
        alignment=_alignment(view, client),
        generator=_batch_order(client, view),
        anchoring=_anchoring(view, client),
    )
    return Job(model, member, local_settings(client))


def local_settings(client: Client) -> LocalSettings:
    """Return what its local training is told of the run's settings and its own."""
    return LocalSettings(**{f.name: getattr(client.config, f.name) for f in dataclasses.fields(LocalSettings)})


def _batch_order(client: Client, view: View) -> torch.Generator:
    return torch_generator(client.config.seed, "batches", view.broadcast.server_round, client.name)


def _require_finite(client: Client, model: FeatureModel, losses: Mapping[str, float]) -> None:
    """Refuse a model that training has broken: it is not kept, so the next round starts from the last good one."""
    state = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
    # One pass over all of them: their sum is finite if each of them is, in a precision in which it cannot overflow.
    if bool(torch.cat([t.flatten() for t in state.values()]).sum(dtype=wide(next(model.parameters()))).isfinite()):
        return
    broken = [name for name, t in state.items() if not bool(t.isfinite().all())]
    if broken:
        config = client.config
        raise DivergenceError(
            f"client {client.name}: training {client.architecture!r} diverged, {len(broken)} of {len(state)} tensors "
            f"hold NaN or infinity (losses {dict(losses)}); its model of the round before is kept. Lower "
            f"`learning-rate` ({config.learning_rate:g}), or `lambda` ({config.lambda_}) and `gamma` ({config.gamma})"
        )


def _alignment(view: View, client: Client) -> Alignment | None:
    config, device = view.config, client.device
    if not config.structural:
        return None
    loss, relations = LOSSES[config.structural], view.relations(client.num_classes)
    if relations is not None and loss.relations is not None:
        present = relations.any(dim=1)
        target = loss.relations(relations, present)
    elif (seen := view.targets()) is not None:
        prototypes, present = seen
        target = loss.target(prototypes, present)
    else:
        return None
    return Alignment(
        loss=loss,
        target=target.to(device),
        present=present.to(device),
        lambda_=float(config.lambda_),
        gamma=float(config.gamma),
        missing="self" if config.missing == "self" else "mask",
    )


def _anchoring(view: View, client: Client) -> Anchoring | None:
    config = view.config
    anchors = view.anchors(client.num_classes, client.spec.feature_dim)
    if anchors is None:
        return None
    return Anchoring(
        anchors=dataclasses.replace(
            anchors, rows=anchors.rows.to(client.device), table=anchors.table.to(client.device)
        ),
        pcl=float(config.hyper__pcl) if "hpcl" in config.anchored else 0.0,
        pal=float(config.hyper__pal) if "hpal" in config.anchored else 0.0,
    )


def _contribution(statistics: Statistics | None, client: Client) -> Contribution:
    """Class means of the classes with enough samples."""
    samples = len(client.data.train_y)
    if statistics is None:
        empty = torch.zeros(0, dtype=torch.int64)
        return Contribution(empty, torch.zeros(0, client.spec.feature_dim), empty, samples)
    held = _counts(statistics, client)
    ids = torch.nonzero(held >= client.config.min_class_samples).flatten()
    return Contribution(ids, statistics.sums.mean().cpu()[ids], held[ids], samples)


def _partition(node: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return partition id and number of partitions from the node's configuration."""
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


def _split(config: RunConfig, outside: str, partition: int | None, partitions: int) -> ClientSplit:
    options = PartitionOptions(min_samples=config.min_samples)
    if partition is not None:  # a device keeps all of its own data, whatever is made of a data set that is dealt out
        options = dataclasses.replace(
            options,
            alpha=config.alpha,
            classes_per_client=config.classes_per_client,
            imbalance=config.imbalance,
            max_samples=config.max_samples,
        )
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


def _spec(dataset: Dataset, config: RunConfig, head: HeadShape) -> ModelSpec | TextSpec:
    """Return what a model for a data set must fit, its head among it.

    Raises:
        ConfigError: If texts should be augmented as pictures are.
    """
    classes = len(dataset.classes)
    if not isinstance(dataset, TextDataset):
        channels, height, width = dataset.x.shape[1:]
        return ModelSpec(channels, height, width, config.feature_dim, classes, head)
    if config.augment != "none":
        raise ConfigError(
            f"`augment = {config.augment}` changes pictures, and data {config.data!r} is text; set it to 'none'"
        )
    return TextSpec(dataset.vocabulary, dataset.x.shape[1], config.feature_dim, classes, head)


@functools.lru_cache(maxsize=32)
def _skeleton(
    architecture: str, spec: ModelSpec | TextSpec, device: torch.device
) -> tuple[FeatureModel, dict[str, Tensor]]:
    """A model whose weights are about to be replaced, and its tensors: building one costs more than filling it."""
    model = build_model(architecture, spec, device, seed=0)
    return model, model.state_dict()


def build_model(architecture: str, spec: ModelSpec | TextSpec, device: torch.device, seed: int) -> FeatureModel:
    """Build a model and place it where it trains."""
    # A user's own model may be one that needs its feature maps as torch lays them out by default.
    return create_model(architecture, spec, seed).place(device, rearrange=not is_own(architecture))


def _domain(dataset: Dataset, split: ClientSplit) -> str:
    if dataset.domain is None or not len(split.train):
        return ""
    held = torch.cat([dataset.domain[torch.from_numpy(part)] for part in (split.train, split.test)]).unique()
    return dataset.domains[int(held)] if len(held) == 1 else ""
>>>>>>> h-data
