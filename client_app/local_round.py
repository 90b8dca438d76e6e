"""One client's round: evaluate its model, train it, measure what the server asks for, and make the reply."""

import dataclasses
import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from client_app import without_model
from client_app.answers import Reply, view_of
from client_app.batched import Member, Trained, batchable, train_together, trains_faster_together
from client_app.client import Client
from client_app.evaluation import evaluate_model, logits_of
from client_app.own_model import accuracy_note, open_model, shared_weights, skeleton, state_to_save
from client_app.remembered import answers
from client_app.stacked import stackable
from client_app.training import LocalSettings, Statistics, extract, train
from isoproto import wire
from isoproto.config import RunConfig
from isoproto.data import ClientData, class_counts
from isoproto.errors import DivergenceError
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import Arrays, LossTerm, Measured, OwnMeans, Part, View, reported_terms
from isoproto.precision import wide
from isoproto.seeding import torch_generator
from models import FeatureModel


class Job(NamedTuple):
    """A client that is about to train, in the form that :func:`train_together` takes.

    Attributes:
        model: Says what the layers are. Its weights may already be another client's.
        member: The client's weights, and what it trains on.
        settings: How it trains.
    """

    model: FeatureModel
    member: Member
    settings: LocalSettings


RoundSteps = Generator[Job, Trained, Reply]
"""A client's round as a generator: it yields a ``Job`` when training should be batched with other clients."""


class _Start(NamedTuple):
    """A client's model just before training, and what was measured of it.

    Attributes:
        model: The client's model, with the server's weights in it.
        view: What the server sent, in the coordinates of this model's features.
        tested: The model's accuracy on the test data.
        measured: What parts measure before training, by the names of their fields.
    """

    model: FeatureModel
    view: View
    tested: wire.Evaluation
    measured: Arrays


def train_client(client: Client, broadcast: wire.Broadcast) -> Reply:
    """Run the round of a client that trains alone, see :func:`round_in_steps`."""
    steps = round_in_steps(client, broadcast)
    try:
        job = next(steps)
    except StopIteration as done:
        reply: Reply = done.value
        return reply
    return resume(steps, train_jobs([job])[0])


def train_jobs(jobs: Sequence[Job]) -> list[Trained]:
    """Train clients of one architecture as one program."""
    return train_together(jobs[0].model, [job.member for job in jobs], jobs[0].settings)


def resume(steps: RoundSteps, trained: Trained) -> Reply:
    """Hand a client's round the result of its training, and run the rest of the round."""
    try:
        steps.send(trained)
    except StopIteration as done:
        reply: Reply = done.value
        return reply
    raise AssertionError("a client trains once a round")


def trains_batched(client: Client, terms: Sequence[LossTerm]) -> bool:
    """Return whether the client trains by ``train_together``, even when no other client trains with it.

    Which clients share a worker is random, and it must not change the result. So this depends on the client alone.

    Args:
        client: The client.
        terms: What it adds to the cross-entropy.
    """
    config = client.config
    return (
        config.cohort == "on"
        and config.augment == "none"
        and config.amp == "off"
        and trains_faster_together(
            client.architecture, config.batch_size, client.data.train_x.shape[2:].numel(), client.device
        )
        and len(client.data.train_y) > 0
        and all(map(batchable, terms))
        and stackable(skeleton(client.architecture, client.spec, client.device))
    )


def round_in_steps(client: Client, broadcast: wire.Broadcast) -> RoundSteps:
    """Run one client's round. The model is saved only when the caller runs the ``save`` of the returned reply.

    The round evaluates, trains, evaluates again and measures class means. It is a generator, so that a worker can
    bring several clients to the point where they train, and then train them as one program:

    - A client that trains batched yields one ``Job``. The caller trains it and sends the ``Trained`` back.
    - Any other client trains here and yields nothing. A client without a model does not train.

    In both cases the generator's return value, ``StopIteration.value``, is the reply.

    Raises:
        DivergenceError: If training broke the model.
        ConfigError: If the settings do not fit this client.
        StateError: If its model cannot be read.
    """
    if not client.has_model:
        return without_model.answer_round(client, broadcast)
    started = time.perf_counter()
    start = _start(client, broadcast)
    terms = _terms(client.parts, start.view)
    if trains_batched(client, terms):
        spent = time.perf_counter() - started
        trained = yield _job(client, start, terms)
        with torch.no_grad():
            for name, parameter in start.model.named_parameters():
                parameter.copy_(trained.parameters[name])
        losses, running = trained.losses, trained.running
        started = time.perf_counter() - spent - trained.seconds  # leaves out the time spent waiting for other clients
    else:
        losses, running = _train(client, start, terms)
    _require_finite(client, start, losses)
    return _finish(client, broadcast, start, losses, running, started)


