"""What can be said of the speed benchmarks without measuring anything."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

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
