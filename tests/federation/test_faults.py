"""What one client, or the server's view of it, can do wrong: a bad reply is one failed client, never a failed round."""

import json
import math
import re
import time

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from isoproto.engines.host import Host
from isoproto.engines.in_process import task_identity
from isoproto.errors import ConfigError, FederationError, StateError, WireError
from strategies.replies import content
from tests import fakes
from tests.fakes import When, altered


def clients(run, server_round):
    return [line["client"] for line in run.of("client", round=server_round)]


def edit(record, key, value):
    def change(content):
        content[record][key] = value

    return altered(change)


def rows_of(value):
    """Fill the reply's prototypes with a value."""

    def change(content):
        shape = content["arrays"]["proto"].shape
        content["arrays"]["proto"] = Array(np.full(shape, value, "float32"))

    return altered(change)


def zero_counts(content):
    content["arrays"]["count"] = Array(np.zeros(content["arrays"]["count"].shape, "int64"))


def no_samples(content):
    """What a client without data answers."""
    for name, dtype, shape in (("class-ids", "int32", (0,)), ("proto", "float32", (0, 8)), ("count", "int64", (0,))):
        content["arrays"][name] = Array(np.zeros(shape, dtype))
    content["metrics"]["samples"] = 0


BAD = {
    "raises": (
        fakes.raising("RuntimeError: out of\nmemory (app.py:7)"),
        r"the client failed: RuntimeError: out of memory",
    ),
    "is silent": (fakes.dropped, r"no reply within 0.5 s \(`round-timeout`\)"),
    "is late": (fakes.delayed(60), r"no reply within 0.5 s \(`round-timeout`\)"),
    "sends NaN": (rows_of(math.nan), r"array 'proto' holds NaN or infinity, shape \(4, 8\); the model has diverged"),
    "sends giants": (rows_of(1e30), r"array 'proto': row of class 0 has norm .*, `max-norm` is 1e\+06"),
    "counts nothing": (altered(zero_counts), r"array 'count': expected 1\.\."),
    "says NaN": (edit("metrics", "loss-total", math.nan), r"metric 'loss-total': expected a finite number, got nan"),
    "replays": (fakes.replayed(1), r"config 'round': expected 2, got 1"),
    "is another": (edit("config", "client", "2"), r"config 'client': expected '9', got '2'"),
    "is old": (edit("config", "schema", 0), r"wire schema 0, this side speaks 1"),
    "adds weights": (
        altered(lambda content: content.__setitem__("model", content["arrays"])),
        r"carries weights, but this strategy shares none",
    ),
    "goes away": (fakes.gone, "its node went away: the SuperLink does not hear from it any more"),
}


def test_a_bad_reply_is_one_failed_client_with_a_reason(federation):
    """Client 0 is honest; in round 2 each of the others is bad in its own way."""
    reasons = dict(enumerate((reason for _, reason in BAD.values()), start=1))
    faults = [(fault, When("train", [2], [i])) for i, (fault, _) in enumerate(BAD.values(), start=1)]
    run = federation.run(
        federation.grid(*faults, clients=len(BAD) + 1), {"round-timeout": 0.5, "partition": "iid", "models": "cnn"}
    )
    everybody = [str(i) for i in range(len(BAD) + 1)]
    assert run.cohorts() == [everybody, ["0"], everybody]
    assert list(run.failures()) == [(2, client) for client in everybody[1:]]
    for i, reason in reasons.items():
        told = run.failures()[2, str(i)]
        assert re.search(reason, told)
        assert {"client": str(i), "round": 2, "reason": told} in run.summary["clients"]["failed"]
        alike = [client for (_, client), other in run.failures().items() if other == told]
        who = f"client{'s' if len(alike) > 1 else ''} {', '.join(alike)}"
        assert re.search(rf"WARNING round 2, {who}: .*{reason}", run.log)
    (line,) = run.of("round", round=2)
    assert (line["clients"], line["failed"]) == (len(BAD) + 1, len(BAD))
    assert run.summary["status"] == "completed"
    assert all(torch.isfinite(tensor).all() for tensor in run.server().values())


OVER = {"fraction": 0.5, "over-sample": 0.5, "rounds": 1, "round-timeout": 1.0}


