"""The ClientApp: decode a message, call plain functions, encode the answer."""

import dataclasses
import functools
import json
import logging
import os
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from client_app.store import ClientStore
from client_app.training import Alignment, LocalSettings, Statistics, count_correct, extract, train, wide
from isoproto import paths, wire
from isoproto.config import RunConfig, Scalar
from isoproto.data import (
    ClientData,
    ClientSplit,
    ImageDataset,
    PartitionOptions,
    class_counts,
    client_data,
    load_dataset,
    split_clients,
)
from isoproto.errors import ConfigError, DivergenceError, StateError
from isoproto.fingerprint import fingerprint, package_folder
from isoproto.losses import LOSSES
from isoproto.prototypes import Contribution
from isoproto.seeding import derive, torch_generator
from models import FeatureModel, ModelSpec, architecture_for, create_model

# One thread per worker: the simulation runs a worker per core, and small models crawl with more.
torch.set_num_threads(1)

app = ClientApp()

_log = logging.getLogger("isoproto")

# Settings of the run that a node's own configuration overrides.
_NODE_SETTINGS = ("data", "data-dir", "device", "state-dir", "batch-size")
# What the server may ask to be shared, by prefix of the tensor's name.
_SHARED_PREFIX = {"none": None, "head": "head.", "base": "base.", "model": ""}


@dataclass(frozen=True)
class Client:
    """One client as this process knows it while it answers a message.

    Attributes:
        name: Stable name.
        partitions: Number of partitions it was told of; 0 on a real device.
        config: The run's settings with the node's own on top.
        architecture: Its model's name.
        data: Its data.
        domain: Domain of its data, or empty.
        spec: What its model must fit.
        device: Where it computes.
    """

    name: str
    partitions: int
    config: RunConfig
    architecture: str
    data: ClientData
    domain: str
    spec: ModelSpec
    device: torch.device

    @classmethod
    def of(cls, settings: Mapping[str, Scalar], node: Mapping[str, Any], node_id: int) -> "Client":
        """Resolve the server's settings and the node's own into a client.

        Raises:
            ConfigError: If a setting cannot be used.
            DataError: If its data cannot be read.
        """
        own = {key: node[key] for key in _NODE_SETTINGS if key in node}
        RunConfig.from_mapping(own, source="node config")
        config = RunConfig.from_mapping({**settings, **own})
        partition, partitions = _partition(node)
        name = str(partition) if partition is not None else str(node.get("name", f"node-{node_id}"))
        dataset = load_dataset(config.data, config.data_dir)
        split = _split(dataset, config, partition, partitions)
        architecture = str(node.get("model") or architecture_for(config.models, partition or 0))
        channels, height, width = dataset.x.shape[1:]
        spec = ModelSpec(channels, height, width, config.feature_dim, len(dataset.classes))
        data = client_data(dataset, split)
        domain = _domain(dataset, split)
        return cls(name, partitions, config, architecture, data, domain, spec, choose_device(config.device))

    @property
    def num_classes(self) -> int:
        """C."""
        return self.spec.num_classes

    def store(self, experiment: str) -> ClientStore:
        """Return the store of its own model in an experiment."""
        return ClientStore(paths.state_dir(self.config.state_dir), experiment, self.name)

    def model(self, experiment: str, before: int) -> tuple[FeatureModel, wire.Evaluation | None]:
        """Return its model as it was when ``before`` began: saved, or initialised from the seed.

        Beside it comes the accuracy that this very model had on the test data, if it was saved with it.
        """
        saved = self.store(experiment).load(before)
        tested = self._tested(saved.note) if saved else None
        if saved is None and self.config.init_from:
            source = self.store(self.config.init_from)
            saved = source.load()
            if saved is None:
                raise StateError(
                    f"client {self.name}: `init-from` names experiment {self.config.init_from!r}, but {source.folder} "
                    "holds no model of this client. Name an experiment below `state-dir`, or leave `init-from` empty"
                )
        if saved is None:
            owner = self.architecture if self.config.init == "per-architecture" else self.name
            seed = derive(self.config.seed, "model", owner)
            return create_model(self.architecture, self.spec, seed).to(self.device), None
        model, state = _skeleton(self.architecture, self.spec, self.device)
        expected, found = wire.tensor_spec(state), wire.tensor_spec(saved.tensors)
        if expected != found:
            differing = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
            raise ConfigError(
                f"client {self.name}: its saved model does not fit {self.architecture!r} with {self.spec}: "
                f"{len(differing)} tensors differ, among them {differing[:3]}. Start a new run, or restore the settings"
            )
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(saved.tensors[name])
        return model, tested

    def note(self, tested: wire.Evaluation) -> str:
        """Return what is saved with a model: its accuracy, and on what data."""
        return json.dumps([self._test_digest, tested.correct, tested.total])

    def _tested(self, note: str) -> wire.Evaluation | None:
        digest, correct, total = json.loads(note or "[null, 0, 0]")
        return wire.Evaluation(correct=correct, total=total) if digest == self._test_digest else None

    @property
    def _test_digest(self) -> int:
        return zlib.crc32(self.data.test_x.numpy().tobytes(), zlib.crc32(self.data.test_y.numpy().tobytes()))

    def shared(self, model: FeatureModel) -> dict[str, Tensor]:
        """Return the weights that the run shares, by name."""
        prefix = _SHARED_PREFIX[self.config.share]
        if prefix is None:
            return {}
        return {name: t for name, t in model.state_dict().items() if name.startswith(prefix)}

    def install(self, model: FeatureModel, shared: Mapping[str, Tensor]) -> None:
        """Put averaged weights into the model.

        Raises:
            ConfigError: If they are not the ones that the run shares, or do not fit.
        """
        own = self.shared(model)
        if not shared:
            return
        if wire.tensor_spec(own) != wire.tensor_spec(shared):
            raise ConfigError(
                f"client {self.name}: the server's shared weights do not fit its model {self.architecture!r} "
                f"(`share = {self.config.share}`); all clients need one architecture for it"
            )
        model.load_state_dict({**model.state_dict(), **shared})


