"""Settings that cannot be used are all named before anything is written or asked."""

import json
import re

import numpy as np
import pytest

from isoproto.errors import ConfigError
from strategies import STRATEGIES

WRONG = {
    "strategy": ("fedsfa", r"unknown strategy 'fedsfa'; `strategy` must be one of .*did you mean 'fedsaf'\?\)"),
    "alignment": ("gsca", r"unknown alignment 'gsca'; `alignment` must be one of .*'gcsa'.* \(did you mean 'gcsa'\?\)"),
    "partition": ("dirichlett", r"unknown partition 'dirichlett'; .*\(did you mean 'dirichlet'\?\)"),
    "data": ("digit4", r"unknown data 'digit4'; .*\(did you mean 'digits4'\?\)"),
    "models": ("cnn,restnet", r"unknown models 'restnet'; .*\(did you mean 'resnet'\?\)"),
}


def test_everything_that_is_wrong_is_named_at_once(federation):
    wrong = {key: value for key, (value, _) in WRONG.items()}
    with pytest.raises(ConfigError) as caught:
        federation.run(settings={**wrong, "round": 3, "seed": "x", "output-dir": "here"})
    lines = str(caught.value).splitlines()
    assert lines[0] == "8 problems in the run config:"
    assert len(lines) == 9
    for _, told in WRONG.values():
        assert any(re.search(told, line) for line in lines)
    assert not (federation.folder / "runs").exists()


@pytest.mark.parametrize("key", WRONG)
def test_a_single_unknown_name_is_told_with_the_choices(federation, key):
    value, told = WRONG[key]
    with pytest.raises(ConfigError, match=f"^1 problem in the run config:\n  {told}"):
        federation.run(settings={key: value})


def test_an_alignment_without_prototypes_is_refused(federation):
    with pytest.raises(ConfigError, match=r"`alignment = mse` needs global prototypes, and strategy 'fedavg'"):
        federation.run(settings={"strategy": "fedavg", "alignment": "mse"})
    with pytest.raises(ConfigError, match=r"`alignment = gcsa` needs global prototypes.*`prototypes = none`"):
        federation.run(settings={"prototypes": "none", "alignment": "gcsa"})


def test_local_exchanges_nothing_whatever_a_preset_says(federation):
    """FedHPro's presets share whole models, for the methods of its tables."""
    preset = {"share": "model", "prototypes": "hyper", "alignment": "hpcl", "hyper.retrain": "creff"}
    few = {"strategy": "local", "rounds": 1, "models": "cnn", "init": "per-architecture"}
    run = federation.run(federation.grid(clients=2), {**few, **preset})
    alone = federation.run(federation.grid(clients=2), few)
    assert run.summary["replaced"] == [
        "strategy = local: prototypes = 'hyper' is replaced by 'none'",
        "strategy = local: alignment = 'hpcl' is replaced by 'none'",
        "strategy = local: share = 'model' is replaced by 'none'",
        "strategy = local: hyper.retrain = 'creff' is replaced by 'none'",
    ]
    assert all(sentence in run.log for sentence in run.summary["replaced"])
    assert not any(line["one_model"] for line in run.of("evaluation"))
    assert [line["clients"] for line in run.of("evaluation")] == [line["clients"] for line in alone.of("evaluation")]
    assert alone.summary["replaced"] == []


def test_no_prototypes_means_no_alignment(federation):
    run = federation.run(federation.grid(clients=2), {"prototypes": "none", "rounds": 2})
    assert run.summary["settings"]["alignment"] == "none"
    assert all(line["loss"]["instance"] == 0 for line in run.of("client"))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_the_effective_settings_are_stored_without_auto(federation, strategy):
    """R089: what counts is in summary.json and config.toml."""
    run = federation.run(federation.grid(clients=2), {"strategy": strategy, "models": "cnn", "rounds": 0, "gamma": 0.5})
    stored = run.summary["settings"]
    for key in ("prototypes", "alignment", "share", "lambda", "gamma", "missing"):
        assert stored[key] != "auto"
    assert (stored["gamma"], stored["strategy"], stored["rounds"]) == (0.5, strategy, 0)
    text = (run.path / "config.toml").read_text()
    assert 'alignment = "auto"' not in text
    assert "gamma = 0.5" in text