@pytest.mark.parametrize(
    ("slow", "failing", "trained", "failed"),
    [([], [], 3, 0), ([0], [], 2, 0), ([0], [1], 1, 2), ([], [1], 2, 1), ([0, 1], [], 1, 2)],
)
def test_over_sampling_asks_more_and_does_not_wait_for_the_slowest(federation, slow, failing, trained, failed):
    """Of four clients two are wanted and three are asked, drawn by the seed; some of those are slow, or fail."""
    drawn = [int(client) for client in federation.run(settings={**OVER, "round-timeout": 5.0}).cohorts()[0]]
    faults = [(fakes.delayed(60), When("train", None, [drawn[i]])) for i in slow]
    faults += [(fakes.raising("no"), When("train", None, [drawn[i]])) for i in failing]
    run = federation.run(federation.grid(*faults), OVER)
    (line,) = run.of("round")
    assert (line["clients"], len(run.of("client")), line["failed"]) == (3, trained, failed)
    assert len(run.failures()) == failed


def test_over_sampling_is_refused_in_a_simulation(federation):
    federation.host = Host(simulated=True, worker=7)
    with pytest.raises(ConfigError, match=r"`over-sample` leaves the slowest nodes behind.* set over-sample = 0 there"):
        federation.run(settings=OVER)


def test_the_bad_reply_leaves_no_trace_in_the_result(federation):
    """Whatever client 1 sends, the prototypes are those of the other three."""
    sent_nothing, sent_nan, sent_giants = (
        federation.run(federation.grid((fault, When("train", None, [1]))), {"rounds": 1, "round-timeout": 0.3}).server()
        for fault in (fakes.lost, rows_of(math.nan), rows_of(1e30))
    )
    for name, tensor in sent_nothing.items():
        assert torch.equal(tensor, sent_nan[name])
        assert torch.equal(tensor, sent_giants[name])


@pytest.mark.parametrize("value", [3e38, -200.0])
def test_weights_no_network_has_leave_no_trace_in_the_average(federation, value):
    def poisoned(content):
        for name, array in content["model"].items():
            content["model"][name] = Array(np.full(array.shape, value).astype(array.dtype))

    chosen = {"strategy": "fedavg", "models": "mlp", "rounds": 1, "round-timeout": 3.0}
    sent_nothing, sent_poison = (
        federation.run(federation.grid((fault, When("train", None, [1]))), chosen)
        for fault in (fakes.lost, altered(poisoned))
    )
    assert "among the shared weights: root mean square" in sent_poison.failures()[1, "1"]
    for name, tensor in sent_nothing.server().items():
        assert torch.equal(tensor, sent_poison.server()[name])


def test_control_characters_of_a_client_reach_neither_log_nor_files(federation):
    run = federation.run(federation.grid((fakes.raising("a\x1b[31m\r\u202eb"), When("train", [1], [0]))), {"rounds": 1})
    for text in (run.log, (run.path / "metrics.jsonl").read_text(), (run.path / "summary.json").read_text()):
        assert "\x1b" not in text
        assert "\\u001b" not in text
        assert "\u202e" not in text
        assert "\\u202e" not in text


@pytest.mark.parametrize(("fault", "node"), [(fakes.twice, 10_003), (fakes.from_node(77), 77)])
def test_replies_that_nobody_waits_for_are_ignored(federation, plain, fault, node):
    """Every reply of client 3 comes twice, or with a copy that claims to be from a node nobody asked."""
    run = federation.run(federation.grid((fault, When(None, None, [3]))))
    assert run.steady() == plain.steady()
    assert run.log.count(f"ignored a reply of node {node} that nobody waits for") == 1 + 3 + 2


def test_a_client_that_fails_now_and_then_goes_on_from_its_own_model(federation):
    """Client 0 worked in round 2 and its reply was lost: that was its round, and nobody trains twice."""
    run = federation.run(federation.grid((fakes.lost, When("train", [2], [0]))), {"round-timeout": 0.3})
    assert set(run.failures()) == {(2, "0")}
    assert run.cohorts() == [["0", "1", "2", "3"], ["1", "2", "3"], ["0", "1", "2", "3"]]


# Empty rounds