def _simulation_worker() -> int:
    """Return the id of this process if it is one of Ray's workers, which may answer for any client of a simulation."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return 0
    return os.getpid()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this client is and what it has."""
    asked = wire.read_query(message.content)
    client = Client.of(asked.settings, context.node_config, context.node_id)
    model, _ = _skeleton(client.architecture, client.spec, client.device)
    info = wire.ClientInfo(
        client=client.name,
        model=client.architecture,
        feature_dim=model.width,
        classes=client.data.classes,
        train_counts=tuple(class_counts(client.data.train_y, client.num_classes).tolist()),
        test_counts=tuple(class_counts(client.data.test_y, client.num_classes).tolist()),
        domain=client.domain,
        partitions=client.partitions,
        fingerprint=fingerprint(),
        folder=str(package_folder("client_app")),
        worker=_simulation_worker(),
        shared=wire.tensor_spec(client.shared(model)),
    )
    return Message(wire.write_client_info(info), reply_to=message)


# What a client answers, and what is to be done before it may be sent.
Answer = tuple[RecordDict, Callable[[], None]]


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """Evaluate, train, evaluate again, measure class means, and keep the model."""
    return _answer(message, context, train_client)


@app.evaluate()
def evaluate_round(message: Message, context: Context) -> Message:
    """Evaluate the client's own model as it stands after the round."""
    return _answer(message, context, examine_client)


def _answer(message: Message, context: Context, work: Callable[[Client, wire.Broadcast], Answer]) -> Message:
    """Answer for this node's client, or one after the other for all that the message names.

    Models are written beside the work on the next client; nothing is sent before all of them are on the disk.
    """
    hosted = wire.read_hosted(message.content)
    if not hosted:
        content, finish = work(*_open(message, context.node_config, context.node_id))
        finish()
        return Message(content, reply_to=message)
    parts: dict[str, RecordDict] = {}
    writes: dict[str, Future[None]] = {}
    with ThreadPoolExecutor(1) as disk:
        for partition in hosted:
            node_config = {**context.node_config, "partition-id": partition}
            name = str(partition)
            try:
                parts[name], finish = work(*_open(message, node_config, context.node_id))
                writes[name] = disk.submit(finish)
            except Exception as err:  # one client's failure is not the others'
                _log.exception("client %s failed", name)
                parts[name] = wire.write_failure(err)
    for name, write in writes.items():
        if failure := write.exception():
            _log.error("client %s failed", name, exc_info=failure)
            parts[name] = wire.write_failure(failure)
    return Message(wire.join(parts), reply_to=message)


