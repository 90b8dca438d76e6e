"""One client's round: evaluate its model, train it, measure what the server asks for, and make the reply."""

import dataclasses
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from client_app.batched import Member, Trained, pays, train_cohort
from client_app.client import Client
from client_app.evaluation import evaluate_model
from client_app.own_model import accuracy_note, open_model, shared_weights, state_to_save
from client_app.training import (
    Alignment,
    Anchoring,
    LocalSettings,
    Statistics,
    extract,
    train,
)
from client_app.view import Own, View, needs_own, wants_gradients
from isoproto import wire
from isoproto.config import RunConfig
from isoproto.data import ClientData, class_counts
from isoproto.errors import DivergenceError
from isoproto.geometry.prototypes import Contribution
from isoproto.losses import LOSSES
from isoproto.matching.classifier_retrain import classifier_gradients
from isoproto.matching.feature_gradients import linear_gradients
from isoproto.precision import wide
from isoproto.seeding import torch_generator
from models import FeatureModel


class Reply(NamedTuple):
    """A reply, and the function that saves the model; call it before sending the reply."""

    content: RecordDict
    save: Callable[[], None]


class Job(NamedTuple):
    """A client that is about to train, in the form that :func:`train_cohort` takes.

    Attributes:
        model: Says what the layers are. Its weights may already be another client's.
        member: The client's weights, and what it trains on.
        settings: How it trains.
    """

    model: FeatureModel
    member: Member
    settings: LocalSettings


Training = Generator[Job, Trained, Reply]
"""A client's round as a generator: it yields a ``Job`` when training should be batched with other clients."""

ClassGradients = tuple[Tensor | None, tuple[Tensor, Tensor] | None]
"""Mean gradients of each class by the features ``[C, d]``, and by the classifier's weight and bias."""


class _Start(NamedTuple):
    """A client just before it trains.

    Attributes:
        model: Its model, with the server's weights in it.
        view: What the server sent, in the coordinates of this model's features.
        tested: The model's accuracy on the test data.
        gradients: Class gradients, if the run measures them before training.
    """

    model: FeatureModel
    view: View
    tested: wire.Evaluation
    gradients: ClassGradients


def train_client(client: Client, broadcast: wire.Broadcast) -> Reply:
    """Run the round of a client that trains alone, see :func:`training`."""
    steps = training(client, broadcast)
    try:
        job = next(steps)
    except StopIteration as done:
        reply: Reply = done.value
        return reply
    return resume(steps, train_jobs([job])[0])


def train_jobs(jobs: Sequence[Job]) -> list[Trained]:
    """Train clients of one architecture as one program."""
    return train_cohort(jobs[0].model, [job.member for job in jobs], jobs[0].settings)


def resume(steps: Training, trained: Trained) -> Reply:
    """Hand a client's round the result of its training, and run the rest of the round."""
    try:
        steps.send(trained)
    except StopIteration as done:
        reply: Reply = done.value
        return reply
    raise AssertionError("a client trains once a round")


def trains_batched(client: Client) -> bool:
    """Whether the client trains by ``train_cohort``, also when no other client trains with it.

    Which clients share a worker is random, and it must not change the result. So this depends on the client alone.
    """
    config = client.config
    return (
        config.cohort == "on"
        and config.augment == "none"
        and config.amp == "off"
        and not client.spec.head.hidden
        and pays(client.architecture, config.batch_size, client.data.train_x.shape[2:].numel(), client.device)
        and len(client.data.train_y) > 0
    )


