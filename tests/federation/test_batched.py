"""Clients that train as one program, through messages."""

import itertools

import pytest
import torch

import client_app.local_round
from isoproto.engines.host import Host
from isoproto.parts import LossTerm, Part
from strategies.exchange import Exchange
from tests.fakes import add_part

SETTINGS = {"models": "mlp,tiny_cnn", "batch-size": 10}


@pytest.fixture
def sizes(monkeypatch):
    """How many clients each program trained."""
    seen = []
    train = client_app.local_round.train_together
    monkeypatch.setattr(
        client_app.local_round, "train_together", lambda m, jobs, s: seen.append(len(jobs)) or train(m, jobs, s)
    )
    return seen


@pytest.fixture
def _one_worker(federation, monkeypatch):
    federation.host = Host(simulated=True, worker=7)
    cost = Exchange._cost
    monkeypatch.setattr(Exchange, "_cost", lambda self, client: cost(self, client) and 0.01)


def test_messages_of_many_clients_change_nothing(federation, sizes, request):
    alone = federation.run(settings=SETTINGS)
    assert sizes == [1] * 12
    request.getfixturevalue("_one_worker")
    sizes.clear()
    together = federation.run(settings=SETTINGS)
    assert together.steady() == alone.steady()
    assert sizes == [1] * 4 + [2] * 4  # in round 1 clients travel alone


def test_off_is_one_by_one(federation, sizes):
    off = federation.run(settings={**SETTINGS, "cohort": "off"})
    assert sizes == []
    assert off.cohorts() == [["0", "1", "2", "3"]] * 3


def test_models_for_which_it_does_not_pay_train_one_by_one(federation, sizes):
    federation.run(settings={"batch-size": 10, "rounds": 1})
    assert sizes == []


@pytest.mark.usefixtures("_one_worker")
def test_one_that_fails_is_one_failed_client(federation, monkeypatch):
    """Client 0 before it trains, client 3 after."""
    evaluate, calls = client_app.local_round.evaluate_model, []

    def breaks(model, data, view):
        calls.append((view.client, view.server_round))
        if (view.client, view.server_round) == ("3", 2):
            raise RuntimeError("out of\nmemory")
        return evaluate(model, data, view)

    monkeypatch.setattr(client_app.local_round, "evaluate_model", breaks)
    run = federation.run(settings=SETTINGS)
    assert run.failures() == {(2, "3"): "the client failed: RuntimeError: out of memory"}
    assert run.cohorts() == [["0", "1", "2", "3"], ["0", "1", "2"], ["0", "1", "2", "3"]]


@pytest.mark.usefixtures("_one_worker")
def test_a_program_that_fails_is_the_failure_of_its_clients(federation, monkeypatch):
    train, calls = client_app.local_round.train_together, []

    def breaks(model, members, settings):
        calls.append(len(members))
        if len(calls) == 5:  # the first program of round 2
            raise RuntimeError("no memory")
        return train(model, members, settings)

    monkeypatch.setattr(client_app.local_round, "train_together", breaks)
    run = federation.run(settings=SETTINGS)
    assert set(run.failures().values()) == {"the client failed: RuntimeError: no memory"}
    assert len(run.failures()) == 2


class Nothing(LossTerm):
    """A term that is always 0, and may change how the model is trained."""

    names = ("nothing",)
    weights = torch.ones(1)

    def __init__(self, entropy, clip):
        self.entropy, self.clip = entropy, clip

    def batches(self, labels):
        return itertools.repeat(lambda batch: 0 * batch.features.sum().view(1), len(labels))


@pytest.mark.usefixtures("_one_worker")
@pytest.mark.parametrize(("entropy", "clip", "batched"), [(1, 0, True), (0.5, 0, False), (1, 0.01, False)])
def test_a_term_that_the_program_cannot_honour_is_not_ignored(federation, sizes, monkeypatch, entropy, clip, batched):
    class Changed(Part):
        reports = Nothing.names

        @classmethod
        def of(cls, config):
            return cls()

        def terms(self, view):
            return [Nothing(entropy, clip)]

    add_part(monkeypatch, Changed)
    settings = {**SETTINGS, "models": "mlp", "strategy": "local", "rounds": 2}
    on, off = federation.run(settings=settings), federation.run(settings={**settings, "cohort": "off"})
    assert not on.failures()
    assert bool(sizes) == batched
    for one, other in zip(on.of("client"), off.of("client"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert entropy == 1 or one["loss"]["total"] < one["loss"]["cross_entropy"]
