"""`make gpu-check` runs on a CPU too, small: that the script works is seen here, its figures on a GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "gpu" / "check.py"


def load(path):
    spec = importlib.util.spec_from_file_location(f"speed_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    return load(SCRIPT)


@pytest.fixture(scope="module")
def results(script):
    return script.check(script.SMALL, torch.device("cpu"))


def test_everything_is_measured(results):
    kinds = ["cross-entropy", "gcsa", "rcsa", "hpcl + hpal"]
    assert list(results["seconds per epoch"]) == ["bare", "float32", *kinds]
    assert all(value > 0 for value in results["seconds per epoch"].values())
    assert list(results["step with an alignment"]) == kinds[1:]
    assert list(results["cohort"]) == ["mlp", "tiny_cnn"]
    for found in results["cohort"].values():
        assert found["times as fast"] == found["one by one"] / found["together"] > 0
        assert found["weights apart"] < 1e-5


def test_memory_of_a_cpu_is_not_made_up(results):
    assert results["memory"] == {"MiB after each round": [], "peak MiB": 0.0, "growth MiB": None}


def test_the_table_names_each_figure(script, results):
    told = script.table(results)
    for name in ("bare", "with gcsa", "with rcsa", "with hpcl + hpal", "epoch over a bare loop", "bf16 over float32"):
        assert name in told
    for name in ("mlp, together", "tiny_cnn, together", "target 5.0", "target 1.05", "target 1.1"):
        assert name in told


def test_an_interpreter_without_pytorch_is_told_what_to_do():
    command = [sys.executable, "-I", "-S", str(SCRIPT)]  # it sees no installed package
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "without torch and numpy" in done.stderr
    assert "make gpu-check PYTHON=/path/to/python" in done.stderr


def test_docs_performance_reads_what_a_gpu_machine_writes(results, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "speed"))
    memory = {"MiB after each round": [10.0, 10.5], "peak MiB": 1234.0, "growth MiB": 0.5}  # a CPU has none
    (tmp_path / "gpu.json").write_text(json.dumps({**results, "memory": memory}))
    page = load(BENCHMARKS / "speed" / "table.py").page(tmp_path)
    text = page.partition("\n## On a GPU\n")[2].partition("\n## ")[0]
    assert "`make gpu-check` on cpu" in text
    assert text.count("| 1.05, ") == 3
    assert text.count("| 5, ") == 2


def test_the_bare_loop_trains(script):
    size = script.SMALL
    _, model = script.make_model(size, torch.device("cpu"), seed=0)
    before = model.head.weight.detach().clone()
    script.bare_epoch(model, script.make_data(size, torch.device("cpu")), size)
    assert not torch.equal(model.head.weight, before)
