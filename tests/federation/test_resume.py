"""A run that is stopped anywhere and resumed ends as if nothing had been: the same figures, to the last bit."""

import contextlib
import os
import random

import pytest
import torch

from client_app.store import ClientStore
from isoproto.errors import ConfigError, StateError
from isoproto.runs.checkpoint import load_checkpoint
from server_app import app as server_app
from strategies import PrototypeStrategy
from strategies.journal import Journal
from tests import fakes
from tests.conftest import FEDAVG
from tests.fakes import Killed, When

SETTINGS = {
    "fedsaf": {"rounds": 4, "fraction": 0.5, "evaluate-every": 2},
    "fedavg": {"rounds": 4, "fraction": 0.5, **FEDAVG},
    "isoproto_anchors": {"rounds": 4, "fraction": 0.5, "strategy": "isoproto_anchors"},
    "fedhpro": {"rounds": 4, "fraction": 0.5, "strategy": "fedhpro", "models": "resnet"},
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, pictures):
    """The runs that the interrupted ones are compared with."""
    from isoproto.engines.in_process import task_identity
    from tests.conftest import Federation

    with task_identity():
        return {
            name: Federation(tmp_path_factory.mktemp(name), pictures).run(settings=chosen)
            for name, chosen in SETTINGS.items()
        }


def interrupted(federation, *faults, strategy="fedsaf"):
    with pytest.raises(Killed):
        federation.run(federation.grid(*faults), SETTINGS[strategy])
    return federation.newest()


def resumed(federation, run, grid=None):
    again = federation.run(grid, {"resume": run.path.name})
    assert again.path == run.path
    return again


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("strategy", "kind", "server_round"), [
    ("fedsaf", "evaluate", 0),
    ("fedsaf", "train", 1),
    ("fedsaf", "train", 3),
    ("fedsaf", "evaluate", 4),
    ("fedavg", "train", 3),
    ("fedavg", "evaluate", 4),
    ("isoproto_anchors", "train", 3),
    ("fedhpro", "train", 3),
])  # fmt: skip
def test_killed_while_clients_work(federation, unbroken, strategy, kind, server_round, after):
    """At a random client of the batch, before or after it has worked and saved its model."""
    messages = random.Random(f"{kind}{server_round}{after}").randrange(2 if kind == "train" else 4)
    seen = []

    def kill_later(grid, message, honest):
        seen.append(message)
        return fakes.killed(after=after)(grid, message, honest) if len(seen) > messages else [honest()]

    broken = interrupted(federation, (kill_later, When(kind, [server_round])), strategy=strategy)
    run = resumed(federation, broken)
    assert run.steady() == unbroken[strategy].steady()
    assert equal(run.server(), unbroken[strategy].server())


@pytest.mark.parametrize(
    ("where", "what", "times"),
    [
        *[(PrototypeStrategy, "next_state", times) for times in (1, 3)],
        *[(Journal, "note_round", times) for times in (1, 3)],
        *[(server_app.RunFolder, "commit", times) for times in (1, 4)],
        *[(server_app, "save_checkpoint", times) for times in (1, 4)],
        *[(os, "fsync", times) for times in (5, 10, 20)],
    ],
    ids=lambda value: value if isinstance(value, str | int) else "",
)
def test_killed_in_the_server(federation, unbroken, where, what, times):
    """Hard: nothing is tidied up. In aggregation, before metrics, before the checkpoint, between write and rename."""
    calls = []
    original = getattr(where, what)

    def kill_later(*args, **kwargs):
        calls.append(args)
        if len(calls) == times:
            raise Killed
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, what, kill_later)
        patch.setattr(server_app, "reported", lambda *_: contextlib.nullcontext())
        with pytest.raises(Killed):
            federation.run(settings=SETTINGS["fedsaf"])
    assert not (federation.newest().path / "summary.json").exists()
    assert resumed(federation, federation.newest()).steady() == unbroken["fedsaf"].steady()


def test_killed_again_and_again(federation, unbroken):
    broken = interrupted(federation, (fakes.killed(after=True), When("train", [1])))
    for server_round, after in ((1, False), (2, True), (2, True), (3, False), (4, True)):
        with pytest.raises(Killed):
            resumed(federation, broken, federation.grid((fakes.killed(after=after), When("train", [server_round]))))
    assert resumed(federation, broken).steady() == unbroken["fedsaf"].steady()


def test_nobody_trains_twice(federation):
    """Both clients of round 3 had trained when the server died; resumed, they start from their models of before."""
    broken = interrupted(federation, (fakes.killed(after=False), When("evaluate", [4])))
    experiment = (broken.path / "experiment").read_text().strip()
    trained = broken.of("client", round=3)
    grid = federation.grid()
    run = resumed(federation, broken, grid)
    assert [sent for sent in grid.sent if sent[0] == "train"] == [("train", 4, int(c)) for c in run.cohorts()[3]]
    assert run.of("client", round=3) == trained
    for client in run.cohorts()[3]:
        store = ClientStore(federation.folder / "state", experiment, client)
        assert max(store._rounds()) == 4


def test_the_log_and_the_metrics_go_on_in_the_same_folder(federation):
    broken = interrupted(federation, (fakes.killed(after=False), When("train", [3])))
    before = broken.log
    run = resumed(federation, broken)
    assert run.log.startswith(before)
    assert [line["round"] for line in run.of("round")] == [1, 2, 3, 4]
    assert [line["round"] for line in run.of("evaluation")] == [0, 2, 4]
    assert run.summary["status"] == "completed"
    assert len(list((federation.folder / "runs").iterdir())) == 1