def training(client: Client, broadcast: wire.Broadcast) -> Training:
    """Run one client's round. The model is saved only when the caller runs the ``save`` of the returned reply.

    The round evaluates, trains, evaluates again and measures class means. It is a generator, so that a worker can
    bring several clients to the point where they train, and then train them as one program:

    - A client that trains batched yields one ``Job``. The caller trains it and sends the ``Trained`` back.
    - Any other client trains here and yields nothing.

    In both cases the generator's return value, ``StopIteration.value``, is the reply.

    Raises:
        DivergenceError: If training broke the model.
        ConfigError: If the settings do not fit this client.
        StateError: If its model cannot be read.
    """
    started = time.perf_counter()
    start = _start(client, broadcast)
    if trains_batched(client):
        spent = time.perf_counter() - started
        trained = yield _job(client, start.model, start.view)
        with torch.no_grad():
            for name, parameter in start.model.named_parameters():
                parameter.copy_(trained.parameters[name])
        losses, running = trained.losses, trained.running
        started = time.perf_counter() - spent - trained.seconds  # without waiting for the other clients
    else:
        losses, running = _train(client, start.model, start.view)
    _require_finite(client, start.model, losses)
    return _finish(client, start, losses, running, started)


def _start(client: Client, broadcast: wire.Broadcast) -> _Start:
    """Load the model, and evaluate and measure what is needed before training."""
    config, data = client.config, client.data
    model, tested, own = open_model(client, broadcast, before=broadcast.server_round)
    early = _early_gradients(config)
    unknown = own is None and needs_own(config)
    features = extract(model, data.train_x) if early or unknown else None
    if unknown:
        own = own_statistics(measure(model, data, features), data)
    view = View(config, client.name, broadcast, own)
    if tested is None:
        tested = evaluate_model(model, data, view)
    gradients: ClassGradients = (None, None)
    if features is not None and early:
        gradients = class_gradients(client, model, view, features)
    return _Start(model, view, tested, gradients)


def _finish(
    client: Client, start: _Start, losses: dict[str, float], running: Statistics | None, started: float
) -> Reply:
    """Evaluate and measure the trained model, and make the reply.

    Args:
        client: The client.
        start: The client just before it trained; its model is trained by now.
        losses: Mean loss terms of training.
        running: Class statistics that training gathered, if the run takes those.
        started: When the round began.
    """
    config, data, model = client.config, client.data, start.model
    late = wants_gradients(config) and not _early_gradients(config)
    features = extract(model, data.train_x) if running is None or late else None
    statistics = running or measure(model, data, features)
    own = own_statistics(statistics, data)
    # Features have moved, and so has their map into the server's frame.
    view = dataclasses.replace(start.view, own=own)
    tested = evaluate_model(model, data, view)
    gradients, heads = start.gradients
    if features is not None and late:
        gradients, heads = class_gradients(client, model, view, features)
    broadcast, contribution = view.broadcast, _contribution(statistics, data, config)
    state = state_to_save(model, own if needs_own(config) else None)
    note = accuracy_note(tested, client.test_digest)
    save = client.store(broadcast.experiment).prepare(broadcast.server_round, state, note)
    ids = contribution.class_ids
    reply = wire.TrainReply(
        contribution=contribution,
        scatter=statistics.scatter() if statistics else 0.0,
        losses=losses,
        before=start.tested,
        after=tested,
        seconds=time.perf_counter() - started,
        gradients=None if gradients is None else gradients[ids],
        classifier=None if heads is None else (heads[0][ids], heads[1][ids]),
        shared=shared_weights(model, config.share),
    )
    return Reply(wire.write_train_reply(reply, broadcast, client.name), save)


def examine_client(client: Client, broadcast: wire.Broadcast) -> Reply:
    """Evaluate the client's own model as it stands after the round. Nothing is saved."""
    model, _, own = open_model(client, broadcast, before=broadcast.server_round + 1)
    if own is None and client.config.frame != "shared" and broadcast.prototypes is not None:
        own = own_statistics(measure(model, client.data), client.data)  # else the prototypes could not be mapped
    evaluation = evaluate_model(model, client.data, View(client.config, client.name, broadcast, own))
    return Reply(wire.write_evaluate_reply(evaluation, broadcast, client.name), lambda: None)


def _early_gradients(config: RunConfig) -> bool:
    """Whether the run measures class gradients before training, and not after it."""
    return wants_gradients(config) and config.hyper__grad_point == "before-training"


