import json
import os

import pytest
import safetensors.torch
import torch

from isoproto.errors import StateError
from isoproto.parts import LastAccuracy, ServerState
from isoproto.runs.checkpoint import Checkpoint, load_checkpoint, rewrite_checkpoints, save_checkpoint
from tests.fakes import full_disk, small_files


def checkpoint(server_round, **values):
    return Checkpoint(server_round, {"p": torch.full((2, 3), float(server_round))}, values)


def files(folder):
    return sorted(os.listdir(folder))


def test_what_was_saved_is_loaded(tmp_path):
    tensors = {
        "float": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)),
        "bool": torch.tensor([True, False]),
        "int": torch.tensor([2**62, -1]),
        "scalar": torch.tensor(5),
        "none": torch.zeros(0, 4),
        "strided": torch.arange(6.0).view(2, 3).T,
    }
    values = {"accuracy": {"0": [1, 2, 3, "cnn"]}, "text": "ä\n", "none": None}
    save_checkpoint(tmp_path / "new", Checkpoint(7, tensors, values))
    loaded = load_checkpoint(tmp_path / "new")
    assert (loaded.server_round, loaded.values) == (7, values)
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded.tensors[name], tensor)
        assert loaded.tensors[name].dtype == tensor.dtype


def test_nothing_saved_is_none(tmp_path):
    assert load_checkpoint(tmp_path / "missing") is None
    assert load_checkpoint(tmp_path) is None


def test_the_newest_two_are_kept(tmp_path):
    for server_round in (0, 1, 2, 9, 10):
        save_checkpoint(tmp_path, checkpoint(server_round))
    assert files(tmp_path) == ["round-000009.safetensors", "round-000010.safetensors"]
    assert load_checkpoint(tmp_path).server_round == 10


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\xff" * 100])
def test_a_damaged_newest_file_is_passed_over(tmp_path, damage):
    save_checkpoint(tmp_path, checkpoint(1, what="good"))
    save_checkpoint(tmp_path, checkpoint(2)).write_bytes(damage)
    assert load_checkpoint(tmp_path)[::2] == (1, {"what": "good"})


@pytest.mark.parametrize("cut", [8, 100, -1])
def test_a_newest_file_that_was_cut_short_is_passed_over(tmp_path, cut):
    save_checkpoint(tmp_path, checkpoint(1))
    path = save_checkpoint(tmp_path, checkpoint(2))
    path.write_bytes(path.read_bytes()[:cut])
    assert load_checkpoint(tmp_path).server_round == 1


def test_all_files_damaged_is_told_of(tmp_path):
    for server_round in (1, 2):
        save_checkpoint(tmp_path, checkpoint(server_round)).write_bytes(b"")
    with pytest.raises(StateError, match=r"no checkpoint in .* can be read \(round-000002.*; round-000001.*backup, or"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("metadata", [None, {"isoproto": "[]"}, {"isoproto": json.dumps({"format": 99})}, {"x": "y"}])
def test_a_file_of_something_else_is_told_of(tmp_path, metadata):
    safetensors.torch.save_file({"w": torch.zeros(1)}, tmp_path / "round-000003.safetensors", metadata=metadata)
    with pytest.raises(StateError, match="no checkpoint in"):
        load_checkpoint(tmp_path)


def test_a_later_format_is_named(tmp_path):
    header = json.dumps({"format": 99, "round": 3, "values": {}})
    safetensors.torch.save_file(
        {"w": torch.zeros(1)}, tmp_path / "round-000003.safetensors", metadata={"isoproto": header}
    )
    with pytest.raises(StateError, match="format 99, this version reads 1"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("broken", [lambda: small_files(100), full_disk], ids=["short", "full"])
def test_a_full_disk_keeps_the_checkpoints_before(tmp_path, broken):
    save_checkpoint(tmp_path, checkpoint(1))
    save_checkpoint(tmp_path, checkpoint(2))
    with broken(), pytest.raises(StateError, match="Free some space or fix the permissions, or choose another folder"):
        save_checkpoint(tmp_path, checkpoint(3))
    assert files(tmp_path) == ["round-000001.safetensors", "round-000002.safetensors"]
    assert load_checkpoint(tmp_path).server_round == 2


def test_a_file_left_by_a_kill_is_no_checkpoint(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1))
    left = tmp_path / ".round-000002.safetensors.123.tmp"
    left.write_bytes(b"half")
    assert load_checkpoint(tmp_path).server_round == 1
    save_checkpoint(tmp_path, checkpoint(2))
    assert left.exists()  # perhaps somebody's who still writes it
    save_checkpoint(tmp_path, checkpoint(3))
    assert files(tmp_path) == ["round-000002.safetensors", "round-000003.safetensors"]


# The server's state


def server_state():
    generator = torch.Generator().manual_seed(0)
    return ServerState(
        server_round=3,
        prototypes=torch.randn(4, 5, generator=generator),
        present=torch.tensor([True, False, True, False]),
        age=torch.tensor([0, 3, 1, 2]),
        shared={"head.weight": torch.randn(4, 5, generator=generator), "shared.deep": torch.tensor(3)},
        accuracy={"0": LastAccuracy(3, 9, 2, "cnn"), "ward-1": LastAccuracy(0, 0, 0, "resnet")},
        empty_rounds=1,
    )


def test_server_state_survives_a_checkpoint(tmp_path):
    state = server_state()
    save_checkpoint(tmp_path, state.to_checkpoint())
    loaded = ServerState.from_checkpoint(load_checkpoint(tmp_path))
    for name in ("prototypes", "present", "age"):
        assert torch.equal(getattr(loaded, name), getattr(state, name))
    assert loaded.shared.keys() == state.shared.keys()
    assert all(torch.equal(loaded.shared[name], tensor) for name, tensor in state.shared.items())
    assert (loaded.server_round, loaded.accuracy, loaded.empty_rounds) == (3, state.accuracy, 1)


def test_the_state_before_round_1_knows_nothing(tmp_path):
    save_checkpoint(tmp_path, ServerState.start(4, 5).to_checkpoint())
    loaded = ServerState.from_checkpoint(load_checkpoint(tmp_path))
    assert (loaded.server_round, loaded.accuracy, loaded.shared) == (0, {}, {})
    assert loaded.prototypes.shape == (4, 5)
    assert not loaded.present.any()


def test_all_checkpoints_are_rewritten_and_damaged_ones_deleted(tmp_path):
    for server_round in (1, 2):
        save_checkpoint(tmp_path, checkpoint(server_round, secret="x"))
    rewrite_checkpoints(tmp_path, lambda found: found._replace(values={}))
    assert files(tmp_path) == ["round-000001.safetensors", "round-000002.safetensors"]
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())
    assert load_checkpoint(tmp_path).server_round == 2
    (tmp_path / "round-000002.safetensors").write_bytes(b"damaged")
    rewrite_checkpoints(tmp_path, lambda found: found)
    assert files(tmp_path) == ["round-000001.safetensors"]


def test_a_checkpoint_that_cannot_be_rewritten_stays(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(1, secret="x"))
    before = path.read_bytes()
    with full_disk(), pytest.raises(StateError, match="nothing was lost"):
        rewrite_checkpoints(tmp_path, lambda found: found._replace(values={}))
    assert path.read_bytes() == before
