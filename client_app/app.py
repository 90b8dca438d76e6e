"""The ClientApp: decode a message, call plain functions, encode the answer."""

import contextlib
import dataclasses
import functools
import json
import logging
import socket
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

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

# One thread per worker: the simulation runs a worker per core, and small models crawl with more.
torch.set_num_threads(1)

app = ClientApp()

_log = logging.getLogger("isoproto")

# Settings of the run that a node's own configuration overrides.
_NODE_SETTINGS = ("data", "data-dir", "classes", "device", "state-dir", "batch-size")
_FLOOR = "min-class-samples"
# What the server may ask to be shared, by prefix of the tensor's name.
_SHARED_PREFIX = {"none": None, "head": "head.", "base": "base.", "model": ""}


# Names under which a model's own class means lie beside its tensors; no module of a model has them.
_OWN = ("own:means", "own:counts", "own:scatter")


class Opened(NamedTuple):
    """A client's model, and what was saved with it and is true of this very model.

    Attributes:
        model: The model.
        tested: Its accuracy on the test data, or ``None``.
        own: Its class means of the training data, or ``None``.
    """

    model: FeatureModel
    tested: wire.Evaluation | None
    own: Own | None


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
    spec: ModelSpec | TextSpec
    device: torch.device

    @classmethod
    def of(cls, settings: Mapping[str, Scalar], node: Mapping[str, Any], node_id: int) -> "Client":
        """Resolve the server's settings and the node's own into a client.

        Raises:
            ConfigError: If a setting cannot be used.
            DataError: If its data cannot be read.
        """
        own = {key: node[key] for key in (*_NODE_SETTINGS, _FLOOR) if key in node}
        RunConfig.from_mapping(own, source="node config")
        if "data" in own:  # a server's folder would decide which file is meant
            own.setdefault("data-dir", "")
        if _FLOOR in own:  # a floor: whoever asks for more samples decides
            own[_FLOOR] = max(own[_FLOOR], int(settings.get(_FLOOR, 1)))
        config = RunConfig.from_mapping({**settings, **own})
        partition, partitions = _partition(node)
        name = str(partition) if partition is not None else str(node.get("name", f"node-{node_id}"))
        _check_may_send(config, node, name)
        architecture = str(node.get("model") or architecture_for(config.models, partition or 0))
        if "model" not in node:
            _check_trusted("models", architecture, is_own(architecture), name)
        if "data" not in node:
            _check_trusted("data", config.data, config.data.startswith("module:"), name)
        _check_places(config, node, name)
        threads = int(node.get("threads", 1))
        if torch.get_num_threads() != threads:  # setting it forgets all prepared convolutions: 8 % of a small client
            torch.set_num_threads(threads)
        outside = str(node.get("outside-classes", "refuse"))
        dataset = _dataset(config.data, config.data_dir, config.classes, outside)
        split = _split(config, outside, partition, partitions)
        head = head_for(config.heads, partition or 0, config.feature_dim)
        spec = _spec(dataset, config, head)
        data = client_data(dataset, split)
        domain = _domain(dataset, split)
        device = choose_device(config.device)
        if config.amp != "off" and not torch.amp.is_autocast_available(device.type):
            raise ConfigError(f"client {name}: PyTorch has no autocast on its device {device}; set amp = 'off'")
        return cls(name, partitions, config, architecture, data, domain, spec, device)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.spec.num_classes

    def store(self, experiment: str) -> ClientStore:
        """Return the store of its own model in an experiment."""
        return ClientStore(paths.state_dir(self.config.state_dir), experiment, self.name)

    def model(self, experiment: str, before: int) -> "Opened":
        """Return its model as it was when ``before`` began: saved, or initialised from the seed."""
        saved = self.store(experiment).load(before)
        if saved is None:
            self._require_same_folder(experiment)
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
            return Opened(build_model(self.architecture, self.spec, self.device, seed), None, None)
        model, state = _skeleton(self.architecture, self.spec, self.device)
        tensors = dict(saved.tensors)
        means, counts, scatter = (tensors.pop(name, None) for name in _OWN)
        expected, found = wire.tensor_spec(state), wire.tensor_spec(tensors)
        if expected != found:
            differing = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
            raise ConfigError(
                f"client {self.name}: its saved model does not fit {self.architecture!r} with {self.spec}: "
                f"{len(differing)} tensors differ, among them {differing[:3]}. Start a new run, or restore the settings"
            )
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(tensors[name])
        own = None
        if means is not None and counts is not None and scatter is not None:
            own = Own(means, counts, float(scatter))
        return Opened(model, tested, own)

    def _require_same_folder(self, experiment: str) -> None:
        """Refuse to start anew where another machine of the simulation may hold the client's model.

        Raises:
            StateError: If the state folder here is not the one that the server has.
        """
        root = paths.state_dir(self.config.state_dir)
        if _simulation_worker() and not paths.is_marked(root, experiment):
            raise StateError(
                f"client {self.name}: the state folder {root} of {socket.gethostname()} is not the one of the machine "
                "that the run was started on, and the client's model may be there. Set `state-dir` to a folder that "
                "all machines of the Ray cluster share (docs/scale.md)"
            )

    def note(self, tested: wire.Evaluation) -> str:
        """Return what is saved with a model: its accuracy, and on what data."""
        return json.dumps([self._test_digest, tested.correct, tested.total])

    def _tested(self, note: str) -> wire.Evaluation | None:
        digest, correct, total = json.loads(note or "[null, 0, 0]")
        return wire.Evaluation(correct=correct, total=total) if digest == self._test_digest else None

    @functools.cached_property
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
    """Return the id of this process if it is one of Ray's workers, which may answer for any client of a simulation.

    Not the number of the process: two machines of a cluster may have the same one.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not (actor := ray.get_runtime_context().get_actor_id()):
        return 0
    return 1 + int(actor[:9], 16)  # 36 of its random bits


def _simulated() -> bool:
    """Whether this process simulates clients, so that the run config is the researcher's own and not a server's."""
    here = sys.modules.get("isoproto.engines.in_process")
    return bool(_simulation_worker()) or (here is not None and here.answering())


def _check_trusted(key: str, value: str, own_code: bool, client: str) -> None:
    """Refuse to import what a server names: on a device, only its owner says what code of the device runs.

    Raises:
        ConfigError: If a real node was asked to.
    """
    if own_code and not _simulated():
        raise ConfigError(
            f"client {client}: the server's run config names code for this device to import, `{key} = {value!r}`; only "
            f"the node's own configuration may. Set `{'model' if key == 'models' else key}` there"
        )


def _check_places(config: RunConfig, node: Mapping[str, Any], client: str) -> None:
    """Refuse folders that a server names: on a device, only its owner says where a run may read and write.

    Raises:
        ConfigError: If a real node was asked to leave them.
    """
    if _simulated():
        return
    folder = data_folder(str(node.get("data-dir", "")))
    if "data" not in node and not lies_in(folder, config.data, config.data_dir):
        raise ConfigError(
            f"client {client}: the server's run config names data outside of this node's folder for it, {folder}: "
            f"`data = {config.data!r}`, `data-dir = {config.data_dir!r}`. Name data by a path below that folder, or "
            "let the node's owner set `data-dir` or `data` in its own configuration"
        )
    if config.state_dir and "state-dir" not in node:
        raise ConfigError(
            f"client {client}: the server's run config names a folder of this device to write to, `state-dir = "
            f"{config.state_dir!r}`; only the node's own configuration may. Leave it out of the run config"
        )


def _check_may_send(config: RunConfig, node: Mapping[str, Any], client: str) -> None:
    """Refuse a run that asks for more than the node's owner lets go.

    Raises:
        ConfigError: If it does.
    """
    if "may-send" not in node:
        return
    allowed = {word.strip() for word in str(node["may-send"]).split(",")}
    wanted = {"head": {"head"}, "base": {"base"}, "model": {"head", "base"}}.get(config.share, set())
    wanted = wanted | ({"gradients"} if wants_gradients(config) else set())
    if missing := sorted(wanted - allowed):
        raise ConfigError(
            f"client {client}: strategy {config.strategy!r} asks for {', '.join(missing)}, and `may-send` of this node "
            f"allows {', '.join(sorted(allowed - {''})) or 'nothing'} besides class means. Its owner may add "
            "it, or the server choose a strategy that does without"
        )


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this client is and what it has; in a simulation with fewer nodes than clients, for each of its own."""
    asked = wire.read_query(message.content)
    node, clients = context.node_config, int(asked.settings.get("clients", 0))
    if not (clients and _simulation_worker()):
        content = wire.write_client_info(introduce(Client.of(asked.settings, node, context.node_id)))
        return Message(content, reply_to=message)
    own = range(int(node["partition-id"]), clients, int(node["num-partitions"]))
    if not own:
        raise ConfigError(
            f"`clients = {clients}` leaves none for node {node['partition-id']} of {node['num-partitions']}; "
            f"start at most {clients} nodes, or leave `clients` out: one for each node"
        )
    parts: dict[str, RecordDict] = {}
    for partition in own:
        with _catching(parts, str(partition)):
            client = Client.of(asked.settings, _as_partition(node, partition, clients), context.node_id)
            parts[client.name] = wire.write_client_info(introduce(client))
    return Message(wire.join(parts), reply_to=message)


