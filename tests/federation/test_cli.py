"""The ``isoproto`` command, in this process: what people type, and its exit status."""

import functools
import json
import os
import re
import subprocess
import sys

import pytest

from isoproto.config import RunConfig
from isoproto.runs.run_folder import RunFolder
from models import FAMILIES, MODELS
from tests import fakes
from tests.conftest import Run
from tests.fakes import FaultyGrid, Killed, When, command_line


@pytest.fixture
def isoproto(federation, monkeypatch, capsys):
    """Return a function that types a command and returns its exit status, output and error output."""
    monkeypatch.setenv("ISOPROTO_HOME", str(federation.folder))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("server_app.summary.write_report", lambda path: path / "report.html")
    return command_line(monkeypatch, capsys)


def pairs(federation, **more):
    settings = {**federation.settings, "rounds": 2, **more}
    chosen = {k: v for k, v in settings.items() if not k.endswith("-dir")}
    return " ".join(f"{key}={value!r}" for key, value in chosen.items())


def test_run_then_list_then_report(isoproto, federation):
    status, out, _ = isoproto("run", "--clients", "2", "-c", pairs(federation))
    run = federation.newest()
    assert status == 0
    assert run.summary["status"] == "completed"
    assert run.summary["clients"]["total"] == 2
    assert out.rstrip().endswith(f"report: {run.path}/report.html")
    assert run.path.parent == federation.folder / "runs"
    status, out, _ = isoproto("runs")
    assert status == 0
    assert run.summary["experiment"] in out
    status, out, _ = isoproto("report", run.summary["experiment"])
    assert status == 0
    assert out.rstrip().endswith(f"{run.path}/report.html")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "-c", "rounds='x' strategy='fedsfa'"), "error: 2 problems in the run config:"),
        (("run", "-c", "rounds = 3"), "error: cannot read the run config 'rounds = 3'"),
        (("run", "-c", "/no/such.toml"), "error: cannot read the run-config file '/no/such.toml': No such file"),
        (("run", "-c", "data='npz:/no/such.npz'"), "error: data 'npz:/no/such.npz'"),
        (("resume", "nothing"), "error: there is no run 'nothing'"),
        (("report", "nothing"), "error: there is no run 'nothing'"),
        (("models", "--family", "htfe5"), "error: `models = 'htfe5'` means another list in each paper"),
        (("run", "--engine", "gpu"), "must be 'in-process' or 'flower', got 'gpu'"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_ends_with_a_sentence_and_a_status(isoproto, words, told):
    status, out, err = isoproto(*words)
    assert status in (1, 2)
    assert told in " ".join(err.split())
    assert "Traceback" not in out + err


def test_a_mistake_is_told_once_and_before_there_is_a_run(isoproto, federation):
    status, out, err = isoproto("run", "-c", "data='npz:/no/such.npz' strategy='fedsaf'")
    assert status == 1
    assert (out + err).count("error: data 'npz:/no/such.npz'") == 1
    assert not (federation.folder / "runs").exists()


def test_runs_are_listed_with_what_differs_and_as_json(isoproto, federation):
    assert "no runs in" in isoproto("runs")[1]
    for seed in (1, 2):
        assert isoproto("run", "--clients", "2", "-c", pairs(federation, seed=seed))[0] == 0
    newest = federation.newest()
    _, out, _ = isoproto("runs")
    assert re.search(rf"{newest.path.name} .*seed={newest.summary['seed']}", out)
    assert "strategy=" not in out
    listed = {one["name"]: one["seed"] for one in json.loads(isoproto("runs", "--json")[1])}
    assert listed[newest.path.name] == newest.summary["seed"]
    assert set(listed.values()) == {1, 2}
    shown = json.loads(isoproto("report", "--json", newest.summary["experiment"])[1])
    assert shown["accuracy"] == newest.summary["accuracy"]


def test_a_run_is_removed_with_its_models_and_no_other(isoproto, federation):
    for _ in range(2):
        assert isoproto("run", "--clients", "2", "-c", pairs(federation))[0] == 0
    newest, state = federation.newest(), federation.folder / "state"
    assert (state / newest.summary["experiment"]).is_dir()
    status, out, _ = isoproto("rm", newest.summary["experiment"])
    assert (status, out.startswith(f"removed {newest.path.name}: ")) == (0, True)
    assert not newest.path.exists()
    (left,) = state.iterdir()
    assert left.name == federation.newest().summary["experiment"]


def test_a_run_that_goes_on_is_not_removed(isoproto, federation):
    assert isoproto("run", "--clients", "2", "-c", pairs(federation))[0] == 0
    run = federation.newest()
    with RunFolder(run.path, run.summary["experiment"]).in_use():
        status, _, err = isoproto("rm", run.path.name)
    assert status == 1
    assert "goes on in another process" in err
    assert run.summary["status"] == "completed"


def test_prune_removes_runs_without_a_round(isoproto, federation, monkeypatch):
    broken = killed(federation, monkeypatch, isoproto, (fakes.killed(after=False), When("query")))
    assert isoproto("run", "--clients", "2", "-c", pairs(federation))[0] == 0
    assert f"removed {broken.path.name}" in isoproto("prune")[1]
    assert not broken.path.exists()
    assert federation.newest().summary["status"] == "completed"
    assert "nothing to remove" in isoproto("prune")[1]


def test_settings_are_told_in_words(isoproto):
    _, out, _ = isoproto("settings", "lr")
    assert "learning-rate" in out
    assert "0.02" in out
    found = {entry["key"]: entry for entry in json.loads(isoproto("settings", "--json")[1])}
    assert found["partition"]["does"]
    assert len(found) == len(RunConfig().to_mapping())
    assert "(did you mean `rounds`?)" in isoproto("settings", "roundz")[2]


def test_a_terminal_without_these_characters_gets_the_table_all_the_same(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "ISOPROTO_HOME": str(tmp_path), "COLUMNS": "80"}
    command = [sys.executable, "-m", "isoproto.cli.main", "settings", "round"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "max-empty-rounds" in done.stdout) == (0, True), done.stderr


def test_the_version_and_the_help_of_arguments(isoproto):
    assert isoproto("--version")[1].startswith("isoproto 0.")
    assert "the end of its name" in " ".join(isoproto("report", "--help")[1].split())


def test_models_lists_what_each_costs_and_the_families_below(isoproto):
    status, out, _ = isoproto("models", "--classes", "100", "--family", "htfe4")
    assert status == 0
    lines = [line.split() for line in out.splitlines() if line.split()]
    assert ["cnn4", "924,708", "15.7", "512"] in lines
    assert ["mobilenet_v2", "2,275,172", "12.3", "1280"] in lines
    assert lines[-1] == ["htfe4", "cnn4,", "googlenet,", "mobilenet_v2,", "resnet18"]


def test_models_lists_all_of_them_for_any_pictures(isoproto):
    status, out, _ = isoproto("models", "--size", "28", "--channels", "1", "--feature-dim", "64")
    assert status == 0
    rows = {line.split()[0] for line in out.splitlines() if line.split()}
    assert rows >= MODELS.keys() | FAMILIES.keys()


def test_a_run_that_fails_has_a_status(isoproto, federation, monkeypatch):
    faults = [(fakes.raising("RuntimeError: x"), When("train"))]
    monkeypatch.setattr("isoproto.engines.workers.InProcessGrid", functools.partial(FaultyGrid, faults=faults))
    status, _, err = isoproto("run", "--clients", "2", "-c", pairs(federation, rounds=1))
    assert status == 1
    assert "error: the only round had fewer than 1 good replies" in err


def test_a_run_in_which_no_round_had_enough_replies_failed(isoproto, federation):
    """Even if fewer rounds were asked for than may be empty."""
    status, _, err = isoproto("run", "--clients", "2", "-c", pairs(federation, **{"min-replies": 3}))
    assert status == 1
    assert "error: 2 rounds in a row had fewer than 3 good replies" in err
    assert "2 of 3 good replies" in err


def test_a_run_of_which_no_evaluation_was_answered_failed(isoproto, federation, monkeypatch):
    faults = [(fakes.raising("RuntimeError: no test data"), When("evaluate"))]
    monkeypatch.setattr("isoproto.engines.workers.InProcessGrid", functools.partial(FaultyGrid, faults=faults))
    status, _, err = isoproto("run", "--clients", "2", "-c", pairs(federation))
    assert status == 1
    assert (
        "error: no client could be evaluated in any round; in the last one: 2 x the client failed: RuntimeError" in err
    )


def test_a_limit_that_no_class_can_reach_is_told(isoproto, federation):
    status, out, _ = isoproto("run", "--clients", "2", "-c", pairs(federation, **{"min-contributors": 9}))
    assert status == 0
    assert out.count("`min-contributors` = 9, but 2 clients take part: no class reaches it") == 1


def test_the_settings_of_a_run_repeat_it(isoproto, federation):
    assert isoproto("run", "--clients", "3", "-c", pairs(federation))[0] == 0
    first = federation.newest()
    assert isoproto("run", "-c", str(first.path / "config.toml"))[0] == 0
    second = federation.newest()
    assert second.path != first.path
    assert second.summary["clients"]["total"] == 3
    assert second.summary["accuracy"] == first.summary["accuracy"]


def test_a_run_that_is_interrupted_says_how_to_go_on(isoproto, federation, monkeypatch):
    interrupt = (fakes.interrupting, When("train", [2], [0]))
    with monkeypatch.context() as patch:
        patch.setattr("isoproto.engines.workers.InProcessGrid", functools.partial(FaultyGrid, faults=[interrupt]))
        status, out, err = isoproto("run", "--clients", "2", "-c", pairs(federation))
    run = federation.newest()
    assert status == 130
    assert f"interrupted after round 1 of 2; go on with: isoproto resume {run.summary['experiment']}" in out
    assert "failed" not in out + err
    assert run.summary["status"] == "interrupted"
    assert isoproto("resume", run.summary["experiment"])[0] == 0
    assert federation.newest().summary["status"] == "completed"


def killed(federation, monkeypatch, isoproto, *faults):
    with monkeypatch.context() as patch:
        patch.setattr("isoproto.engines.workers.InProcessGrid", functools.partial(FaultyGrid, faults=faults))
        with pytest.raises(Killed):
            isoproto("run", "--clients", "4", "-c", pairs(federation))
    return Run(federation.newest().path)


def test_resume_deals_the_data_to_as_many_clients_as_before(isoproto, federation, monkeypatch):
    """Client 3 could not be used; the other three keep their shares of four."""
    refused = (fakes.raising("RuntimeError: foreign"), When("query", None, [3]))
    broken = killed(federation, monkeypatch, isoproto, refused, (fakes.killed(after=False), When("train", [2])))
    assert isoproto("resume", broken.path.name)[0] == 0
    samples = [{line["client"]: line["samples"] for line in broken.of("client", round=r)} for r in (1, 2)]
    assert {client: samples[1][client] for client in samples[0]} == samples[0]


def test_resume_of_a_run_that_never_met_its_clients_takes_the_number_it_began_with(isoproto, federation, monkeypatch):
    broken = killed(federation, monkeypatch, isoproto, (fakes.killed(after=False), When("query")))
    assert isoproto("resume", broken.path.name)[0] == 0
    assert broken.summary["clients"]["total"] == 4


def test_resume_of_a_run_that_names_no_number_of_clients_asks_how_many(isoproto, federation, monkeypatch):
    broken = killed(federation, monkeypatch, isoproto, (fakes.killed(after=False), When("query")))
    config = broken.path / "config.toml"
    config.write_text(config.read_text().replace("\nclients = 4\n", "\nclients = 0\n"))
    status, _, err = isoproto("resume", broken.path.name)
    assert status == 1
    assert "stopped before its clients were known; say how many with --clients" in err
    assert isoproto("resume", broken.path.name, "--clients", "4")[0] == 0
    assert broken.summary["clients"]["total"] == 4


def test_resume_at_a_deployment_leaves_the_search_for_the_run_to_its_server(isoproto, monkeypatch):
    asked = []
    monkeypatch.setattr("isoproto.deploy.deployment.run_at", lambda *words: asked.append(words))
    assert isoproto("resume", "4f2a", "--connection", "lab")[0] == 0
    assert asked == [("lab", {"resume": "4f2a"})]