def test_nobody_answers_ends_the_run_after_some_empty_rounds(federation):
    faults = [(fakes.raising("RuntimeError: boom"), When("train", range(2, 99)))]
    with pytest.raises(
        FederationError, match=r"2 rounds in a row had fewer than 1 good replies.*4 x the client failed: Run"
    ):
        federation.run(federation.grid(*faults), {"rounds": 9, "max-empty-rounds": 2})
    run = federation.newest()
    assert (run.summary["status"], run.summary["rounds"]) == ("failed", 9)
    assert run.summary["reason"].startswith("FederationError: 2 rounds in a row")
    assert [line["round"] for line in run.of("round")] == [1, 2, 3]
    assert len(run.failures()) == 8


@pytest.mark.parametrize("fault", [altered(zero_counts), fakes.dropped], ids=["counts 0", "silent"])
def test_an_empty_round_changes_nothing_and_the_next_is_normal(federation, fault):
    """R044, R046: the last good prototypes stay in use."""
    run = federation.run(federation.grid((fault, When("train", [2]))), {"max-empty-rounds": 2, "round-timeout": 0.5})
    assert list(map(len, run.cohorts())) == [4, 0, 4]
    assert run.summary["status"] == "completed"
    assert [line["classes"] for line in run.of("round")] == [4, 4, 4]
    assert all(line["loss"]["prototype"] > 0 for line in run.of("client", round=3))
    assert "round 2 is empty and changes nothing: " in run.log


@pytest.mark.parametrize("strategy", ["fedsaf", "fedavg"])
def test_a_round_of_clients_without_data_is_an_empty_one(federation, strategy):
    """R044, R046: all weights are zero. Nothing is divided by zero, and it is told."""
    chosen = {"strategy": strategy, "models": "cnn"}
    run = federation.run(federation.grid((altered(no_samples), When("train", [2]))), chosen)
    assert run.summary["status"] == "completed"
    assert "round 2 is empty and changes nothing: 4 x the client has no training samples" in run.log
    assert all(torch.isfinite(t).all() for t in run.server().values() if t.is_floating_point())


def test_a_federation_without_data_ends(federation):
    with pytest.raises(
        FederationError, match=r"3 rounds in a row .*the last one: 4 x the client has no training sampl"
    ):
        federation.run(federation.grid((altered(no_samples), When("train"))), {"models": "cnn"})


def test_a_client_without_data_has_no_weight_in_the_average(federation):
    """R043: whatever weights it sends, they count for nothing."""

    def poisoned(content):
        no_samples(content)
        for name, array in content["model"].items():
            content["model"][name] = Array(np.full(array.shape, 99, array.dtype))

    grid = federation.grid((altered(poisoned), When("train", None, [0])))
    run = federation.run(grid, {"strategy": "fedavg", "models": "cnn", "rounds": 1})
    assert run.failures() == {}
    assert max(t.abs().max().item() for n, t in run.server().items() if n.startswith("shared.")) < 10


def test_empty_rounds_in_a_row_are_counted_from_the_last_good_one(federation):
    faults = [(fakes.raising("RuntimeError: x"), When("train", [1, 3, 5]))]
    run = federation.run(federation.grid(*faults, clients=2), {"rounds": 6, "max-empty-rounds": 2})
    assert run.summary["status"] == "completed"


def test_too_few_good_replies_are_an_empty_round(federation):
    grids = (federation.grid((fakes.raising("RuntimeError: x"), When("train", [2], [0, 1]))) for _ in range(2))
    three, two = (federation.run(grid, {"rounds": 2, "min-replies": n}) for grid, n in zip(grids, (3, 2), strict=True))
    first = federation.run(settings={"rounds": 1})
    assert torch.equal(three.server()["prototypes"], first.server()["prototypes"])
    assert not torch.equal(two.server()["prototypes"], first.server()["prototypes"])


# Evaluation


def test_a_failed_evaluation_is_a_failed_client_with_a_reason(federation):
    run = federation.run(federation.grid((edit("metrics", "after-correct", 10**6), When("evaluate", [3], [2]))))
    assert list(run.failures()) == [(3, "2")]
    assert "metric 'after-correct': 1000000 right of" in run.failures()[3, "2"]
    assert [c["client"] for c in run.of("evaluation", round=3)[0]["clients"]] == ["0", "1", "3"]


def test_an_evaluation_nobody_answers_leaves_the_last_known_figures(federation):
    run = federation.run(federation.grid((fakes.raising("RuntimeError: x"), When("evaluate", [3]))))
    assert len(run.failures()) == 4
    assert run.summary["status"] == "completed"
    assert run.summary["accuracy"]["mean"] == run.of("round", round=3)[0]["accuracy"]["mean"]