def test_what_is_said_about_the_data_is_in_the_summary(federation, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (2533, 8, 8), np.uint8), rng.integers(0, 4, 2533)
    np.savez(tmp_path / "office_caltech10_64.npz", train_x=x, train_y=y, classes=np.array(list("abcd")))
    settings = {"data": "office_caltech", "data-dir": str(tmp_path), "partition": "iid", "models": "cnn", "rounds": 0}
    run = federation.run(federation.grid(clients=2), settings)
    notes = run.summary["data_notes"]
    assert len(notes) == 3
    assert "office_caltech10_64.npz: squashed to 64x64" in notes[0]
    assert "no official test part" in notes[2]
    assert notes[2] in run.log


def test_what_a_small_scale_replaces_is_in_log_and_summary_also_after_a_resume(federation):
    settings = {"scale": "small", "models": "cnn4,resnet18", "epochs": 3, "rounds": 1, "max-samples": 100}
    run = federation.run(federation.grid(clients=2), settings)
    replaced = run.summary["replaced"]
    assert replaced == [
        "scale = small: models = 'cnn4,resnet18' is replaced by 'cnn,resnet'",
        "scale = small: epochs = 3 is replaced by 1",
    ]
    assert all(sentence in run.log for sentence in replaced)
    clients = json.loads((run.path / "partition.json").read_text())["clients"]
    assert [client["model"] for client in clients] == ["cnn", "resnet"]
    assert sum(sum(client["train"]) + sum(client["test"]) for client in clients) == 100
    again = federation.run(federation.grid(clients=2), {"resume": str(run.path)})
    assert again.summary["replaced"] == replaced


def test_nothing_is_replaced_at_the_papers_scale(federation):
    run = federation.run(federation.grid(clients=2), {"models": "cnn", "rounds": 0})
    assert run.summary["replaced"] == []
    assert not (run.path / "replaced.json").exists()


def test_the_three_axes_override_the_strategy(federation):
    """GCSA in FedProto is a setting, not code."""
    run = federation.run(federation.grid(clients=2), {"strategy": "fedproto", "alignment": "gcsa", "rounds": 2})
    stored = run.summary["settings"]
    assert (stored["alignment"], stored["prototypes"], stored["share"]) == ("gcsa", "mean", "none")
    assert stored["lambda"] > 0
    assert stored["missing"] == "mask"
    plain = federation.run(federation.grid(clients=2), {"strategy": "fedproto", "rounds": 0}).summary["settings"]
    assert (plain["alignment"], plain["lambda"], plain["gamma"], plain["missing"]) == ("mse", 0.0, 1.0, "self")


def test_folders_of_the_environment_are_used_where_no_setting_names_one(federation, tmp_path, monkeypatch):
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "home"))
    run = federation.run(federation.grid(clients=2), {"rounds": 1, "output-dir": "", "state-dir": ""})
    assert run.path.parent == tmp_path / "home" / "runs"
    assert len(list((tmp_path / "home" / "state").rglob("round-*.safetensors"))) == 2
    assert f"run folder {run.path}, client models under {tmp_path / 'home' / 'state'}" in run.log


def test_an_output_folder_that_cannot_be_made_is_told_of(federation):
    (federation.folder / "file").write_text("")
    with pytest.raises(Exception, match=r"cannot write .*/file/.*choose another folder"):
        federation.run(settings={"output-dir": str(federation.folder / "file")})


def test_data_that_only_clients_can_import_fail_no_run(federation, pictures):
    """A server may name a function that its own Python has not: its notes on the data are no part of the run."""
    grid = federation.grid(node_configs={i: {"data": f"npz:{pictures}"} for i in range(4)})
    run = federation.run(grid, {"data": "module:wards_nobody_has:data", "rounds": 1})
    assert (run.summary["status"], run.summary["data_notes"]) == ("completed", [])
