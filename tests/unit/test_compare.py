"""`benchmarks/compare.py`: which differences it sees, and that the present code takes the settings of its runs."""

import doctest
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from benchmarks import compare
from isoproto.config import RunConfig, read_overrides
from server_app.app import unknown_names
from strategies import STRATEGIES

SCRIPT = Path(compare.__file__)
BEFORE = {"metrics": [{"round": 1, "loss": 0.1, "bytes": {"up": 3, "down": 4}}], "name": "x"}


def altered(**line):
    return {**BEFORE, "metrics": [{**BEFORE["metrics"][0], **line}]}


def test_equal_results_have_no_difference():
    assert compare.difference(BEFORE, json.loads(json.dumps(BEFORE))) == ""


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (altered(loss=0.1 + 2**-55), "metrics[0].loss: 0.1, then 0.10000000000000003"),
        (altered(round=1.0), "metrics[0].round: 1, then 1.0"),
        (altered(bytes={"down": 4, "up": 3}), "metrics[0].bytes: keys in another order: ['up', 'down'], then"),
        (altered(new=0), "metrics[0]: keys gone [], new ['new']"),
        ({**BEFORE, "metrics": []}, "metrics: 1 entries, then 0"),
        ({"metrics": BEFORE["metrics"]}, "keys gone ['name'], new []"),
    ],
)
def test_the_first_difference_is_named(after, found):
    assert found in compare.difference(BEFORE, after)


def test_the_example_holds():
    assert doctest.testmod(compare).failed == 0


@pytest.mark.parametrize("settings", {**compare.IN_PROCESS, **compare.UNDER_FLOWER}.values())
def test_the_settings_of_a_run_are_valid(settings):
    config = RunConfig.from_mapping(read_overrides([settings]), check=unknown_names)
    STRATEGIES[config.strategy].resolve(config)


def test_a_file_of_tensors_is_read_as_digests_and_values(tmp_path):
    """A tensor that changes by one bit changes its digest and no other's."""
    tensors = {"b": np.ones(3, np.float32), "a": np.arange(6).reshape(2, 3)}
    (tmp_path / "one.safetensors").write_bytes(safetensors.numpy.save(tensors, {"note": "[1, 2.5]"}))
    tensors["b"][0] = np.nextafter(np.float32(1), np.float32(2))
    (tmp_path / "other.safetensors").write_bytes(safetensors.numpy.save(tensors, {"note": "[1, 2.5]"}))
    one, other = (compare._tensors(tmp_path / f"{name}.safetensors") for name in ("one", "other"))
    assert one["__metadata__"] == {"note": [1, 2.5]}
    assert one["a"] == other["a"]
    assert one["a"][:2] == ["I64", [2, 3]]
    assert one["b"] != other["b"]


def test_a_checkout_that_cannot_run_is_a_failure(tmp_path):
    """The process of an empty checkout must not find the code of this one."""
    for command in (
        ["init", "-q"],
        ["-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-mx"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    command = [sys.executable, str(SCRIPT), str(tmp_path), str(tmp_path), "--only", "local domain"]
    done = subprocess.run([*command, "--cache", str(tmp_path / "cache")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "local domain" in done.stdout
    assert "not from the checkout" in done.stdout or "No module named" in done.stdout
    assert done.stdout.endswith("0 of 1 runs are equal\n")