def test_an_interrupted_run_says_so(federation):
    broken = interrupted(federation, (fakes.killed(after=False), When("train", [3])))
    assert (broken.summary["status"], broken.summary["reason"]) == ("failed", "Killed: ")


def test_a_line_cut_in_the_middle_is_done_again(federation, unbroken):
    broken = interrupted(federation, (fakes.killed(after=False), When("train", [3])))
    with (broken.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "client", "round": 3, "cli')
    assert resumed(federation, broken).steady() == unbroken["fedsaf"].steady()


def test_a_damaged_checkpoint_costs_a_round(federation, unbroken):
    """The server goes on from the one before; clients that had trained since go back to their models of then."""
    broken = interrupted(federation, (fakes.killed(after=True), When("train", [4])))
    newest = max((broken.path / "checkpoint").glob("round-*"))
    assert newest.name == "round-000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    grid = federation.grid()
    run = resumed(federation, broken, grid)
    assert {server_round for kind, server_round, _ in grid.sent if kind == "train"} == {3, 4}
    assert run.steady() == unbroken["fedsaf"].steady()


def test_checkpoints_that_are_all_damaged_end_it_with_a_clear_error(federation):
    """R025."""
    broken = interrupted(federation, (fakes.killed(after=False), When("train", [3])))
    for path in (broken.path / "checkpoint").iterdir():
        path.write_bytes(b"")
    with pytest.raises(StateError, match=r"no checkpoint in .* can be read .*Restore the folder from a backup"):
        resumed(federation, broken)


def test_a_full_disk_stops_the_run_and_it_goes_on_later(federation, unbroken):
    calls = []
    fsync = os.fsync

    def full_later(descriptor):
        calls.append(descriptor)
        if len(calls) > 14:
            raise OSError(28, os.strerror(28))
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full_later)
        with pytest.raises(StateError, match=r"(cannot write|cannot append to) .*: No space left on device"):
            federation.run(settings={**SETTINGS["fedsaf"], "max-empty-rounds": 9})
    assert resumed(federation, federation.newest()).steady() == unbroken["fedsaf"].steady()


def test_clients_whose_disk_is_full_fail_with_the_reason_and_keep_their_models(federation):
    full = federation.folder / "full"
    grid = federation.grid(node_configs={1: {"state-dir": str(full)}})
    full.write_text("a file where the folder should be")
    run = federation.run(grid, {"rounds": 2})
    assert set(run.failures()) == {(1, "1"), (2, "1")}
    assert "StateError: cannot write" in run.failures()[1, "1"]


def test_resuming_a_finished_run_changes_nothing(federation):
    run = federation.run(settings={"rounds": 2})
    before = run.steady()
    grid = federation.grid()
    assert resumed(federation, run, grid).steady() == before
    assert {kind for kind, _, _ in grid.sent} == {"query"}


def test_settings_of_the_run_are_those_of_its_folder(federation):
    broken = interrupted(federation, (fakes.killed(after=False), When("train", [3])))
    run = federation.run(settings={"resume": broken.path.name, "rounds": 1, "seed": 99, "strategy": "local"})
    assert (run.summary["rounds"], run.summary["seed"], run.summary["strategy"]) == (4, 0, "fedsaf")
    assert "WARNING `rounds` = 1 is ignored: a resumed run keeps its own settings, here 4\n" in run.log
    assert run.log.count(" is ignored: ") == 3


def test_a_run_is_resumed_by_its_path_too(federation):
    broken = interrupted(federation, (fakes.killed(after=False), When("train", [2])))
    run = federation.run(settings={"resume": str(broken.path), "output-dir": "/nowhere"})
    assert run.path == broken.path
    assert run.summary["status"] == "completed"


def test_resuming_what_is_not_there_is_told_of(federation):
    with pytest.raises(ConfigError, match=r"there is no run 'nothing'; looked in .*/runs"):
        federation.run(settings={"resume": "nothing"})


def test_resuming_on_other_data_is_told_of(federation, tmp_path):
    """The checkpoint's prototypes belong to another class list."""
    broken = interrupted(federation, (fakes.killed(after=False), When("train", [3])))
    other = fakes.write_pictures(tmp_path / "other.npz", classes=5)
    config = broken.path / "config.toml"
    data = federation.settings["data"]
    config.write_text(config.read_text().replace(data, f"npz:{other}"))
    with pytest.raises(ConfigError, match=r"the checkpoint has 4 classes, the clients now have 5: \('a', 'b'"):
        resumed(federation, broken)


def test_a_saved_model_of_another_architecture_is_told_of(federation):
    """R050: the tensors that differ are named."""
    broken = interrupted(federation, (fakes.killed(after=False), When("train", [3])))
    config = broken.path / "config.toml"
    config.write_text(config.read_text().replace('"demo4"', '"inception,mobilenet,resnet,cnn"'))
    run = resumed(federation, broken)
    told = [reason for (server_round, _), reason in run.failures().items() if server_round == 3]
    assert told
    assert all("its saved model does not fit" in reason and "tensors differ, among them" in reason for reason in told)


def test_the_checkpoint_of_a_round_is_written_after_its_metrics(federation):
    """Otherwise a kill between the two would lose the round's lines for ever."""
    order = []
    commit, save = server_app.RunFolder.commit, server_app.save_checkpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_app.RunFolder, "commit", lambda self: (order.append("metrics"), commit(self))[1])
        patch.setattr(server_app, "save_checkpoint", lambda *args: (order.append("checkpoint"), save(*args))[1])
        run = federation.run(settings={"rounds": 2})
    assert order[:6] == ["metrics", "checkpoint"] * 3
    assert load_checkpoint(run.path / "checkpoint").server_round == 2