def test_an_evaluation_nobody_answers_before_round_1_ends_nothing(federation):
    run = federation.run(federation.grid((fakes.raising("RuntimeError: x"), When("evaluate", [0]))))
    assert run.summary["status"] == "completed"
    assert run.summary["accuracy"]["initial"] is None


# Nodes that come and go


def test_a_node_that_comes_late_takes_part_from_then_on(federation):
    """A7: it trains with the prototypes of the day."""
    grid = federation.grid(away=lambda client, newest: client == 3 and newest < 1)
    run = federation.run(grid, {"min-nodes": 3})
    assert clients(run, 1) == ["0", "1", "2"]
    assert clients(run, 2) == clients(run, 3) == ["0", "1", "2", "3"]
    (late,) = [line for line in run.of("client", round=2) if line["client"] == "3"]
    assert late["loss"]["prototype"] > 0
    assert run.summary["clients"]["evaluated"] == 4


def test_a_node_that_goes_is_not_asked_and_keeps_its_last_accuracy(federation):
    run = federation.run(federation.grid(away=lambda client, newest: client == 3 and newest >= 1))
    assert clients(run, 1) == ["0", "1", "2", "3"]
    assert clients(run, 2) == clients(run, 3) == ["0", "1", "2"]
    assert run.failures() == {}
    assert run.of("round", round=3)[0]["accuracy"]["evaluated"] == 4
    assert [c["client"] for c in run.of("evaluation", round=3)[0]["clients"]] == ["0", "1", "2"]


def test_a_node_that_comes_back_under_another_id_goes_on(federation, plain):
    """A SuperNode without a fixed key has a new node id after each start; its client and its model are the same."""
    run = federation.run(federation.grid((fakes.restarted, When("train", [1], [2]))))
    assert run.failures() == {}
    assert run.steady() == plain.steady()


def test_a_round_with_too_few_nodes_says_how_many_replies_it_had(federation):
    run = federation.run(federation.grid(away=lambda client, newest: client > 0 and newest == 1), {"min-replies": 2})
    assert "round 2 is empty and changes nothing: 1 of 2 good replies (`min-replies`)\n" in run.log


def test_all_nodes_gone_are_empty_rounds(federation):
    with pytest.raises(FederationError, match=r"3 rounds in a row .*; the last one: nobody was asked"):
        federation.run(federation.grid(away=lambda client, newest: newest >= 1), {"rounds": 9})


@pytest.fixture
def deployment(monkeypatch):
    """Have the server take the grid for one of machines that come and go."""
    monkeypatch.setattr("isoproto.engines.prompt_grid.HttpGrid", fakes.FaultyGrid)


@pytest.mark.usefixtures("deployment")
def test_waiting_for_nodes_has_an_end(federation):
    grid = federation.grid(away=lambda client, newest: client > 1)
    told = r"2 of 3 nodes came that can take part within 0.3 s \(`wait-timeout`\)\. Start the missing nodes"
    with pytest.raises(FederationError, match=told):
        federation.run(grid, {"min-nodes": 3, "wait-timeout": 0.3})


@pytest.mark.usefixtures("deployment")
def test_all_partitions_are_waited_for(federation):
    grid = federation.grid(away=lambda client, newest: client == 0)
    with pytest.raises(FederationError, match="3 of 4 nodes came"):
        federation.run(grid, {"wait-timeout": 0.3})


def unfit(federation, *clients, **others):
    """Return a grid of three devices with data of their own, some of which cannot take part."""
    grid = federation.grid(clients=3, **others)
    for client in range(3):
        config = grid.context(client).node_config
        config.clear()
        config.update(
            {"name": f"ward-{client}", "data": "npz:/none.npz" if client in clients else federation.settings["data"]}
        )
    return grid


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("settings", [{"min-nodes": 2}, {}], ids=["said", "by default"])
def test_a_refused_device_does_not_count(federation, monkeypatch, settings):
    """Two unfit ones would start a federation of one."""
    monkeypatch.setattr("strategies.roster._NODE_NOTICE", 0.0)
    told = r"1 of 2 nodes came .* within 0.3 s .*; refused: node 10001, node 10002 \(.* mend the refused ones"
    with pytest.raises(FederationError, match=told):
        federation.run(unfit(federation, 1, 2), {"wait-timeout": 0.3, **settings})
    assert "waiting for nodes: 1 of 2 are there; refused: node 10001, node 10002\n" in federation.newest().log


