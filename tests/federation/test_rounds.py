"""Whole federations in one process: the real ServerApp and ClientApp, every message through Flower's serialisation."""

import math

import pytest
import torch

import client_app.local_round
from client_app.own_model import load_model
from client_app.store import ClientStore
from client_app.training import extract
from isoproto import paths
from isoproto.errors import ConfigError
from isoproto.losses import LOSSES
from isoproto.runs.metrics import accuracy_summary
from strategies import STRATEGIES
from tests.conftest import FEDAVG
from tests.fakes import When, altered


def test_where_nothing_is_exchanged_nothing_is_sent(federation):
    """`local` sends no class means: only accuracies, losses and counts of samples."""
    run = federation.run(settings={"strategy": "local", "rounds": 2})
    assert {line["bytes"]["up_rows"] for line in run.of("client")} == {0}


def evaluated(run):
    """Return the rounds after which all clients were evaluated."""
    return [line["round"] for line in run.of("evaluation")]


def models(federation, run, clients=4):
    """Return every client's newest model."""
    experiment = run.summary["experiment"]
    return [
        ClientStore(federation.folder / "state", experiment, str(client)).load().tensors for client in range(clients)
    ]


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# The main job


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_runs(federation, strategy):
    one = {"models": "resnet"} if STRATEGIES[strategy].method.share == "model" else {}
    run = federation.run(settings={"strategy": strategy, **one})
    summary = run.summary
    assert (summary["status"], summary["reason"], summary["strategy"]) == ("completed", "", strategy)
    assert [line["round"] for line in run.of("round")] == [1, 2, 3]
    assert run.failures() == {}
    assert evaluated(run) == [0, 3]
    assert summary["clients"] == {"total": 4, "evaluated": 4, "failed": []}
    assert 0 <= summary["accuracy"]["mean"] <= 1


def test_a_run_leaves_its_report(plain):
    assert (plain.path / "report.html").stat().st_size > 1000
    assert f"report: {plain.path}/report.html" in plain.log


@pytest.mark.parametrize("alignment", sorted(LOSSES))
def test_alignment_is_at_work_from_round_2(federation, alignment):
    """R052: before there are prototypes the loss is cross-entropy; then both terms are positive."""
    chosen = {"alignment": alignment, "lambda": 0.5, "gamma": 0.25, "rounds": 2}
    run = federation.run(federation.grid(clients=2), chosen)
    for line in run.of("client"):
        loss = line["loss"]
        assert loss["total"] == pytest.approx(
            loss["cross_entropy"] + 0.5 * loss["prototype"] + 0.25 * loss["instance"], rel=1e-5
        )
        assert (loss["prototype"] > 0) == (loss["instance"] > 0) == (line["round"] == 2)


def test_weights_zero_are_local_training_bit_for_bit(federation):
    """A6, through all the layers; and the terms change the models where they have weight (R052)."""
    chosen = {"rounds": 2}
    local, zero, some = (
        models(federation, federation.run(settings={**chosen, **own}))
        for own in ({"strategy": "local"}, {"lambda": 0, "gamma": 0}, {})
    )
    assert all(map(equal, local, zero))
    assert not any(map(equal, local, some))


def test_batch_counters_of_an_averaged_model_stay_whole_numbers(plain_fedavg):
    counters = [t for name, t in plain_fedavg.server().items() if name.endswith("num_batches_tracked")]
    assert counters
    assert all(t.dtype == torch.int64 and t.shape == () and t > 0 for t in counters)


@pytest.mark.parametrize(
    ("share", "models", "parts"),
    [("head", "demo4", {"head"}), ("base", "resnet", {"base"}), ("model", "resnet", {"head", "base"})],
)
def test_weights_can_be_shared_beside_prototypes(federation, share, models, parts):
    run = federation.run(settings={"share": share, "models": models, "rounds": 2})
    assert run.failures() == {}
    names = [name.removeprefix("shared.") for name in run.server() if name.startswith("shared.")]
    assert {name.split(".")[0] for name in names} == parts
    assert run.server()["present"].all()
    # Networks that are averaged start from equal weights, heads of different ones need not.
    assert run.summary["settings"]["init"] == ("per-client" if share == "head" else "per-architecture")


