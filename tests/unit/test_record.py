"""How benchmarks write and read their results."""

import json

import pytest

from benchmarks.record import RESULTS, record, recorded


def test_what_is_recorded_is_read_again_in_the_same_order(tmp_path):
    content = {"command": "python x.py", "unit": "s", "figures": {"b": 1.5, "a": 0.1}}
    path = record("x", content, tmp_path / "new")
    assert path == tmp_path / "new" / "x.json"
    assert json.dumps(recorded("x", tmp_path / "new")) == json.dumps(content)
    assert [file.name for file in path.parent.iterdir()] == ["x.json"]


def test_nothing_is_recorded_without_the_command_that_makes_it(tmp_path):
    with pytest.raises(ValueError, match="'x' do not say which command makes them"):
        record("x", {"figures": {}}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_was_never_recorded_is_empty(tmp_path):
    assert recorded("x", tmp_path) == {}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_files_in_the_repository_are_as_the_helper_writes_them(path, tmp_path):
    assert record(path.stem, recorded(path.stem), tmp_path).read_bytes() == path.read_bytes()