@pytest.mark.usefixtures("deployment")
def test_a_device_that_comes_in_place_of_refused_ones_is_waited_for(federation):
    came = time.monotonic() + 0.5
    grid = unfit(federation, 0, 1, away=lambda client, newest: client == 2 and time.monotonic() < came)
    run = federation.run(grid, {"min-nodes": 1, "rounds": 1})
    assert clients(run, 1) == ["ward-2"]


@pytest.mark.parametrize("refused", [1, 3])
def test_a_simulation_whose_nodes_have_all_answered_waits_for_nobody(federation, refused):
    began = time.monotonic()
    grid = federation.grid(apps=dict.fromkeys(range(refused), foreign))
    with pytest.raises(
        FederationError, match=rf"{4 - refused} of 4 nodes came that can take part; refused: node 10000"
    ):
        federation.run(grid, {"min-nodes": 4, "wait-timeout": 60.0})
    run = federation.run(grid, {"rounds": 1, "wait-timeout": 60.0})
    assert clients(run, 1) == [str(client) for client in range(refused, 4)]
    assert time.monotonic() - began < 30


def test_one_node_that_cannot_be_used_ends_a_simulation(federation):
    with pytest.raises(FederationError, match="none of 1 nodes can take part"):
        federation.run(federation.grid(clients=1, apps={0: foreign}), {"wait-timeout": 60.0})


def test_a_late_node_that_does_not_answer_holds_no_round_longer_than_a_slow_one(federation):
    late = (fakes.dropped, When("query", None, [3]))
    grid = federation.grid(late, away=lambda client, newest: client == 3 and newest < 1)
    run = federation.run(grid, {"min-nodes": 3, "wait-timeout": 60.0, "round-timeout": 1.0, "rounds": 2})
    assert run.failures() == {(2, "node 10003"): "no answer within 1 s"}
    assert clients(run, 2) == ["0", "1", "2"]


def test_a_folder_that_is_not_on_the_server_does_not_fail_a_run_that_is_over(federation, monkeypatch):
    def unreadable(*_):
        raise PermissionError(13, "Permission denied", "/data")

    monkeypatch.setattr("server_app.summary.load_dataset", unreadable)
    run = federation.run(settings={"rounds": 1})
    assert (run.summary["status"], run.summary["data_notes"]) == ("completed", [])
    assert (run.path / "flower-run").read_text() == "0"


def test_a_node_that_does_not_answer_the_query_is_left_out(federation):
    run = federation.run(federation.grid((fakes.dropped, When("query", None, [1]))), {"wait-timeout": 0.3})
    assert run.failures() == {(0, "node 10001"): "no answer within 0.3 s"}
    assert clients(run, 1) == ["0", "2", "3"]


# Clients that cannot be used

foreign = ClientApp()


@foreign.query()
def _(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.9})}), reply_to=message)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("<class 'isoproto.errors.ConfigError'>:<'client a: 'x' is wrong'>", "ConfigError: client a: 'x' is wrong"),
        ("<class 'KeyError'>:<''a''>", "KeyError: 'a'"),
        ("out of memory", "out of memory"),
    ],
)
def test_the_words_of_a_client_come_without_flowers_wrapping(told, words):
    """A SuperNode reports an exception as its class and its text in angle brackets."""
    with task_identity():
        reply = Message(Error(code=2, reason=told), reply_to=Message(RecordDict(), 1, "query"))
    with pytest.raises(WireError, match=rf"^the client failed: {re.escape(words)} \(code 2\)$"):
        content(reply)


def test_a_foreign_client_app_is_refused(federation):
    """architecture.md 1.4: another project's ClientApp that was found under our name."""
    run = federation.run(federation.grid(apps={1: foreign, 2: ClientApp()}))
    assert "none of isoproto's (records: ['metrics'])" in run.failures()[0, "node 10001"]
    assert "the client failed: " in run.failures()[0, "node 10002"]
    assert clients(run, 3) == ["0", "3"]


