"""Files that commit 89ce3f0 wrote still open: run folders, checkpoints, saved models.

``write.py`` wrote them. The present code resumes each killed run and must end where the old code ended.
"""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from client_app.store import ClientStore
from isoproto.config import RunConfig
from isoproto.runs.checkpoint import load_checkpoint
from isoproto.runs.run_folder import RunFolder
from server_app.app import run_federation
from tests.conftest import Run, steady
from tests.fakes import command_line

HERE = Path(__file__).parent
CASES = sorted(path.parent.name for path in HERE.glob("*/expected.jsonl"))
CLIENTS = 3


@pytest.fixture(params=CASES)
def old(request, tmp_path, monkeypatch):
    """A copy of a case's folder, in which ``/FOLDER`` is the copy's own path."""
    shutil.copytree(HERE / request.param, tmp_path, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(str(HERE))  # for the model
    for path in (tmp_path / "expected.jsonl", *(tmp_path / "run").iterdir()):
        if path.is_file():
            path.write_text(path.read_text("utf8").replace("/FOLDER", str(tmp_path)))
    return tmp_path


def expected(old):
    return [steady(json.loads(line)) for line in (old / "expected.jsonl").read_text().splitlines()]


def experiment(old):
    return (old / "run" / "experiment").read_text().strip()


def close(found, wanted):
    """Check that figures are equal but for the last digits: processors and versions of PyTorch round differently."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            close(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    else:
        assert found == wanted


def test_there_are_cases():
    assert len(CASES) == 4


def test_a_killed_run_goes_on_and_ends_as_it_would_have_ended(old, federation, monkeypatch):
    monkeypatch.setattr("server_app.summary.write_report", lambda path: path / "report.html")
    path = run_federation(federation.grid(clients=CLIENTS), {"resume": str(old / "run")})
    run = Run(path)
    assert run.path == old / "run"
    assert run.summary["status"] == "completed"
    assert run.failures() == {}
    close([steady(line) for line in run.lines], expected(old))


def test_the_settings_are_read_and_written_as_they_were(old):
    folder, config = RunFolder.reopen(old, str(old / "run"))
    assert folder.experiment == experiment(old)
    assert config.rounds == 4
    assert config.models == "old_tiny:tiny"
    assert RunConfig.from_mapping(config.to_mapping()) == config


def test_the_report_opens_a_run_folder(old, monkeypatch, capsys):
    status, out, _ = command_line(monkeypatch, capsys)("report", str(old / "run"))
    assert status == 0
    assert out.rstrip().endswith(f"{old}/run/report.html")
    assert "running" in out
    assert "</html>" in (old / "run" / "report.html").read_text()


def test_the_newest_checkpoint_is_read(old):
    checkpoint = load_checkpoint(old / "run" / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.server_round == 2


@pytest.mark.parametrize(("client", "newest"), [("0", 3), ("1", 2), ("2", 2)])
def test_saved_models_are_read(old, client, newest):
    store = ClientStore(old / "state", experiment(old), client)
    for tag in (newest, 2):
        saved = store.load(before=tag + 1)
        path = old / "state" / experiment(old) / client / f"round-{tag:06d}.safetensors"
        tensors = safetensors.torch.load(path.read_bytes())
        assert saved is not None
        assert saved.note
        assert saved.tensors.keys() == tensors.keys()
        assert all(torch.equal(saved.tensors[name], tensors[name]) for name in tensors)