def train_client(client: Client, broadcast: wire.Broadcast) -> Answer:
    """Evaluate, train, evaluate again, measure class means; the model is kept when the answer's second part is called.

    Raises:
        DivergenceError: If training broke the model.
        ConfigError: If the settings do not fit this client.
        StateError: If its model cannot be read.
    """
    started = time.perf_counter()
    model, before = client.model(broadcast.experiment, before=broadcast.server_round)
    client.install(model, broadcast.shared)
    if before is None or broadcast.shared:
        before = evaluate_client(client, model, broadcast)[0]
    losses, running = _train(client, model, broadcast)
    _require_finite(client, model, losses)
    after, statistics = evaluate_client(client, model, broadcast, with_statistics=running is None)
    finish = client.store(broadcast.experiment).prepare(broadcast.server_round, model.state_dict(), client.note(after))
    statistics = running or statistics
    reply = wire.TrainReply(
        contribution=_contribution(statistics, client),
        scatter=statistics.scatter() if statistics else 0.0,
        losses=losses,
        before=before,
        after=after,
        seconds=time.perf_counter() - started,
        shared=client.shared(model),
    )
    return wire.write_train_reply(reply, broadcast, client.name), finish


def examine_client(client: Client, broadcast: wire.Broadcast) -> Answer:
    """Evaluate the client's own model as it stands after the round."""
    model, _ = client.model(broadcast.experiment, before=broadcast.server_round + 1)
    client.install(model, broadcast.shared)
    evaluation = evaluate_client(client, model, broadcast)[0]
    return wire.write_evaluate_reply(evaluation, broadcast, client.name), lambda: None


def evaluate_client(
    client: Client, model: FeatureModel, broadcast: wire.Broadcast, *, with_statistics: bool = False
) -> tuple[wire.Evaluation, Statistics | None]:
    """Test the model by its head and by the nearest global prototype; measure its train features if asked."""
    data, device = client.data, client.device
    features = extract(model, data.test_x)
    prototypes, present = broadcast.prototypes, broadcast.present
    if prototypes is not None and present is not None:
        prototypes, present = prototypes.to(device), present.to(device)
    right, by_prototype = count_correct(model, features, data.test_y, prototypes, present)
    evaluation = wire.Evaluation(
        correct=int(right.sum()),
        total=len(data.test_y),
        correct_prototype=by_prototype,
        class_correct=tuple(class_counts(data.test_y[right.cpu()], client.num_classes).tolist()),
        class_total=tuple(class_counts(data.test_y, client.num_classes).tolist()),
    )
    if not with_statistics or not len(data.train_y):
        return evaluation, None
    trained = extract(model, data.train_x)
    return evaluation, Statistics.of(trained, data.train_y.to(device), client.num_classes)


def choose_device(name: str) -> torch.device:
    """Return the device that a setting names; ``auto`` is a GPU where there is one.

    Raises:
        ConfigError: If this machine has no such device.
    """
    found = ["cpu"]
    if torch.cuda.is_available():
        found.insert(0, "cuda")
    elif torch.backends.mps.is_available():
        found.insert(0, "mps")
    if name == "auto":
        return torch.device(found[0])
    if name.split(":")[0] not in found:
        raise ConfigError(f"`device` {name!r} is not on this machine, which has {found}; `auto` takes what there is")
    return torch.device(name)


def _open(message: Message, node_config: Mapping[str, Any], node_id: int) -> tuple[Client, wire.Broadcast]:
    client = Client.of(wire.read_settings(message.content), node_config, node_id)
    broadcast = wire.read_broadcast(
        message.content, num_classes=client.num_classes, feature_dim=client.config.feature_dim
    )
    return client, broadcast


