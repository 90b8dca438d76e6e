"""What can be said of the speed benchmarks without measuring anything."""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from isoproto.maps.scattering import Scattering
from models import architecture_for

SPEED = Path(__file__).parents[2] / "benchmarks" / "speed"


def script(name, monkeypatch):
    monkeypatch.syspath_prepend(str(SPEED))
    spec = importlib.util.spec_from_file_location(name, SPEED / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("clients", [8, 20, 40])
def test_the_two_processes_of_the_bare_loop_have_equal_shares(clients, monkeypatch):
    """Else it waits for the slower one, and the simulation is held against too slow a loop."""
    shares = script("round_overhead", monkeypatch).deal_out(clients, 2)
    assert sorted(shares[0] + shares[1]) == list(range(clients))
    one, other = (Counter(architecture_for("demo4", client) for client in share) for share in shares)
    assert max(abs(one[name] - other[name]) for name in one | other) <= 1


def test_one_process_of_the_bare_loop_has_all(monkeypatch):
    assert script("round_overhead", monkeypatch).deal_out(20, 1) == [list(range(20))]


FEDERATION = """
import sys
from client_app.app import make_app
from isoproto.engines.in_process import InProcessGrid, in_process_host, task_identity
from server_app.app import run_federation
with task_identity():
    app = make_app(in_process_host)
    run_federation(InProcessGrid(app, 2), {"data": "digits4", "max-samples": 80, "models": "mlp,cnn", "rounds": 2,
                                           "output-dir": sys.argv[1] + "/runs", "state-dir": sys.argv[1] + "/state"})
"""


def test_workers_note_where_their_time_goes(tmp_path, monkeypatch):
    round_overhead = script("round_overhead", monkeypatch)
    with round_overhead.noting(tmp_path / "parts"):
        command = [sys.executable, "-c", FEDERATION, str(tmp_path)]
        subprocess.run(command, cwd=SPEED.parents[1], check=True, capture_output=True)
    assert "ISOPROTO_PARTS" not in os.environ
    parts, written = round_overhead.where_time_goes(tmp_path / "parts", range(2, 3))
    assert set(parts) == {
        "training",
        "class statistics",
        "evaluation",
        "data and settings",
        "model is built or filled",
        "model is read from disk",
        "model is copied for the disk",
        "messages are read and written",
        "the rest",
    }
    assert all(value > 0 for value in [*parts.values(), written])
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


def test_a_round_is_measured_between_two_bare_loops(monkeypatch):
    """What takes minutes is made up: which runs there are, and what of them is written down."""
    round_overhead = script("round_overhead", monkeypatch)
    asked, bare, told = [], iter(range(1, 100)), {}

    def simulated(size, rounds, alignment):
        asked.append(alignment)
        return {"rounds": [10.0], "memory": {}, "parts": {}, "written": 0.0}

    monkeypatch.setattr(round_overhead, "simulated", simulated)
    monkeypatch.setattr(round_overhead, "bare_median", lambda *words: float(next(bare)))
    monkeypatch.setattr(round_overhead, "require_idle", lambda force: None)
    monkeypatch.setattr(round_overhead, "write_results", lambda name, results: told.update(results))
    monkeypatch.setattr(sys, "argv", ["round_overhead.py"])
    round_overhead.main()
    assert asked == 2 * ["none", "gcsa", "none"]
    few = told["sizes"]["20 clients"]
    # The bare loops: 1 and 2 s in the two forms, then 3, 4 and 5 s in the faster one.
    assert [run["ratio"] for run in few["alignment none"]["runs"]] == [10 / 2, 10 / 4.5]
    assert [run["ratio"] for run in few["alignment gcsa"]["runs"]] == [10 / 3.5]
    assert few["alignment none"]["ratio"] == (10 / 2 + 10 / 4.5) / 2


@pytest.mark.parametrize(("channels", "size"), [(1, 32), (3, 32), (1, 64)])
def test_the_naive_scattering_gives_the_features_of_the_map(channels, size, monkeypatch):
    pictures = torch.randint(0, 256, (2, channels, size, size), generator=torch.Generator().manual_seed(0)).byte()
    features = Scattering((channels, size, size), torch.device("cpu"))(pictures)
    naive = script("maps", monkeypatch).naive_scattering(pictures)
    torch.testing.assert_close(features, naive, rtol=1e-4, atol=1e-4)


def test_figures_of_maps_reach_their_targets_from_the_right_side(monkeypatch):
    found = {"targets": {"a, pictures/s": 10, "b, s": 10}, "figures": {"a, pictures/s": 20.0, "b, s": 20.0, "c": 1.0}}
    _, _, first, second, third = script("table", monkeypatch).maps(found)
    assert "missed" not in first
    assert "missed" in second
    assert third == "| c | 1.0 |  |"