def test_heads_are_dealt_out_by_partition_and_stay_as_they_were_dealt(federation):
    """Of one architecture, with one to four layers in the head; the bases may be shared."""
    settings = {"heads": "mixed", "models": "resnet", "share": "base", "rounds": 2}
    run = federation.run(settings=settings)
    assert run.failures() == {}
    for client in range(4):
        folder = paths.state_dir(federation.settings["state-dir"])
        saved = ClientStore(folder, run.summary["experiment"], str(client)).load()
        weights = [t for name, t in sorted(saved.tensors.items()) if name.startswith("head.") and t.ndim == 2]
        assert [tuple(w.shape) for w in weights] == [(8, 8)] * client + [(4, 8)]


def test_every_client_may_be_tested_on_the_whole_official_test_part(federation):
    settings = {"data": "digits4", "partition": "domain", "max-samples": 400, "models": "tiny_cnn", "rounds": 1}
    whole, own = (
        federation.run(settings={**settings, "split": split}).of("evaluation")[-1] for split in ("global", "official")
    )
    assert {entry["total"] for entry in whole["clients"]} == {sum(entry["total"] for entry in own["clients"])}
    assert {entry["domain"] for entry in whole["clients"]} == {""}  # of all of them
    assert {entry["domain"] for entry in own["clients"]} == {"scan", "pen", "print", "scene"}


def test_whole_models_cannot_be_shared_by_different_architectures(federation):
    with pytest.raises(ConfigError, match=r"`share = model` averages weights.*'cnn': 2, 'resnet': 2.*Name one archi"):
        federation.run(settings={"strategy": "fedavg", "models": "cnn,resnet"})
    assert federation.newest().summary["status"] == "failed"


@pytest.mark.parametrize("source", ["last-epoch", "all-epochs"])
def test_running_prototypes_count_a_sample_once(federation, source):
    run = federation.run(settings={"proto-source": source, "epochs": 2, "rounds": 1})
    assert run.failures() == {}
    assert run.server()["present"].all()