def _train(
    client: Client, model: FeatureModel, broadcast: wire.Broadcast
) -> tuple[dict[str, float], Statistics | None]:
    if not len(client.data.train_y):
        return {}, None
    config = client.config
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(LocalSettings)}
    generator = torch_generator(config.seed, "batches", broadcast.server_round, client.name)
    alignment = _alignment(config, broadcast, client.device)
    return train(model, client.data, LocalSettings(**fields), alignment, generator)


def _require_finite(client: Client, model: FeatureModel, losses: Mapping[str, float]) -> None:
    """Refuse a model that training has broken: it is not kept, so the next round starts from the last good one."""
    state = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
    # One pass over all of them: their sum is finite if each of them is, in a precision in which it cannot overflow.
    if bool(torch.cat([t.flatten() for t in state.values()]).sum(dtype=wide(model.head.weight)).isfinite()):
        return
    broken = [name for name, t in state.items() if not bool(t.isfinite().all())]
    if broken:
        config = client.config
        raise DivergenceError(
            f"client {client.name}: training {client.architecture!r} diverged, {len(broken)} of {len(state)} tensors "
            f"hold NaN or infinity (losses {dict(losses)}); its model of the round before is kept. Lower "
            f"`learning-rate` ({config.learning_rate:g}), or `lambda` ({config.lambda_}) and `gamma` ({config.gamma})"
        )


def _alignment(config: RunConfig, broadcast: wire.Broadcast, device: torch.device) -> Alignment | None:
    if config.alignment == "none" or broadcast.prototypes is None or broadcast.present is None:
        return None
    loss, present = LOSSES[config.alignment], broadcast.present.to(device)
    target = loss.target(broadcast.prototypes.to(device), present)
    return Alignment(
        loss=loss,
        target=target,
        present=present,
        lambda_=float(config.lambda_),
        gamma=float(config.gamma),
        missing="self" if config.missing == "self" else "mask",
    )


def _contribution(statistics: Statistics | None, client: Client) -> Contribution:
    """Class means of the classes with enough samples."""
    samples = len(client.data.train_y)
    if statistics is None:
        empty = torch.zeros(0, dtype=torch.int64)
        return Contribution(empty, torch.zeros(0, client.spec.feature_dim), empty, samples)
    # Not the statistics' own counts: running ones see a sample once an epoch.
    held = torch.from_numpy(class_counts(client.data.train_y, client.num_classes))
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


def _split(dataset: ImageDataset, config: RunConfig, partition: int | None, partitions: int) -> ClientSplit:
    return _splits(
        config.data,
        config.data_dir,
        config.partition if partition is not None else "iid",
        max(1, partitions),
        config.partition_seed,
        PartitionOptions(
            alpha=config.alpha, classes_per_client=config.classes_per_client, min_samples=config.min_samples
        ),
        config.split,
        config.test_fraction,
    )[partition or 0]


@functools.lru_cache(maxsize=4)
def _splits(
    data: str,
    data_dir: str,
    partition: str,
    clients: int,
    seed: int,
    options: PartitionOptions,
    split: str,
    test_fraction: float,
) -> list[ClientSplit]:
    """Split a data set over all clients, once per process."""
    return split_clients(
        load_dataset(data, data_dir),
        partition=partition,
        clients=clients,
        seed=seed,
        options=options,
        split=split,
        test_fraction=test_fraction,
    )


@functools.lru_cache(maxsize=32)
def _skeleton(architecture: str, spec: ModelSpec, device: torch.device) -> tuple[FeatureModel, dict[str, Tensor]]:
    """A model whose weights are about to be replaced, and its tensors: building one costs more than filling it."""
    model = create_model(architecture, spec, seed=0).to(device)
    return model, model.state_dict()


def _domain(dataset: ImageDataset, split: ClientSplit) -> str:
    if dataset.domain is None or not len(split.train):
        return ""
    held = dataset.domain[torch.from_numpy(split.train)].unique()
    return dataset.domains[int(held)] if len(held) == 1 else ""
