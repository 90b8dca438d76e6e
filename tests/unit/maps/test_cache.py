"""Features are computed once, kept on disk, and checked when they are read."""

import concurrent.futures
import logging
import multiprocessing
import os
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoproto.data import folders
from isoproto.maps import cache
from isoproto.maps.cache import computed

X = torch.arange(24, dtype=torch.uint8).view(6, 1, 2, 2)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path))
    folders.warn_once.cache_clear()
    return tmp_path


class Counted:
    """Sums of pictures, with the sizes of the batches that were asked for."""

    def __init__(self):
        self.batches = []

    def __call__(self, x):
        self.batches.append(len(x))
        return x.flatten(1).float() / 3


def entries(home):
    return sorted(home.glob("cache/*.npy"))


def test_a_second_call_reads_what_the_first_one_wrote(home):
    function = Counted()
    first = computed(function, X, key="k", name="sums")
    assert torch.equal(computed(function, X, key="k", name="sums"), first)
    assert function.batches == [6]
    assert len(entries(home)) == 1
    assert first.dtype == torch.float32
    torch.testing.assert_close(first, X.flatten(1).float() / 3, rtol=2**-11, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "key"), [(X + 1, "k"), (X, "other"), (X[:5], "k"), (X.view(6, 2, 2), "k"), (X.to(torch.int32), "k")]
)
def test_other_samples_and_other_keys_are_other_entries(x, key, home):
    computed(Counted(), X, key="k", name="sums")
    function = Counted()
    computed(function, x, key=key, name="sums")
    assert function.batches == [len(x)]
    assert len(entries(home)) == 2


@pytest.mark.parametrize("place", [200, -1, -20, -34])
def test_a_damaged_entry_is_computed_anew_and_repaired(place, home, caplog):
    caplog.set_level(logging.INFO, "isoproto")
    function = Counted()
    first = computed(function, X, key="k", name="sums")
    (path,) = entries(home)
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    for _ in range(2):
        assert torch.equal(computed(function, X, key="k", name="sums"), first)
    assert function.batches == [6, 6]
    assert "cached features" in caplog.text
    assert "checksum" in caplog.text


@pytest.mark.parametrize("left", [0, 10, 140, 150])
def test_an_entry_that_was_cut_short_is_computed_anew(left, home):
    function = Counted()
    first = computed(function, X, key="k", name="sums")
    (path,) = entries(home)
    os.truncate(path, left)
    assert torch.equal(computed(function, X, key="k", name="sums"), first)
    assert function.batches == [6, 6]


def test_an_entry_of_something_else_is_computed_anew(home):
    function = Counted()
    computed(function, X, key="k", name="sums")
    np.save(entries(home)[0], np.zeros((40, 40)))
    computed(function, X, key="k", name="sums")
    assert function.batches == [6, 6]


def test_a_full_disk_costs_the_entry_and_not_the_features(monkeypatch, home, caplog):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "_write", full)
    function = Counted()
    for _ in range(2):
        found = computed(function, X, key="k", name="sums")
        torch.testing.assert_close(found, X.flatten(1).float() / 3, rtol=2**-11, atol=1e-6)
    assert function.batches == [6, 6]
    assert entries(home) == []
    assert caplog.text.count("features cannot be kept") == 1


def test_numbers_that_float16_cannot_hold_are_kept_whole():
    large = torch.tensor([[70_000.0, -1.0], [0.5, 2e9]])
    for _ in range(2):
        assert torch.equal(computed(lambda x: large[x], torch.arange(2), key="large", name="large"), large)


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 12))
def test_batches_change_nothing(rows, width, size):
    x = torch.arange(rows * width).view(rows, width)
    whole = cache._in_batches(lambda b: b * 2.0, x, "twice", None)
    before, cache._AT_ONCE = cache._AT_ONCE, size
    try:
        assert torch.equal(cache._in_batches(lambda b: b * 2.0, x, "twice", None), whole)
    finally:
        cache._AT_ONCE = before
    assert torch.equal(cache._unpacked(cache._packed(whole), rows), whole)


def test_no_samples_have_features_of_the_right_width_and_no_entry(home):
    assert computed(Counted(), X[:0], key="k", name="sums").shape == (0, 4)
    assert entries(home) == []


def test_batches_are_sent_to_the_device():
    seen = []
    computed(lambda x: seen.append(x.device) or torch.ones(len(x), 1), X, key="k", name="n", device=torch.device("cpu"))
    assert seen == [torch.device("cpu")]


def _in_a_process(numbers):
    return computed(lambda x: x.float() + 1, torch.tensor(numbers), key="shared", name="shared").tolist()


def test_processes_that_start_together_get_the_same(home):
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as pool:
        found = list(pool.map(_in_a_process, [[[1, 2], [3, 4]]] * 6))
    assert found == [[[2.0, 3.0], [4.0, 5.0]]] * 6
    assert len(entries(home)) == 1
    assert not list(home.glob("cache/*.tmp"))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_computation_says_so(terminal, monkeypatch, caplog, capsys):
    caplog.set_level(logging.INFO, "isoproto")
    monkeypatch.setattr(cache, "_PATIENCE", -1.0)
    monkeypatch.setattr(cache, "_AT_ONCE", 2)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    computed(Counted(), X, key="k", name="sums")
    assert ("features of 6 samples" in caplog.text) is not terminal
    assert ("100%" in capsys.readouterr().err) is terminal


def test_a_short_computation_says_nothing(caplog):
    caplog.set_level(logging.INFO, "isoproto")
    computed(Counted(), X, key="k", name="sums")
    assert caplog.text == ""