def test_stale_code_is_refused_with_both_digests_and_its_folder(federation):
    run = federation.run(federation.grid((edit("config", "fingerprint", "0123456789abcdef"), When("query", None, [1]))))
    reason = run.failures()[0, "node 10001"]
    assert "client 1 runs other code: fingerprint 0123456789abcdef from /" in reason
    assert f"server {run.summary['fingerprint']} from /" in reason
    assert clients(run, 1) == ["0", "2", "3"]


def test_another_feature_width_is_refused(federation):
    """R058."""
    run = federation.run(federation.grid((edit("config", "feature-dim", 64), When("query", None, [1]))))
    assert re.search(
        r"client 1, model '\w+': feature width 64, this federation has `feature-dim = 8`; give the model a projection",
        run.failures()[0, "node 10001"],
    )


@pytest.mark.parametrize("strategy", ["fedsaf", "fedavg"])
@pytest.mark.parametrize("client", [0, 3])
def test_another_class_list_is_refused_whoever_comes_first(federation, tmp_path, strategy, client):
    other = fakes.write_pictures(tmp_path / "other.npz", classes=5)
    grid = federation.grid(node_configs={client: {"data": f"npz:{other}"}})
    run = federation.run(grid, {"strategy": strategy, "models": "cnn", "rounds": 1})
    assert list(run.failures()) == [(0, f"node {10_000 + client}")]
    assert "('a', 'b', 'c', 'd', 'e')" in run.failures()[0, f"node {10_000 + client}"]
    assert clients(run, 1) == [c for c in "0123" if c != str(client)]


def test_a_name_that_is_taken_is_refused(federation):
    grid = federation.grid((edit("config", "client", "0"), When("query", None, [2])))
    run = federation.run(grid, {"rounds": 1})
    assert "client 0: another node has this name" in run.failures()[0, "node 10002"]


@pytest.mark.parametrize("client", [0, 3])
def test_a_real_node_that_says_it_is_simulated_is_one_refused_node(federation, client):
    grid = federation.grid((edit("config", "worker", 7), When("query", None, [client])))
    run = federation.run(grid, {"rounds": 2})
    assert list(run.failures()) == [(0, f"node {10_000 + client}")]
    assert f"client {client}: it is simulated, unlike the others" in run.failures()[0, f"node {10_000 + client}"]
    assert clients(run, 2) == [c for c in "0123" if c != str(client)]


def test_a_late_node_that_says_it_is_simulated_is_refused(federation):
    grid = federation.grid(
        (edit("config", "worker", 7), When("query", None, [3])), away=lambda client, newest: client == 3 and newest < 1
    )
    run = federation.run(grid, {"min-nodes": 3})
    assert list(run.failures()) == [(1 + 1, "node 10003")]
    assert clients(run, 3) == ["0", "1", "2"]


def test_a_real_node_that_answers_for_many_has_one_vote(federation):
    def many(content):
        own = content.pop("config")
        for name in map(str, range(4, 10)):
            content[f"{name}/config"] = ConfigRecord({**own, "client": name, "worker": 7})

    grid = federation.grid((altered(many), When("query", None, [3])))
    run = federation.run(grid, {"rounds": 1, "min-nodes": 4, "clients": 10})
    assert clients(run, 1) == ["0", "1", "2"]


@pytest.mark.parametrize("partitions", [2**20, 2**40])
def test_one_node_does_not_decide_how_many_are_waited_for(federation, partitions):
    grid = federation.grid((edit("config", "partitions", partitions), When("query", None, [3])))
    run = federation.run(grid, {"rounds": 1, "wait-timeout": 1.0, "join-late": 0.25})
    assert len(run.path.joinpath("partition.json").read_text()) < 2000
    assert run.summary["status"] == "completed"


@pytest.mark.parametrize("settings", [{"strategy": "fedsaf"}, {"strategy": "fedavg", "models": "cnn"}])
def test_a_node_with_other_weights_is_one_refused_node(federation, settings):
    forged = edit("config", "shared", json.dumps({"head.weight": ["float32", [2, 8]]}))
    run = federation.run(federation.grid((forged, When("query", None, [0]))), {**settings, "rounds": 1})
    assert list(run.failures()) == [(0, "node 10000")]
    assert re.search(r"weights it would share differ|would share weights", run.failures()[0, "node 10000"])
    assert clients(run, 1) == ["1", "2", "3"]


def more_samples(content):
    content["arrays"]["count"] = Array(content["arrays"]["count"].numpy() + 1000)
    content["metrics"]["samples"] += 10**6