def introduce(client: Client) -> wire.ClientInfo:
    """Return what the server has to know of a client before round 1."""
    model, _ = _skeleton(client.architecture, client.spec, client.device)
    return wire.ClientInfo(
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


def _as_partition(node: Mapping[str, Any], partition: int, clients: int) -> dict[str, Any]:
    """Return the configuration that a node would have as another client of a simulation."""
    return {**node, "partition-id": partition, "num-partitions": clients or node.get("num-partitions", 0)}


@contextlib.contextmanager
def _catching(parts: dict[str, RecordDict], *names: str) -> Iterator[None]:
    """Turn an exception into the failure of some clients, which is their part of an answer."""
    try:
        yield
    except Exception as err:
        for name in names:
            _log.error("client %s failed", name, exc_info=err)
            parts[name] = wire.write_failure(err)


# What a client answers, and what is to be done before it may be sent.
Answer = tuple[RecordDict, Callable[[], None]]

# Most clients that a worker keeps in memory until they train together.
_MOST_WAITING = 2 * TOGETHER


class Job(NamedTuple):
    """A client that is about to train, as :func:`train_cohort` wants it.

    Attributes:
        model: Says what the layers are; its weights may be another client's by now.
        member: The client's weights and what it trains on.
        settings: How it trains.
    """

    model: FeatureModel
    member: Member
    settings: LocalSettings


Training = Generator[Job, Trained, Answer]
"""A client's round that stops where it trains, if that is to be with others."""


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """Evaluate, train, evaluate again, measure class means, and keep the model."""
    return _answer(message, context, train_client, training)


@app.evaluate()
def evaluate_round(message: Message, context: Context) -> Message:
    """Evaluate the client's own model as it stands after the round."""
    return _answer(message, context, examine_client)


def _answer(
    message: Message,
    context: Context,
    work: Callable[[Client, wire.Broadcast], Answer],
    steps: Callable[[Client, wire.Broadcast], Training] | None = None,
) -> Message:
    """Answer for this node's client, or for all that the message names.

    Models are written beside the work on the next client; nothing is sent before all of them are on the disk.

    Args:
        message: What the server asks.
        context: The node's.
        work: What a client does.
        steps: The same for a client that trains together with others.
    """
    hosted = wire.read_hosted(message.content)
    if not hosted:
        content, finish = work(*_open(message, context.node_config, context.node_id))
        finish()
        return Message(content, reply_to=message)
    if not _simulation_worker():
        raise WireError(
            f"the server wants an answer for partitions {hosted!r:.200}; a real node answers for itself alone"
        )
    clients = int(wire.read_settings(message.content).get("clients", 0))
    with ThreadPoolExecutor(1) as disk:
        answers = _Answers(disk)
        for partition in hosted:
            with answers.catching(str(partition)):
                node = _as_partition(context.node_config, partition, clients)
                client, broadcast = _open(message, node, context.node_id)
                if steps is not None and in_cohort(client):
                    answers.wait(client, steps(client, broadcast))
                else:
                    answers.keep(client.name, work(client, broadcast))
        answers.train_all()
    return Message(wire.join(answers.parts()), reply_to=message)


class _Answers:
    """The answers for several clients while they are being made; one client's failure is not the others'.

    Args:
        disk: Writes models beside the work on the next client.
    """

    def __init__(self, disk: ThreadPoolExecutor) -> None:
        self._disk = disk
        self._parts: dict[str, RecordDict] = {}
        self._writes: dict[str, Future[None]] = {}
        self._waiting: dict[str, list[tuple[str, Training, Job]]] = {}

    def catching(self, *names: str) -> contextlib.AbstractContextManager[None]:
        """Turn an exception into the failure of some clients."""
        return _catching(self._parts, *names)

    def keep(self, name: str, answer: Answer) -> None:
        """Take a client's answer, and write its model."""
        self._parts[name], finish = answer
        self._writes[name] = self._disk.submit(finish)

    def wait(self, client: Client, steps: Training) -> None:
        """Have a client wait for others of its architecture to train with."""
        job = next(steps)
        waiting = self._waiting.setdefault(client.architecture, [])
        waiting.append((client.name, steps, job))
        if len(waiting) == _MOST_WAITING:
            self._train(client.architecture)

    def train_all(self) -> None:
        """Train all that are waiting."""
        for architecture in list(self._waiting):
            self._train(architecture)

    def _train(self, architecture: str) -> None:
        waiting = self._waiting.pop(architecture)
        with self.catching(*(name for name, _, _ in waiting)):
            trained = _train_jobs([job for _, _, job in waiting])
            for (name, steps, _), result in zip(waiting, trained, strict=True):
                with self.catching(name):
                    self.keep(name, _resume(steps, result))

    def parts(self) -> dict[str, RecordDict]:
        """Return each client's answer; the models are on the disk."""
        for name, write in self._writes.items():
            with self.catching(name):
                write.result()
        return self._parts


def in_cohort(client: Client) -> bool:
    """Whether the client trains by ``train_cohort``, with others where there are some."""
    config = client.config
    return (
        config.cohort == "on"
        and config.augment == "none"
        and config.amp == "off"
        and not client.spec.head.hidden
        and pays(client.architecture, config.batch_size, client.data.train_x.shape[2:].numel(), client.device)
        and len(client.data.train_y) > 0
    )


def _train_jobs(jobs: Sequence[Job]) -> list[Trained]:
    return train_cohort(jobs[0].model, [job.member for job in jobs], jobs[0].settings)


def _resume(steps: Training, trained: Trained) -> Answer:
    """Let a client that has been trained go on to the end."""
    try:
        steps.send(trained)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    raise AssertionError("a client trains once a round")


def train_client(client: Client, broadcast: wire.Broadcast) -> Answer:
    """Answer for a client that trains alone, see :func:`training`."""
    steps = training(client, broadcast)
    try:
        job = next(steps)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    return _resume(steps, _train_jobs([job])[0])


def training(client: Client, broadcast: wire.Broadcast) -> Training:
    """Evaluate, train, evaluate again, measure class means; the model is kept when the answer's second part is called.

    Raises:
        DivergenceError: If training broke the model.
        ConfigError: If the settings do not fit this client.
        StateError: If its model cannot be read.
    """
    started = time.perf_counter()
    config, data = client.config, client.data
    model, before, own = _opened(client, broadcast, before=broadcast.server_round)
    early = wants_gradients(config) and config.hyper__grad_point == "before-training"
    unknown = own is None and needs_own(config)
    features = extract(model, data.train_x) if early or unknown else None
    if unknown:
        own = own_statistics(client, measure(client, model, features))
    view = View(config, client.name, broadcast, own)
    if before is None:
        before = evaluate_client(client, model, view)
    gradients: Tensor | None = None
    heads: tuple[Tensor, Tensor] | None = None
    if features is not None and early:
        gradients, heads = class_gradients(client, model, view, features)
    if in_cohort(client):
        spent = time.perf_counter() - started
        trained = yield _job(client, model, view)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(trained.parameters[name])
        losses, running = trained.losses, trained.running
        started = time.perf_counter() - spent - trained.seconds
    else:
        losses, running = _train(client, model, view)
    _require_finite(client, model, losses)
    late = wants_gradients(config) and not early
    features = extract(model, data.train_x) if running is None or late else None
    statistics = running or measure(client, model, features)
    own = own_statistics(client, statistics)
    # Features have moved, and so has their map into the server's frame.
    view = dataclasses.replace(view, own=own)
    after = evaluate_client(client, model, view)
    if features is not None and late:
        gradients, heads = class_gradients(client, model, view, features)
    contribution = _contribution(statistics, client)
    state = dict(model.state_dict())
    if own is not None and needs_own(config):
        state |= dict(zip(_OWN, (own.means, own.counts, torch.tensor(own.scatter)), strict=True))
    finish = client.store(broadcast.experiment).prepare(broadcast.server_round, state, client.note(after))
    reply = wire.TrainReply(
        contribution=contribution,
        scatter=statistics.scatter() if statistics else 0.0,
        losses=losses,
        before=before,
        after=after,
        seconds=time.perf_counter() - started,
        gradients=None if gradients is None else gradients[contribution.class_ids],
        classifier=None if heads is None else (heads[0][contribution.class_ids], heads[1][contribution.class_ids]),
        shared=client.shared(model),
    )
    return wire.write_train_reply(reply, broadcast, client.name), finish


def _opened(client: Client, broadcast: wire.Broadcast, before: int) -> Opened:
    """Return a client's model with the server's weights in it, and what of the saved is true of this one."""
    model, tested, own = client.model(broadcast.experiment, before)
    client.install(model, broadcast.shared)
    if broadcast.shared:
        tested = None
        own = own if client.config.share == "head" else None  # features do not depend on the head
    return Opened(model, tested, own)


def examine_client(client: Client, broadcast: wire.Broadcast) -> Answer:
    """Evaluate the client's own model as it stands after the round."""
    model, _, own = _opened(client, broadcast, before=broadcast.server_round + 1)
    if own is None and client.config.frame != "shared" and broadcast.prototypes is not None:
        own = own_statistics(client, measure(client, model))  # else the prototypes could not be mapped
    evaluation = evaluate_client(client, model, View(client.config, client.name, broadcast, own))
    return wire.write_evaluate_reply(evaluation, broadcast, client.name), lambda: None


def evaluate_client(client: Client, model: FeatureModel, view: View) -> wire.Evaluation:
    """Test the model by its head, and by the nearest global prototype as the client sees it."""
    data, device = client.data, client.device
    features = extract(model, data.test_x)
    prototypes, present = view.prototypes() or (None, None)
    if prototypes is not None and present is not None:
        prototypes, present = prototypes.to(device), present.to(device)
    predicted, by_prototype = predict(model, features, data.test_y, prototypes, present)
    right = predicted == data.test_y.to(device)
    return wire.Evaluation(
        correct=int(right.sum()),
        total=len(data.test_y),
        correct_prototype=by_prototype,
        class_correct=tuple(class_counts(data.test_y[right.cpu()], client.num_classes).tolist()),
        class_total=tuple(class_counts(data.test_y, client.num_classes).tolist()),
        class_predicted=tuple(class_counts(predicted.cpu(), client.num_classes).tolist()),
    )


def measure(client: Client, model: FeatureModel, features: Tensor | None = None) -> Statistics | None:
    """Return class statistics of the training features, by a pass in eval mode; ``None`` without training data."""
    if not len(client.data.train_y):
        return None
    features = extract(model, client.data.train_x) if features is None else features
    return Statistics.of(features, client.data.train_y.to(features.device), client.num_classes)


def own_statistics(client: Client, statistics: Statistics | None) -> Own | None:
    """Return the same as the client keeps it; ``None`` without training data."""
    if statistics is None:
        return None
    return Own(statistics.sums.mean().cpu(), _counts(statistics, client), statistics.scatter())


def _counts(statistics: Statistics, client: Client) -> Tensor:
    """Return the samples of each class that statistics are of, ``[C]``.

    Their own counts are others: running ones see a sample once an epoch, and with fixed batches some never.
    """
    counts = torch.from_numpy(class_counts(client.data.train_y, client.num_classes))
    return counts * statistics.sums.present.cpu()


def class_gradients(
    client: Client, model: FeatureModel, view: View, features: Tensor
) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
    """Return mean gradients of each class, if the run asks for them: by features ``[C, d]``, and by the classifier.

    The first are in the server's frame; they are ``None`` also for a client that has no map into that frame yet, and
    before the server has a head.
    """
    config = client.config
    if not wants_gradients(config) or not len(features):
        return None, None
    labels = client.data.train_y
    if config.hyper__grad_samples:
        generator = torch_generator(config.seed, "gradients", view.broadcast.server_round, client.name)
        index = _some_of_each(labels, max(config.hyper__grad_samples, config.min_class_samples), generator)
        features, labels = features[index.to(features.device)], labels[index]
    labels = labels.to(features.device)
    classifier = None
    if config.hyper__retrain != "none":
        of_weight, of_bias = classifier_gradients(features, labels, *model.linear_head)
        classifier = of_weight.cpu(), of_bias.cpu()
    head = model.linear_head if config.hyper__head == "shared" else view.head()
    there = view.map
    if not config.learns or head is None or (config.frame != "shared" and there is None):
        return None, classifier
    if there is not None:
        features = there.forward(features)
    return linear_gradients(features, labels, *(t.to(features.device) for t in head)).mean().cpu(), classifier


def _some_of_each(labels: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return the indices of at most so many samples of each class, drawn at random."""
    order = torch.randperm(len(labels), generator=generator)
    sorted_labels, position = labels[order].sort(stable=True)
    start = torch.searchsorted(sorted_labels, sorted_labels)
    return order[position[torch.arange(len(labels)) - start < most]]


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
    reason = ""
    if name.split(":")[0] in found:
        try:
            torch.empty(0, device=name)
            return torch.device(name)
        except RuntimeError as err:  # a number that is none, or that no device has
            reason = f" ({str(err).splitlines()[0]})"
    raise ConfigError(
        f"`device` {name!r} is not on this machine, which has {found}{reason}; `auto` takes what there is"
    )


def _open(message: Message, node_config: Mapping[str, Any], node_id: int) -> tuple[Client, wire.Broadcast]:
    client = Client.of(wire.read_settings(message.content), node_config, node_id)
    broadcast = wire.read_broadcast(
        message.content, num_classes=client.num_classes, feature_dim=client.config.feature_dim
    )
    return client, broadcast


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
