"""Several clients in one message: what a worker of a simulation answers for, one after the other."""

import pytest
from flwr.app import ConfigRecord

import client_app.local_round
from client_app.store import ClientStore
from isoproto.engines.host import Host
from isoproto.errors import FederationError, StateError
from strategies import PrototypeStrategy
from strategies.exchange import Exchange
from tests import fakes
from tests.fakes import When, altered


@pytest.fixture(autouse=True)
def _one_worker(federation, monkeypatch):
    """All nodes answer from one worker, as in a simulation on one core, and no client takes long."""
    federation.host = Host(simulated=True, worker=7)
    cost = Exchange._cost
    monkeypatch.setattr(Exchange, "_cost", lambda self, client: cost(self, client) and 0.01)


def trained(grid, server_round):
    """Return the nodes that got a train message."""
    return [client for kind, number, client in grid.sent if (kind, number) == ("train", server_round)]


def test_they_change_nothing_but_the_number_of_messages(federation, plain):
    grid = federation.grid()
    run = federation.run(grid)
    assert run.steady() == plain.steady()
    # In round 1 nobody knows how long a client takes. Later all four together take less than a message may.
    assert [len(trained(grid, r)) for r in (1, 2, 3)] == [4, 1, 1]


@pytest.mark.parametrize("nodes", [1, 3, 4])
def test_clients_do_not_depend_on_how_many_nodes_stand_for_them(federation, plain, nodes):
    grid = federation.grid(clients=nodes)
    run = federation.run(grid, {"clients": 4})
    assert run.steady() == plain.steady()
    assert [kind for kind, _, _ in grid.sent].count("query") == nodes


def test_a_node_that_is_left_without_a_client_is_refused(federation):
    run = federation.run(settings={"clients": 3, "rounds": 1})
    assert set(run.failures()) == {(0, "node 10003")}
    assert "`clients = 3` leaves none for node 3 of 4" in run.failures()[0, "node 10003"]
    assert run.cohorts() == [["0", "1", "2"]]


def test_a_client_that_cannot_take_part_is_no_loss_of_the_others_of_its_node(federation, tmp_path):
    own = tmp_path / "broken.py"
    own.write_text("def net(spec): raise ValueError('no such layer')\n")
    settings = {"clients": 4, "models": f"tiny_cnn,mlp,{own}:net", "wait-timeout": 2.0}
    run = federation.run(federation.grid(clients=1), settings)
    assert run.cohorts() == [["0", "1", "3"]] * 3
    assert "ConfigError: model" in run.failures()[0, "2"]
    assert "no such layer" in run.failures()[0, "2"]


def test_a_node_that_is_not_simulated_is_one_client(federation, plain):
    """In one process there is no worker, and a device cares for no such setting of the server."""
    federation.host = Host(simulated=True, worker=0)
    assert federation.run(settings={"clients": 9}).steady() == plain.steady()


def test_a_worker_that_does_not_see_the_servers_state_folder_starts_no_client_anew(federation, monkeypatch):
    """As on another machine of a Ray cluster, when `state-dir` is not shared."""
    federation.run()
    monkeypatch.setattr("isoproto.paths.is_marked", lambda *_: False)
    with pytest.raises(FederationError, match=r"the state folder .* is not the one of the machine that the run was"):
        federation.run()


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda c: c["1/config"].update({"worker": 0}), "not simulated has one client; this one answers for"),
        (lambda c: c["1/config"].update({"client": "0"}), "not simulated has one client; this one answers for"),
        (lambda c: c["1/config"].update({"train-counts": [1]}), "'train-counts': expected 4"),
        (lambda c: c.update({"9/failure": ConfigRecord({"reason": "no"})}), "not simulated has one client"),
    ],
)
def test_a_node_with_several_names_that_cannot_be_is_refused(federation, forge, reason):
    grid = federation.grid((altered(forge), When("query", clients=[0])), clients=1)
    with pytest.raises(FederationError, match=reason):
        federation.run(grid, {"clients": 4, "min-nodes": 1})


def test_one_that_fails_is_one_failed_client(federation, monkeypatch):
    evaluate, prepare = client_app.local_round.evaluate_model, ClientStore.prepare

    def breaks(model, data, view):
        if (view.client, view.server_round) == ("1", 2):
            raise RuntimeError("out of\nmemory")
        return evaluate(model, data, view)

    def full():
        raise StateError("cannot write: no space")

    def fills(self, server_round, tensors, note):
        return full if (self.client, server_round) == ("2", 2) else prepare(self, server_round, tensors, note)

    monkeypatch.setattr(client_app.local_round, "evaluate_model", breaks)
    monkeypatch.setattr(ClientStore, "prepare", fills)
    run = federation.run()
    assert run.failures() == {
        (2, "1"): "the client failed: RuntimeError: out of memory",
        (2, "2"): "the client failed: StateError: cannot write: no space",
    }
    assert run.cohorts() == [["0", "1", "2", "3"], ["0", "3"], ["0", "1", "2", "3"]]


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        (altered(lambda c: c.pop("2/config")), {"2": r"no ConfigRecord 'config' in the message"}),
        (altered(lambda c: c["3/config"].update({"round": 1})), {"3": "config 'round': expected 2, got 1"}),
        (altered(lambda c: c["1/config"].update({"client": "0"})), {"1": "config 'client': expected '1', got '0'"}),
        (
            altered(lambda c: c.update({"9/config": ConfigRecord()})),
            dict.fromkeys("0123", "unexpected records '9/config'"),
        ),
        (fakes.raising("MemoryError"), dict.fromkeys("0123", "the client failed: MemoryError")),
        (fakes.dropped, dict.fromkeys("0123", "no reply within 0.5 s")),
    ],
)
def test_a_bad_part_is_one_failed_client_and_a_bad_message_all_of_them(federation, fault, reasons):
    run = federation.run(federation.grid((fault, When("train", [2]))), {"round-timeout": 0.5})
    failures = run.failures()
    assert set(failures) == {(2, client) for client in reasons}
    assert all(reason in failures[2, client] for client, reason in reasons.items())
    assert len(run.cohorts()[2]) == 4


def test_a_real_node_answers_for_itself_alone(federation, monkeypatch):
    """A server that asks a device for others' work is refused, whatever the device said before."""
    meet, alone = PrototypeStrategy.meet, Host(simulated=True, worker=0)
    monkeypatch.setattr(PrototypeStrategy, "meet", lambda *a, **k: (meet(*a, **k), setattr(federation, "host", alone)))
    with pytest.raises(FederationError, match="the only round had fewer than 1 good replies"):
        federation.run(settings={"rounds": 1, "max-empty-rounds": 9})
    run = federation.newest()
    assert len(run.of("failure")) == 8  # the evaluation before the round, and the round
    assert all("a real node answers for itself alone" in reason for reason in run.failures().values())