def test_more_samples_than_told_are_refused_and_the_client_asked_anew(federation):
    """A device's data may grow: then it says so, and its next reply is taken."""
    grid = federation.grid((altered(more_samples), When("train", [2], [1])))
    run = federation.run(grid)
    assert list(run.failures()) == [(2, "1")]
    assert "the client declared" in run.failures()[2, "1"]
    assert clients(run, 3) == ["0", "1", "2", "3"]
    assert [client for kind, _, client in grid.sent if kind == "query"] == [0, 1, 2, 3, 1]


def test_the_summary_is_written_even_if_the_metrics_cannot_be(federation, monkeypatch):
    def full(self):
        raise StateError("no space")

    monkeypatch.setattr("isoproto.runs.run_folder.RunFolder.commit", full)
    with pytest.raises(StateError, match="no space"):
        federation.run(settings={"rounds": 1})
    assert federation.newest().summary["reason"] == "StateError: no space"


def test_nobody_to_use_ends_the_run_with_the_reasons_counted(federation):
    """R007."""
    grid = federation.grid(apps=dict.fromkeys(range(4), foreign))
    with pytest.raises(FederationError, match=r"none of 4 nodes can take part: 4 x no ConfigRecord 'config'"):
        federation.run(grid)
    assert federation.newest().summary["status"] == "failed"


@pytest.mark.parametrize(("after", "refused"), [(0, 0), (2, 3)])
def test_a_late_node_that_cannot_be_used_is_refused_in_its_round(federation, after, refused):
    grid = federation.grid(apps={3: foreign}, away=lambda client, newest: client == 3 and newest < after)
    run = federation.run(grid, {"min-nodes": 3})
    assert list(run.failures()) == [(refused, "node 10003")]
    assert all(clients(run, r) == ["0", "1", "2"] for r in (1, 2, 3))


# Node configuration (R088)

NODE = {
    "partition 15 of 10": (
        {"partition-id": 15},
        r"`partition-id` must be a whole number below `num-partitions`, .*15.*",
    ),
    "partition of none": ({"num-partitions": 0}, r"`partition-id` must be a whole number below `num-partitions`"),
    "text": ({"partition-id": "1"}, r"`partition-id` must be a whole number below .*got partition-id = '1'"),
    "bool": ({"partition-id": True}, r"`partition-id` must be a whole number below .*got partition-id = True"),
    "batch": ({"batch-size": "x"}, r"1 problem in the node config: `batch-size` must be int, got 'x'"),
    "device": ({"device": "tpu"}, r"`device` 'tpu' is not on this machine, which has \["),
    "model": ({"model": "resnte"}, r"unknown model 'resnte'; `model` must be one of .*'cnn'.*did you mean 'resnet'"),
    "data": ({"data": "npz:/none.npz"}, r"DataError: .*none\.npz"),
    "folder": ({"state-dir": "state"}, r"`state-dir` must be absolute, got 'state'"),
}


def test_a_wrong_node_config_is_told_of(federation):
    nodes = {i: own for i, (own, _) in enumerate(NODE.values(), start=1)}
    run = federation.run(federation.grid(clients=len(NODE) + 1, node_configs=nodes), {"rounds": 1})
    assert run.cohorts() == [["0"]]
    for i, (_, reason) in enumerate(NODE.values(), start=1):
        assert re.search(reason, run.failures()[0, f"node {10_000 + i}"])


def test_a_node_without_partition_and_data_is_told_what_to_name(federation):
    """It would otherwise take the whole data set for its own. A misspelt key looks the same."""
    grid = federation.grid()
    config = grid.context(1).node_config
    config.clear()
    config["partitin-id"] = 1
    run = federation.run(grid, {"rounds": 1})
    reason = run.failures()[0, "node 10001"]
    assert re.search(r"node config: neither `partition-id`.* nor `data`.*got \['partitin-id'\]", reason)


def test_a_node_with_data_of_its_own_needs_no_partition(federation, pictures):
    grid = federation.grid()
    for client in range(4):
        config = grid.context(client).node_config
        config.clear()
        config.update({"data": f"npz:{pictures}", "name": f"ward {client}", "model": "cnn"})
    # Settings that thin a data set before it is dealt out are not about a device's own.
    thin = {"max-samples": 40, "imbalance": 10.0}
    run = federation.run(grid, {"rounds": 1, "min-nodes": 4, "data": "digits4", **thin})
    assert clients(run, 1) == [f"ward {client}" for client in range(4)]
    assert {line["samples"] for line in run.of("client")} == {180}  # three quarters of all