def _start(client: Client, broadcast: wire.Broadcast) -> _Start:
    """Load the model, and evaluate and measure what is needed before training."""
    data, parts = client.data, client.parts
    loaded = open_model(client, broadcast, before=broadcast.server_round)
    own_means = loaded.own_means
    unknown = own_means is None and any(part.needs_means for part in parts)
    early = _measuring(parts, "before")
    features = extract(loaded.model, data.train_x) if early or unknown else None
    if unknown:
        own_means = own_means_of(statistics_of(loaded.model, data, features), data)
    view = view_of(client, broadcast, own_means, loaded.modules)
    # The saved accuracy is of the model alone. In a common frame it also depends on what the server sent.
    saved = None if view.samples else loaded.tested
    tested = saved or evaluate_model(loaded.model, data, view)
    measured = _measured(early, loaded.model, data, features, view)
    return _Start(loaded.model, view, tested, measured)


def _finish(
    client: Client,
    broadcast: wire.Broadcast,
    start: _Start,
    losses: Mapping[str, float],
    running: Statistics | None,
    started: float,
) -> Reply:
    """Evaluate and measure the trained model, and make the reply.

    Args:
        client: The client.
        broadcast: What the server sent.
        start: The client just before it trained; its model is trained by now.
        losses: Mean loss terms of training.
        running: Class statistics that training gathered, if the settings ask for them.
        started: When the round began, by ``time.perf_counter``.
    """
    data, parts, model = client.data, client.parts, start.model
    late = _measuring(parts, "after")
    features = extract(model, data.train_x) if running is None or late else None
    statistics = running or statistics_of(model, data, features)
    own_means = own_means_of(statistics, data)
    # Training has changed the features, so their map into the server's frame is made anew.
    view = dataclasses.replace(start.view, own_means=own_means)
    tested = evaluate_model(model, data, view)
    remembered = answers(client, broadcast.experiment, view)
    arrays = {**start.measured, **_measured(late, model, data, features, view), **remembered.arrays}
    wanted = any(part.uses_means for part in parts)
    rows = _class_means(
        statistics if wanted else None, data, client.config.min_class_samples, client.config.feature_dim
    )
    by_class = {f.name for part in parts for f in part.sends if f.shape.startswith("P")}
    kept = own_means if any(part.needs_means for part in parts) else None
    state = state_to_save(model, view.modules, kept)
    note = accuracy_note(tested, client.test_digest)
    save = client.store(broadcast.experiment).prepare(broadcast.server_round, state, note)
    reply = wire.TrainReply(
        means=rows,
        scatter=statistics.scatter() if statistics else 0.0,
        losses={name: losses.get(name, 0.0) for name in reported_terms(parts)},
        before=start.tested,
        after=tested,
        seconds=time.perf_counter() - started,
        arrays={name: array[rows.class_ids] if name in by_class else array for name, array in arrays.items()},
        shared=shared_weights(parts, model, view.modules),
    )
    return Reply(wire.write_train_reply(reply, broadcast, client.name), _both(remembered.save, save))


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls two others."""

    def call() -> None:
        first()
        second()

    return call


def examine_client(client: Client, broadcast: wire.Broadcast) -> Reply:
    """Evaluate the client's own model as it stands after the round. Nothing is saved."""
    if not client.has_model:
        return without_model.examine(client, broadcast)
    model, modules, _, own_means = open_model(client, broadcast, before=broadcast.server_round + 1)
    if own_means is None and client.config.frame != "shared" and "prototypes" in broadcast.arrays:
        own_means = own_means_of(statistics_of(model, client.data), client.data)  # needed to map the prototypes
    evaluation = evaluate_model(model, client.data, view_of(client, broadcast, own_means, modules))
    return Reply(wire.write_evaluate_reply(evaluation, broadcast, client.name), lambda: None)


def _terms(parts: tuple[Part, ...], view: View) -> list[LossTerm]:
    """Return what parts add to the loss."""
    terms, reported = [], reported_terms(parts)
    for part in parts:
        for term in part.terms(view):
            if unknown := [name for name in term.names if name not in reported]:
                raise ValueError(
                    f"terms {unknown} are reported by no part; add them to `reports` of {type(part).__name__}"
                )
            terms.append(term)
    return terms


