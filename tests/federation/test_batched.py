"""Clients that train as one program, through messages."""

import pytest

import client_app.local_round
from isoproto.engines.host import Host
from strategies.exchange import Exchange

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