def test_small_classes_are_not_sent_and_thin_ones_not_published(federation):
    """Of the classes, client 0 has 9, 15, 21, 0 samples and client 1 has 0, 1, 3, 21; the others 7 to 18 of each."""
    run = federation.run(settings={"min-class-samples": 10, "min-contributors": 3, "rounds": 1})
    rows = {line["client"]: line["bytes"]["up_rows"] // (4 + 4 * 8 + 8) for line in run.of("client")}
    assert rows == {"0": 2, "1": 1, "2": 4, "3": 3}
    assert run.server()["present"].tolist() == [False, True, False, True]


def test_a_class_that_no_whole_batch_has_is_not_sent(federation):
    """The only sample that client 1 has of class 1 lies behind its last whole batch, where it never trains on it."""
    settings = {"batches": "fixed", "batch-size": 16, "proto-source": "last-epoch", "partition-seed": 6, "rounds": 1}
    labels = federation.client(federation.grid().context(1).node_config, settings).data.train_y
    assert (labels.bincount().tolist(), labels[:32].bincount(minlength=4)[1]) == ([3, 1, 7, 31], 0)
    run = federation.run(settings=settings)
    rows = {line["client"]: line["bytes"]["up_rows"] // (4 + 4 * 8 + 8) for line in run.of("client")}
    assert (run.failures(), rows["1"]) == ({}, 3)


# Who is evaluated


@pytest.mark.parametrize(("every", "rounds"), [(1, [0, 1, 2, 3]), (2, [0, 2, 3]), (5, [0, 3])])
def test_all_are_evaluated_before_after_and_when_asked(federation, every, rounds):
    run = federation.run(settings={"evaluate-every": every, "fraction": 0.5})
    assert evaluated(run) == rounds
    assert all([c["client"] for c in line["clients"]] == ["0", "1", "2", "3"] for line in run.of("evaluation"))


def test_no_rounds_is_an_evaluation(federation):
    run = federation.run(settings={"rounds": 0})
    assert evaluated(run) == [0]
    assert run.summary["status"] == "completed"


def test_those_not_asked_keep_their_last_accuracy(half):
    """Exact where nothing but prototypes is shared; the round's line says how many figures are fresh."""
    known = {c["client"]: (c["correct"], c["total"]) for c in half.of("evaluation", round=0)[0]["clients"]}
    for line in half.of("round"):
        trained = half.of("client", round=line["round"])
        known |= {c["client"]: (c["correct"], c["total"]) for c in trained}
        expected = accuracy_summary([c for c, _ in known.values()], [t for _, t in known.values()])
        assert {name: line["accuracy"][name] for name in expected} == expected
        assert line["accuracy"]["fresh"] == len(trained) == 2
    last = {c["client"]: (c["correct"], c["total"]) for c in half.of("evaluation", round=6)[0]["clients"]}
    assert last == known


def test_summary_follows_the_final_evaluation(half):
    """R028: all clients with their own models, not the participants of the last round."""
    last = half.of("evaluation", round=6)[0]["clients"]
    wanted = accuracy_summary([c["correct"] for c in last], [c["total"] for c in last])
    accuracy = half.summary["accuracy"]
    for name in ("mean", "micro", "worst_decile", "best_decile", "std"):
        assert accuracy[name] == wanted[name]


def test_a_client_starts_from_the_model_it_ended_with(half):
    """R022: before training it is as good as it was after its last participation."""
    last = {}
    for line in half.of("client"):
        assert line["accuracy"]["before"] == last.get(line["client"], line["accuracy"]["before"])
        last[line["client"]] = line["accuracy"]["after"]
    assert len(half.of("client")) == 12


def test_learning_rate_zero_leaves_the_weights_as_they_were(federation):
    """R031. BatchNorm's running statistics move even so."""
    first, last = (
        models(federation, federation.run(federation.grid(clients=2), {"learning-rate": 0, "rounds": r}), clients=2)
        for r in (1, 2)
    )
    for before, after in zip(first, last, strict=True):
        weights = [name for name in before if "running" not in name and "num_batches" not in name]
        assert weights
        assert all(torch.equal(before[name], after[name]) for name in weights)


def test_reported_accuracy_is_that_of_the_saved_model(federation):
    """R029: done again by hand from the saved file."""
    grid = federation.grid()
    run = federation.run(grid, {"rounds": 1})
    client = federation.client(grid.context(2).node_config)
    model, _, tested, _ = load_model(client, run.summary["experiment"], before=2)
    right = model.head(extract(model, client.data.test_x)).argmax(1) == client.data.test_y
    (entry,) = [c for c in run.of("evaluation", round=1)[0]["clients"] if c["client"] == "2"]
    assert (entry["correct"], entry["total"]) == (int(right.sum()), len(client.data.test_y))
    assert (tested.correct, tested.total) == (entry["correct"], entry["total"])
    assert entry["class_correct"] == [int(right[client.data.test_y == c].sum()) for c in range(4)]
    assert entry["class_total"] == [int((client.data.test_y == c).sum()) for c in range(4)]


def test_accuracy_before_training_is_measured_again_where_it_is_not_known(federation, monkeypatch):
    """A model is not what it was when it was saved once weights were put into it; and test data may change."""
    measured = []
    real = client_app.local_round.evaluate_model

    def counted(model, data, view):
        measured.append(view.client)
        return real(model, data, view)

    monkeypatch.setattr(client_app.local_round, "evaluate_model", counted)
    settings = {"rounds": 2, "models": "cnn"}
    counts = {}
    for strategy in ("fedproto", "fedavg"):
        run = federation.run(settings={**settings, "strategy": strategy})
        before = {line["client"]: line["accuracy"]["before"] for line in run.of("client", round=2)}
        after = {line["client"]: line["accuracy"]["after"] for line in run.of("client", round=1)}
        counts[strategy] = len(measured), before == after
        measured.clear()
    # Evaluations before and after the run, before training (in round 1 alone, or in both), after training.
    assert counts == {"fedproto": (4 * (2 + 1 + 2), True), "fedavg": (4 * (2 + 2 + 2), False)}


# Repeatable


def test_same_seed_same_numbers_to_the_last_bit(federation, half):
    """R014: the cohorts, and every figure that does not come from a clock."""
    again = federation.run(settings={"fraction": 0.5, "rounds": 6})
    assert half.steady() == again.steady()
    assert half.cohorts() == again.cohorts()
    assert equal(half.server(), again.server())


def test_another_seed_changes_cohorts_and_numbers(federation, half):
    other = federation.run(settings={"fraction": 0.5, "rounds": 6, "seed": 8})
    assert half.cohorts() != other.cohorts()
    assert not equal(half.server(), other.server())
    assert half.of("evaluation", round=0) != other.of("evaluation", round=0)


def test_order_of_replies_changes_no_bit(federation, plain, plain_fedavg):
    for run, chosen in ((plain, {}), (plain_fedavg, FEDAVG)):
        turned = federation.run(federation.grid(shuffle=lambda n: reversed(range(n))), chosen)
        assert run.steady() == turned.steady()
        assert equal(run.server(), turned.server())


def test_clients_of_one_architecture_start_as_asked(federation):
    heads = {}
    for init in ("per-architecture", "per-client"):
        chosen = {"models": "cnn", "rounds": 1, "learning-rate": 0, "init": init}
        heads[init] = [model["head.weight"] for model in models(federation, federation.run(settings=chosen))]
    assert all(torch.equal(heads["per-architecture"][0], weight) for weight in heads["per-architecture"])
    assert not any(torch.equal(heads["per-client"][0], weight) for weight in heads["per-client"][1:])


def test_a_run_can_start_from_the_models_of_another(federation):
    first = federation.run(settings={"strategy": "local", "rounds": 1})
    second = federation.run(settings={"strategy": "local", "rounds": 0, "init-from": first.summary["experiment"]})
    assert second.of("evaluation", round=0)[0]["clients"] == first.of("evaluation", round=1)[0]["clients"]
    assert second.of("evaluation", round=0) != first.of("evaluation", round=0)


# What travels


def test_bytes_are_counted(plain):
    """A4: rows alone are P (4 + 4 d + 8), and the clients hold 3, 3, 4 and 4 classes."""
    clients, (line,) = plain.of("client", round=1), plain.of("round", round=1)
    assert [c["bytes"]["up_rows"] for c in clients] == [p * (4 + 4 * 8 + 8) for p in (3, 3, 4, 4)]
    for way in ("up", "up_rows", "down"):
        assert line["bytes"][way] == sum(c["bytes"][way] for c in clients)
    assert line["bytes"]["up"] > line["bytes"]["up_rows"]
    second = plain.of("round", round=2)[0]["bytes"]["down"]
    assert second - line["bytes"]["down"] > 4 * (4 * 8 * 4)  # [C, d] float32 for four clients


def test_nothing_travels_that_is_a_models_weight(federation):
    """A5, on the messages themselves."""
    names = set()

    def spy(content):
        names.update(name for record in content.array_records.values() for name in record)

    federation.run(federation.grid((altered(spy), When("train"))), {"rounds": 2})
    assert names == {"class-ids", "proto", "count"}


def test_every_number_is_finite(plain, half, plain_fedavg):
    def numbers(value):
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from numbers(item)
        elif isinstance(value, float):
            yield value

    found = [number for run in (plain, half, plain_fedavg) for number in numbers([run.summary, run.lines])]
    assert len(found) > 100
    assert all(map(math.isfinite, found))
