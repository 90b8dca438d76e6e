import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from client_app.store import ClientStore
from isoproto.errors import StateError
from tests.fakes import full_disk, small_files


@pytest.fixture
def store(tmp_path):
    return ClientStore(tmp_path, "e1", "3")


def model(value):
    return {"w": torch.full((4,), float(value)), "count": torch.tensor(value)}


def value(saved):
    return None if saved is None else int(saved.tensors["count"])


def tags(store):
    return [name for name in sorted(os.listdir(store.folder)) if name.startswith("round")]


def test_before_anything_was_saved_there_is_nothing(store):
    assert store.load(before=1) is None


def test_what_was_saved_is_loaded_bit_for_bit(store):
    """R049: buffers are part of the state, so predictions are the same."""
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    net(torch.rand(4, 1, 8, 8))
    store.save(1, net.state_dict())
    loaded = store.load(before=2).tensors
    assert loaded.keys() == net.state_dict().keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in net.state_dict().items())
    again = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    again.load_state_dict(loaded)
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(again.eval()(x), net.eval()(x))


def test_a_note_comes_back_with_its_model(store):
    store.save(1, model(1), "first")
    store.save(2, model(2))
    assert [store.load(before=r).note for r in (2, 3)] == ["first", ""]


def test_a_model_is_taken_as_it_is_when_its_saving_is_prepared(store):
    tensors = model(1)
    write = store.prepare(1, tensors)
    tensors["count"] += 1
    assert store.load() is None
    write()
    assert value(store.load()) == 1


def test_a_round_starts_from_the_newest_model_before_it(store):
    for server_round in (2, 5):
        store.save(server_round, model(server_round))
    assert [value(store.load(before=r)) for r in (1, 2, 3, 5, 6, 100)] == [None, None, 2, 2, 5, 5]


def test_a_repeated_round_trains_nobody_twice(store):
    store.save(1, model(1))
    store.save(2, model(2))
    assert value(store.load(before=2)) == 1  # the server died in round 2 and sends it again
    store.save(2, model(22))
    assert value(store.load(before=3)) == 22
    assert value(store.load(before=2)) == 1


def test_enough_generations_are_kept_for_the_older_checkpoint(store):
    """The server keeps two checkpoints. It may die in round 4, find 3 damaged, and go on from 2: round 3 again."""
    for server_round in (1, 2, 3, 4):
        store.save(server_round, model(server_round))
    assert value(store.load(before=3)) == 2


def test_old_generations_go(store):
    for server_round in range(1, 8):
        store.save(server_round, model(server_round))
    assert tags(store) == [f"round-00000{r}.safetensors" for r in (5, 6, 7)]


def test_clients_and_experiments_are_apart(tmp_path):
    for experiment in ("e1", "e2"):
        for client in ("1", "11"):
            ClientStore(tmp_path, experiment, client).save(1, model(len(experiment + client)))
    assert value(ClientStore(tmp_path, "e1", "11").load()) == 4
    assert ClientStore(tmp_path, "e", "11").load() is None
    assert ClientStore(tmp_path, "e1", "111").load() is None


@pytest.mark.parametrize("name", ["..", ".", "../..", "a/b", "/etc", "a b", "ward:1", "ä", "%2e", "..%2f"])
def test_a_name_never_leaves_the_folder(tmp_path, name):
    """Experiment ids come from the server."""
    root = tmp_path / "state"
    for store in (ClientStore(root, name, "0"), ClientStore(root, "e", name), ClientStore(root, name, name)):
        store.save(1, model(1))
        assert len(store.folder.resolve().relative_to(root.resolve()).parts) == 2
    assert os.listdir(tmp_path) == ["state"]


def test_two_names_are_never_one_folder(tmp_path):
    names = ["..", ".", "%2E%2E", "%2e", "a/b", "a%2Fb"]
    assert len({ClientStore(tmp_path, name, "0").folder for name in names}) == len(names)