def test_a_nodes_own_settings_win(federation, tmp_path):
    own = {"model": "resnet", "batch-size": 2, "state-dir": str(tmp_path / "own")}
    run = federation.run(federation.grid(node_configs={1: own}), {"models": "cnn", "rounds": 1})
    models = {line["client"]: line["model"] for line in run.of("client")}
    assert models == {"0": "cnn", "1": "resnet", "2": "cnn", "3": "cnn"}
    assert len(list((tmp_path / "own").rglob("*.safetensors"))) == 1
    assert len(list((federation.folder / "state").rglob("*.safetensors"))) == 3


# Data that are hard on a client


def test_a_class_nobody_else_holds(federation):
    """R053: only client 3 holds class 3, and it is not drawn in round 1."""
    run = federation.run(
        federation.grid((fakes.raising("RuntimeError: x"), When("train", [1], [3]))),
        {"partition": "classes:0,1;0,1,2;1,2;3"},
    )
    assert [line["classes"] for line in run.of("round")] == [3, 4, 4]
    (alone,) = [line for line in run.of("client", round=2) if line["client"] == "3"]
    assert (alone["loss"]["prototype"], alone["loss"]["instance"]) == (0, 0)


def test_a_class_nobody_holds(federation):
    run = federation.run(settings={"partition": "classes:0,1;0,1;1;0", "rounds": 2})
    assert run.server()["present"].tolist() == [True, True, False, False]
    assert run.failures() == {}


@pytest.mark.parametrize("strategy", ["fedsaf", "fedproto", "fedavg", "local"])
def test_clients_with_no_one_or_few_samples(federation, tmp_path, strategy):
    """R043, R064: more clients than samples; the rest have one or two, with one class or two, under BatchNorm."""
    few = fakes.write_pictures(tmp_path / "few.npz", samples=9)
    chosen = {
        "data": f"npz:{few}",
        "min-samples": 0,
        "partition": "iid",
        "strategy": strategy,
        "models": "resnet",
        "rounds": 2,
    }
    run = federation.run(federation.grid(clients=12), chosen)
    assert run.failures() == {}
    samples = sorted(line["samples"] for line in run.of("client", round=1))
    assert samples[0] == 0
    assert samples[-1] >= 1
    assert run.summary["status"] == "completed"
    assert all(line["accuracy"]["before"] is None or line["total"] > 0 for line in run.of("client"))


@pytest.mark.parametrize(("stale", "there"), [("keep", True), ("drop", False)])
def test_a_stale_class_is_kept_or_dropped_as_asked(federation, stale, there):
    grid = federation.grid((fakes.raising("RuntimeError: x"), When("train", [2], [3])))
    state = federation.run(grid, {"partition": "classes:0,1;0,1,2;1,2;3", "rounds": 2, "stale": stale}).server()
    assert state["present"].tolist() == [True, True, True, there]
    assert state["age"].tolist() == [0, 0, 0, 1]
    assert bool(state["prototypes"][3].any()) == there


def test_who_goes_and_who_comes_back_is_told_once(federation):
    grid = federation.grid(away=lambda client, newest: client == 2 and newest in (1, 2))
    run = federation.run(grid, {"rounds": 5})
    told = [(line["round"], line["client"], line["here"]) for line in run.of("presence")]
    assert [(client, here) for _, client, here in told] == [("2", False), ("2", True)]
    assert run.log.count("client 2 gone") == run.log.count("client 2 come") == 1


FLAT = """
from torch import nn


class Flat(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layer = nn.Linear(spec.channels * spec.height * spec.width, 8)

    def forward(self, x):
        return 0 * self.layer(x.flatten(1))


network = Flat
"""


def test_features_that_do_not_vary_are_told_of_once(federation, tmp_path):
    """All other figures of such a client look like those of one that learns slowly."""
    (tmp_path / "flat.py").write_text(FLAT)
    grid = federation.grid(node_configs={1: {"model": f"{tmp_path}/flat.py:network"}})
    run = federation.run(grid, {"strategy": "local", "models": "cnn"})
    assert run.log.count("the features of client 1 do not vary within a class") == 1