def _measuring(parts: Sequence[Part], when: str) -> list[Part]:
    """Return the parts that measure ``before`` or ``after`` training."""
    for part in parts:
        if part.sends and part.measures not in ("before", "after"):
            raise ValueError(
                f"{type(part).__name__} sends {[field.name for field in part.sends]} and measures it "
                f"{part.measures!r}: `measures` must be before or after"
            )
    return [part for part in parts if part.measures == when]


def _measured(
    parts: Sequence[Part], model: FeatureModel, data: ClientData, features: Tensor | None, view: View
) -> dict[str, Tensor]:
    """Return what some parts measure of a model, by the names of their fields; empty without training data."""
    if not parts or features is None or not len(features):
        return {}
    held = functools.partial(logits_of, model, data.held_x)
    trained = Measured(features, data.train_y, lambda: model.linear_head, model.head, view, held)
    return {name: array for part in parts for name, array in part.measure(trained).items()}


def statistics_of(model: FeatureModel, data: ClientData, features: Tensor | None = None) -> Statistics | None:
    """Return class statistics of the training features, by a pass in eval mode; ``None`` without training data."""
    if not len(data.train_y):
        return None
    features = extract(model, data.train_x) if features is None else features
    return Statistics.of(features, data.train_y.to(features.device), len(data.classes))


def own_means_of(statistics: Statistics | None, data: ClientData) -> OwnMeans | None:
    """Return class statistics in the form that the client keeps; ``None`` without training data."""
    if statistics is None:
        return None
    return OwnMeans(statistics.sums.mean().cpu(), _counts(statistics, data), statistics.scatter())


def _counts(statistics: Statistics, data: ClientData) -> Tensor:
    """Return the samples of each class that the statistics describe, ``[C]``.

    Do not use ``statistics.sums.count``: running statistics count a sample once per epoch, and fixed batches skip some.
    """
    counts = torch.from_numpy(class_counts(data.train_y, len(data.classes)))
    return counts * statistics.sums.present.cpu()


def _train(client: Client, start: _Start, terms: Sequence[LossTerm]) -> tuple[dict[str, float], Statistics | None]:
    if not len(client.data.train_y):
        return {}, None
    settings = local_settings(client.config)
    return train(start.model, client.data, settings, terms, _batch_order(client, start.view))


def _job(client: Client, start: _Start, terms: Sequence[LossTerm]) -> Job:
    member = Member(
        parameters={name: parameter.detach().clone() for name, parameter in start.model.named_parameters()},
        data=client.data,
        generator=_batch_order(client, start.view),
        terms=tuple(terms),
    )
    return Job(start.model, member, local_settings(client.config))


def local_settings(config: RunConfig) -> LocalSettings:
    """Return the settings that local training needs."""
    return LocalSettings(**{f.name: getattr(config, f.name) for f in dataclasses.fields(LocalSettings)})


def _batch_order(client: Client, view: View) -> torch.Generator:
    return torch_generator(client.config.seed, "batches", view.server_round, client.name)


def _require_finite(client: Client, start: _Start, losses: Mapping[str, float]) -> None:
    """Refuse models that training has broken. They are not saved, so the next round starts from the last good ones.

    Raises:
        DivergenceError: If a tensor holds NaN or infinity.
    """
    config = client.config
    saved = state_to_save(start.model, start.view.modules, None)
    state = {name: t for name, t in saved.items() if t.is_floating_point()}
    if broken := _broken_tensors(state):
        raise DivergenceError(
            f"client {client.name}: training {client.architecture!r} diverged, {len(broken)} of {len(state)} tensors "
            f"hold NaN or infinity (losses {dict(losses)}); its model of the round before is kept. Lower "
            f"`learning-rate` ({config.learning_rate:g}), or `lambda` ({config.lambda_}) and `gamma` ({config.gamma})"
        )


def _broken_tensors(state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that hold NaN or infinity."""
    # One pass over all tensors: in this precision the sum cannot overflow, so it is finite exactly if every number is.
    if bool(torch.cat([t.flatten() for t in state.values()]).sum(dtype=wide(next(iter(state.values())))).isfinite()):
        return []
    return [name for name, t in state.items() if not bool(t.isfinite().all())]


def _class_means(statistics: Statistics | None, data: ClientData, minimum: int, width: int) -> ClassRows:
    """Return the class means, of width ``width``, of the classes with at least ``minimum`` training samples."""
    samples = len(data.train_y)
    if statistics is None:
        empty = torch.zeros(0, dtype=torch.int64)
        return ClassRows(empty, torch.zeros(0, width), empty, samples)
    held = _counts(statistics, data)
    ids = torch.nonzero(held >= minimum).flatten()
    return ClassRows(ids, statistics.sums.mean().cpu()[ids], held[ids], samples)