# Damage


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\xff" * 1000])
def test_a_damaged_model_is_set_aside_and_the_one_before_it_taken(store, damage, caplog):
    store.save(1, model(1))
    store.save(2, model(2))
    (store.folder / "round-000002.safetensors").write_bytes(damage)
    assert value(store.load(before=3)) == 1
    assert "client 3: cannot read its model" in caplog.text
    assert tags(store) == ["round-000001.safetensors", "round-000002.damaged"]
    store.save(3, model(3))
    assert value(store.load(before=4)) == 3


def test_a_client_whose_models_are_all_damaged_never_starts_anew_in_silence(store):
    for server_round in (1, 2):
        store.save(server_round, model(server_round))
        (store.folder / f"round-00000{server_round}.safetensors").write_bytes(b"")
    for _ in range(3):
        with pytest.raises(StateError, match=r"client 3: none of its saved models .*can be read \(rounds \[2, 1\]\)"):
            store.load(before=3)


def test_damage_of_later_rounds_is_no_matter_to_an_earlier_one(store):
    store.save(5, model(5))
    (store.folder / "round-000005.safetensors").write_bytes(b"")
    with pytest.raises(StateError):
        store.load(before=6)
    assert store.load(before=5) is None


def test_a_client_that_trains_now_and_then_keeps_what_the_older_checkpoint_asks_for(store):
    for r in (1, 5, 9, 10):
        store.save(r, model(r))
    assert [value(store.load(before=r)) for r in (9, 10, 11)] == [5, 9, 10]
    store.save(14, model(14))
    assert tags(store) == ["round-000010.safetensors", "round-000014.safetensors"]


@pytest.mark.parametrize("broken", [lambda: small_files(100), full_disk], ids=["short", "full"])
def test_a_full_disk_keeps_the_generations_before(store, broken):
    for server_round in (1, 2):
        store.save(server_round, model(server_round))
    with broken(), pytest.raises(StateError, match=r"cannot write .*round-000003.*nothing was lost.*Free some space"):
        store.save(3, model(3))
    assert tags(store) == ["round-000001.safetensors", "round-000002.safetensors"]
    assert value(store.load(before=4)) == 2


def test_a_model_that_cannot_be_read_for_now_stays_and_no_older_one_is_taken(store, monkeypatch):
    for server_round in (1, 2):
        store.save(server_round, model(server_round))

    def exhausted(_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_bytes", exhausted)
        with pytest.raises(
            StateError, match=r"client 3: cannot read its model .*000002.* now: Too many open.*The file st"
        ):
            store.load(before=3)
    assert tags(store) == ["round-000001.safetensors", "round-000002.safetensors"]
    assert value(store.load(before=3)) == 2


def test_models_are_their_owners_alone(store):
    store.save(1, model(1))
    assert stat.S_IMODE((store.folder / "round-000001.safetensors").stat().st_mode) == 0o600


def test_what_kills_have_left_goes_with_the_next_round(store):
    """Each process has another number, so none takes the name that one before it left."""
    for server_round in (1, 2):
        for _ in range(2):
            assert killed_in(store, server_round) == -signal.SIGKILL
    assert len(os.listdir(store.folder)) == 4
    store.save(2, model(2))
    assert [name.split(".")[1] for name in sorted(os.listdir(store.folder)) if name.endswith("tmp")] == [
        "round-000002"
    ] * 2
    store.save(3, model(3))
    assert sorted(os.listdir(store.folder)) == tags(store) == ["round-000002.safetensors", "round-000003.safetensors"]


def killed_in(store, server_round):
    """Save a model in a process that is killed while it writes."""
    code = f"""
import os, signal, torch
from pathlib import Path
from client_app.store import ClientStore
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
ClientStore(Path({str(store.folder.parents[1])!r}), "e1", "3").save({server_round}, {{"w": torch.zeros(4)}})
"""
    return subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode


def test_a_file_left_by_a_kill_is_no_model(store):
    store.save(1, model(1))
    (store.folder / ".round-000002.safetensors.99.tmp").write_bytes(b"half")
    assert value(store.load(before=3)) == 1
    store.save(2, model(2))
    assert value(store.load(before=3)) == 2
