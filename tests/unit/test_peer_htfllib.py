"""The harness beside HtFLlib: what can be seen without a checkout of it."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from isoproto.data import PartitionOptions, client_data, load_dataset, split_clients

SPEED = Path(__file__).parents[2] / "benchmarks" / "speed"


@pytest.fixture
def peer(monkeypatch):
    import importlib.util

    monkeypatch.syspath_prepend(str(SPEED))
    spec = importlib.util.spec_from_file_location("peer_htfllib", SPEED / "peer_htfllib.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TRAIN", 20)
    monkeypatch.setattr(module, "TEST", 10)
    return module


def content(pictures, labels):
    return sorted(zip((np.asarray(x).tobytes() for x in pictures), map(int, labels), strict=True))


def test_each_client_has_the_same_pictures_in_both_formats(peer, tmp_path):
    data = peer.make_data(clients=3)
    peer.write_ours(data, tmp_path / "ours.npz")
    peer.write_theirs(data, tmp_path / "theirs")
    dataset = load_dataset(f"npz:{tmp_path / 'ours.npz'}", "")
    splits = split_clients(
        dataset,
        partition="domain",
        clients=3,
        seed=1,
        options=PartitionOptions(alpha=0.1, classes_per_client=2, min_samples=2),
        split="official",
        test_fraction=0.25,
    )
    ours, theirs = [], []
    for client, split in enumerate(splits):
        mine = client_data(dataset, split)
        ours.append([content(mine.train_x, mine.train_y), content(mine.test_x, mine.test_y)])
        files = [tmp_path / "theirs" / part / f"{client}.npz" for part in ("train", "test")]
        theirs.append([])
        for file in files:
            with np.load(file, allow_pickle=True) as archive:
                data = archive["data"].tolist()
            assert data["x"].dtype == np.float32
            assert data["x"].shape == (len(data["y"]), 3, 32, 32)
            theirs[-1].append(content(np.rint(data["x"] * 255).astype(np.uint8), data["y"]))
    # Which client has which pictures is drawn here; all have the same model.
    assert sorted(ours) == sorted(theirs)


def test_its_rounds_and_its_accuracy_are_read(peer):
    lines = [
        f"-------------Round number: {i}-------------\nClient 0: Acc: 0.1, AUC: 0.5\n"
        f"Averaged Test Accurancy: 0.{i}25\nAveraged Test AUC: 0.9\n{'-' * 50} {i + 0.5}\n"
        for i in range(4)
    ]
    found = peer.read_peer("models\n" + "".join(lines) + "\nBest accuracy.\n0.325\n", rounds=3)
    assert found == {"rounds": [1.5, 2.5], "seconds": 2.0, "accuracy": 0.325}


def test_output_that_is_cut_short_is_told(peer):
    with pytest.raises(ValueError, match="expected 3 rounds and tests of HtFLlib in its output, got 0 and 0"):
        peer.read_peer("Traceback: no module", rounds=2)


def test_our_rounds_are_read_and_the_accuracy_that_it_measures_too(peer):
    """HtFLlib tests FedProto by the nearest global prototype; by its head a model may be better or worse."""

    def line(i):
        return {"kind": "round", "seconds": {"since_start": 10.0 + i * i}, "accuracy": {"micro": 0.1}}

    def evaluation(*clients):
        names = ("correct", "total", "correct_prototype")
        return {"kind": "evaluation", "clients": [dict(zip(names, one, strict=True)) for one in clients]}

    entries = (evaluation((1, 9, 0)), *map(line, (1, 2, 3)), evaluation((3, 10, 5), (6, 10, 9)))
    text = "\n".join(map(json.dumps, entries))
    wanted = {"rounds": [3.0, 5.0], "seconds": 4.0, "accuracy": 0.7, "accuracy by its head": 0.45}
    assert peer.read_ours(text, rounds=3) == wanted
    with pytest.raises(ValueError, match=r"expected 4 rounds in metrics\.jsonl, got 3"):
        peer.read_ours(text, rounds=4)


def test_a_run_of_ours_ends_in_figures(peer):
    arguments = argparse.Namespace(clients=2, rounds=2, epochs=1, batch=10)
    found = peer.run_ours(peer.make_data(clients=2), arguments, "in-process")
    assert found["seconds"] > 0
    assert 0 <= found["accuracy"] <= 1


def test_the_launcher_runs_what_the_checkout_has(peer, tmp_path, monkeypatch):
    """A stand-in with the interface that the launcher counts on, printing as HtFLlib does.

    It keeps whole models in files, which PyTorch from 2.6 on does not read unless told to, and may use all cores.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    servers = tmp_path / "system" / "flcore" / "servers"
    servers.mkdir(parents=True)
    (servers / "serverproto.py").write_text(
        "import os, numpy as np, torch\n"
        "class FedProto:\n"
        "    def __init__(self, args, times): self.args = args\n"
        "    def train(self):\n"
        "        assert 'OMP_NUM_THREADS' not in os.environ\n"
        "        torch.save(torch.nn.Linear(2, 2), 'model.pt')\n"
        "        assert torch.load('model.pt').in_features == 2\n"
        "        for i in range(self.args.global_rounds + 1):\n"
        "            file = np.load(f'../dataset/{self.args.dataset}/train/0.npz', allow_pickle=True)\n"
        "            print('Averaged Test Accurancy: {:.4f}'.format(len(file['data'].tolist()['y']) / 100))\n"
        "            print('-' * 50, 0.5 + i)\n"
    )
    arguments = argparse.Namespace(clients=2, rounds=2, epochs=1, batch=10)
    found = peer.run_peer(tmp_path, sys.executable, peer.make_data(clients=2), arguments)
    assert found == {"rounds": [1.5], "seconds": 1.5, "accuracy": 0.2}


def test_without_a_checkout_it_says_how_to_get_one(tmp_path):
    command = [sys.executable, str(SPEED / "peer_htfllib.py"), "--checkout", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "git clone https://github.com/TsingZ0/HtFLlib" in done.stderr
    assert f"no checkout of HtFLlib at {tmp_path / 'none'}" in done.stderr