def measure(model: FeatureModel, data: ClientData, features: Tensor | None = None) -> Statistics | None:
    """Return class statistics of the training features, by a pass in eval mode; ``None`` without training data."""
    if not len(data.train_y):
        return None
    features = extract(model, data.train_x) if features is None else features
    return Statistics.of(features, data.train_y.to(features.device), len(data.classes))


def own_statistics(statistics: Statistics | None, data: ClientData) -> Own | None:
    """Return class statistics in the form that the client keeps; ``None`` without training data."""
    if statistics is None:
        return None
    return Own(statistics.sums.mean().cpu(), _counts(statistics, data), statistics.scatter())


def _counts(statistics: Statistics, data: ClientData) -> Tensor:
    """Return the samples of each class that the statistics describe, ``[C]``.

    Do not use ``statistics.sums.count``: running statistics count a sample once per epoch, and fixed batches skip some.
    """
    counts = torch.from_numpy(class_counts(data.train_y, len(data.classes)))
    return counts * statistics.sums.present.cpu()


def class_gradients(client: Client, model: FeatureModel, view: View, features: Tensor) -> ClassGradients:
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


def _train(client: Client, model: FeatureModel, view: View) -> tuple[dict[str, float], Statistics | None]:
    if not len(client.data.train_y):
        return {}, None
    return train(
        model,
        client.data,
        local_settings(client.config),
        _alignment(view, client),
        _batch_order(view),
        _anchoring(view, client),
    )


def _job(client: Client, model: FeatureModel, view: View) -> Job:
    member = Member(
        parameters={name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        data=client.data,
        alignment=_alignment(view, client),
        generator=_batch_order(view),
        anchoring=_anchoring(view, client),
    )
    return Job(model, member, local_settings(client.config))


def local_settings(config: RunConfig) -> LocalSettings:
    """Return the settings that local training needs."""
    return LocalSettings(**{f.name: getattr(config, f.name) for f in dataclasses.fields(LocalSettings)})


def _batch_order(view: View) -> torch.Generator:
    return torch_generator(view.config.seed, "batches", view.broadcast.server_round, view.client)


def _require_finite(client: Client, model: FeatureModel, losses: Mapping[str, float]) -> None:
    """Refuse a model that training has broken. It is not saved, so the next round starts from the last good one.

    Raises:
        DivergenceError: If a tensor holds NaN or infinity.
    """
    config = client.config
    if broken := _broken_tensors(model):
        tensors = sum(t.is_floating_point() for t in model.state_dict().values())
        raise DivergenceError(
            f"client {client.name}: training {client.architecture!r} diverged, {len(broken)} of {tensors} tensors "
            f"hold NaN or infinity (losses {dict(losses)}); its model of the round before is kept. Lower "
            f"`learning-rate` ({config.learning_rate:g}), or `lambda` ({config.lambda_}) and `gamma` ({config.gamma})"
        )


def _broken_tensors(model: FeatureModel) -> list[str]:
    """Return the names of the model's tensors that hold NaN or infinity."""
    state = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
    # One pass over all of them: their sum is finite if each of them is, in a precision in which it cannot overflow.
    if bool(torch.cat([t.flatten() for t in state.values()]).sum(dtype=wide(next(model.parameters()))).isfinite()):
        return []
    return [name for name, t in state.items() if not bool(t.isfinite().all())]


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


def _contribution(statistics: Statistics | None, data: ClientData, config: RunConfig) -> Contribution:
    """Return the class means of the classes with at least ``min-class-samples`` training samples."""
    samples = len(data.train_y)
    if statistics is None:
        empty = torch.zeros(0, dtype=torch.int64)
        return Contribution(empty, torch.zeros(0, config.feature_dim), empty, samples)
    held = _counts(statistics, data)
    ids = torch.nonzero(held >= config.min_class_samples).flatten()
    return Contribution(ids, statistics.sums.mean().cpu()[ids], held[ids], samples)
