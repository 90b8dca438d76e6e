"""What a client's process does not import before it needs it: every worker and SuperNode pays for it at its start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("PIL", "torchvision", "pandas", "datasets", "matplotlib", "scipy", "sklearn", "ray", "torch._dynamo", "sympy")


@pytest.fixture(scope="module")
def imported() -> set[str]:
    code = "import client_app.app, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", HEAVY)
def test_the_client_app_imports_nothing_heavy(imported, module):
    assert {"torch", "flwr", "client_app.app"} <= imported
    assert module not in imported


@pytest.mark.parametrize("ours", ["server_app", "strategies", "isoproto.report", "isoproto.cli", "isoproto.deploy"])
def test_the_client_app_imports_no_code_of_the_server_or_the_command_line(imported, ours):
    assert not {name for name in imported if name == ours or name.startswith(ours + ".")}


def test_local_training_needs_nothing_but_torch_and_numpy():
    """benchmarks/gpu/check.py runs it where nothing is installed."""
    absent = ("flwr", "PIL", "torchvision", "safetensors", "typer", "rich", "grpc", "cryptography", "psutil", "scipy")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import client_app.training, models"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
