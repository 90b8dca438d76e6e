"""Compare FedProto in HtFLlib with FedProto here: seconds per round and accuracy on the same data.

The two runs follow each other on a CPU. Both train the same small CNN (5x5 convolutions of 32 and 64 channels, 512
features) with SGD of the same rate and without momentum. Both have the same pictures in the same clients, and test
every client in every round. HtFLlib tests FedProto by the nearest global prototype, so this accuracy is compared; the
accuracy of our models' heads is given as well. Some differences remain: HtFLlib drops a last batch that is not full,
and starts all clients with equal weights. Here the last batch is used, and clients start with different weights.
HtFLlib takes as many threads as PyTorch gives it.

    python benchmarks/speed/peer_htfllib.py --checkout PATH [--peer-python PATH/OF/ITS/python] [--rounds 5] [--force]

Nothing of HtFLlib is part of this project. Without a checkout of it the script exits with status 2 and says how to get
one.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import ROOT, require_idle, write_results

NAME, CLASSES, TRAIN, TEST, RATE, TARGET = "isoproto_bench", 10, 300, 100, 0.01, 10.0
HOW = """no checkout of HtFLlib at {checkout}: get one and its environment, then name both
    git clone https://github.com/TsingZ0/HtFLlib
    python benchmarks/speed/peer_htfllib.py --checkout HtFLlib --peer-python PYTHON/WITH/ITS/REQUIREMENTS"""

# Runs in the folder `system` of HtFLlib. We do not use its main.py: that has no model family with only the small CNN,
# and imports all of its methods.
LAUNCHER = """
import argparse, json, sys
import torch
from flcore.servers.serverproto import FedProto
torch.manual_seed(0)
FedProto(argparse.Namespace(**json.loads(sys.argv[1])), 0).train()
"""


def make_data(clients: int) -> dict[str, np.ndarray]:
    """Return the pictures of all clients; a class is a colour pattern under noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 160, (CLASSES, 32, 32, 3), dtype=np.uint8)
    data: dict[str, np.ndarray] = {"classes": np.array([str(c) for c in range(CLASSES)])}
    data["domains"] = np.array([f"client{i}" for i in range(clients)])
    for part, each in (("train", TRAIN), ("test", TEST)):
        y = np.tile(np.arange(CLASSES), clients * each // CLASSES)
        data[f"{part}_x"] = patterns[y] + rng.integers(0, 96, (len(y), 32, 32, 3), dtype=np.uint8)
        data[f"{part}_y"] = y
        data[f"{part}_domain"] = np.repeat(np.arange(clients), each)
    return data


def write_ours(data: dict[str, np.ndarray], path: Path) -> None:
    """Write one file for all clients, in which each client is a domain.

    Which client gets which domain is random. That changes nothing, as all clients have the same model.
    """
    np.savez(path, **data)


def write_theirs(data: dict[str, np.ndarray], folder: Path) -> None:
    """Write two files for each client, with float pictures [n, 3, 32, 32] in [0, 1] and labels [n]."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for client in range(len(data["domains"])):
            mine = data[f"{part}_domain"] == client
            x = data[f"{part}_x"][mine].transpose(0, 3, 1, 2).astype(np.float32) / 255
            content: Any = {"x": x, "y": data[f"{part}_y"][mine]}
            np.savez_compressed(folder / part / f"{client}.npz", data=content)


def peer_arguments(clients: int, rounds: int, batch: int, epochs: int) -> dict[str, Any]:
    """Return the arguments that the command line of HtFLlib would produce."""
    return {
        "algorithm": "FedProto",
        "models": ["FedAvgCNN(in_features=3, num_classes=args.num_classes, dim=1600)"],
        "dataset": NAME,
        "device": "cpu",
        "device_id": "0",
        "num_classes": CLASSES,
        "num_clients": clients,
        "join_ratio": 1.0,
        "random_join_ratio": False,
        "batch_size": batch,
        "local_epochs": epochs,
        "global_rounds": rounds,
        "local_learning_rate": RATE,
        "learning_rate_decay": False,
        "learning_rate_decay_gamma": 0.99,
        "lamda": 1.0,
        "feature_dim": 512,
        "eval_gap": 1,
        "goal": "isoproto",
        "save_folder_name": "temp",
        "models_folder_name": "",
        "model_family": "isoproto",
        "top_cnt": 100,
        "auto_break": False,
        "few_shot": 0,
        "times": 1,
        "prev": 0,
        "client_drop_rate": 0.0,
        "train_slow_rate": 0.0,
        "send_slow_rate": 0.0,
        "time_select": False,
        "time_threthold": 10000.0,
        "vocab_size": 80,
        "max_len": 200,
    }


def read_peer(output: str, rounds: int) -> dict[str, Any]:
    r"""Read the seconds of HtFLlib's rounds and its final accuracy from its output.

    HtFLlib tests before it trains, so it tests once more than there are rounds. The first round is the warm-up and is
    left out. So is the round after the last test.

    Example:
        >>> line = "-" * 50
        >>> told = "".join(f"Averaged Test Accurancy: 0.{i}000\n{line} {i}.5\n" for i in range(3))
        >>> read_peer(told, rounds=2)
        {'rounds': [1.5], 'seconds': 1.5, 'accuracy': 0.2}
    """
    seconds = [float(text) for text in re.findall(r"^-{50} ([\d.e+-]+)\s*$", output, re.MULTILINE)]
    accuracy = [float(text) for text in re.findall(r"^Averaged Test Accurancy: ([\d.]+)", output, re.MULTILINE)]
    if len(seconds) != rounds + 1 or len(accuracy) != rounds + 1:
        raise ValueError(
            f"expected {rounds + 1} rounds and tests of HtFLlib in its output, got {len(seconds)} and {len(accuracy)}; "
            f"it ends: {output[-1000:]}"
        )
    counted = seconds[1:-1]
    return {"rounds": counted, "seconds": statistics.median(counted), "accuracy": accuracy[-1]}


def read_ours(metrics: str, rounds: int) -> dict[str, Any]:
    """Read seconds and accuracy from the metrics of our run; the first round is left out here, too."""
    lines = [json.loads(line) for line in metrics.splitlines()]
    found = [line for line in lines if line["kind"] == "round"]
    tested = [line for line in lines if line["kind"] == "evaluation"][-1]["clients"]
    if len(found) != rounds:
        raise ValueError(f"expected {rounds} rounds in metrics.jsonl, got {len(found)}")
    ends = [line["seconds"]["since_start"] for line in found]
    seconds = [b - a for a, b in itertools.pairwise(ends)]
    samples = sum(client["total"] for client in tested)
    return {
        "rounds": seconds,
        "seconds": statistics.median(seconds),
        "accuracy": sum(client["correct_prototype"] for client in tested) / samples,
        "accuracy by its head": sum(client["correct"] for client in tested) / samples,
    }


def run_peer(checkout: Path, python: str, data: dict[str, np.ndarray], arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the data to the folder where HtFLlib looks for them, and run it."""
    write_theirs(data, checkout / "dataset" / NAME)
    asked = peer_arguments(arguments.clients, arguments.rounds, arguments.batch, arguments.epochs)
    command = [python, "-c", LAUNCHER, json.dumps(asked)]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    environment["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it keeps whole models in files of its own
    done = subprocess.run(
        command, cwd=checkout / "system", env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"HtFLlib ended with status {done.returncode}: {done.stderr[-2000:]}")
    return read_peer(done.stdout, arguments.rounds)


def run_ours(data: dict[str, np.ndarray], arguments: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Run FedProto here, in one process as HtFLlib does, or under Flower and Ray."""
    with tempfile.TemporaryDirectory(prefix="isoproto-peer-") as scratch:
        folder = Path(scratch)
        write_ours(data, folder / "pictures.npz")
        settings = {
            "strategy": "fedproto",
            "data": f"npz:{folder / 'pictures.npz'}",
            "partition": "domain",
            "split": "official",
            "models": "cnn4",
            "feature-dim": 512,
            "rounds": arguments.rounds,
            "epochs": arguments.epochs,
            "batch-size": arguments.batch,
            "learning-rate": RATE,
            "momentum": 0.0,
            "device": "cpu",
            "output-dir": str(folder / "runs"),
            "state-dir": str(folder / "state"),
        }
        (folder / "run.toml").write_text("".join(f"{key} = {json.dumps(v)}\n" for key, v in settings.items()))
        command = [sys.executable, "-m", "isoproto.cli.main", "run", "--engine", engine]
        command += ["--clients", str(arguments.clients), "--run-config", str(folder / "run.toml")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"isoproto ended with status {done.returncode}: {done.stderr[-2000:]}")
        (run,) = (folder / "runs").iterdir()
        return read_ours((run / "metrics.jsonl").read_text(), arguments.rounds)


def main() -> None:
    """Run both, print both, and write benchmarks/results/peer_htfllib.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=Path("HtFLlib"))
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with its requirements")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--force", action="store_true", help="measure on a busy machine; nothing is recorded")
    arguments = parser.parse_args()
    checkout = arguments.checkout.expanduser().absolute()
    if not (checkout / "system" / "flcore" / "servers" / "serverproto.py").is_file():
        print(HOW.format(checkout=checkout), file=sys.stderr)
        sys.exit(2)
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2: the first is a warm-up")
    require_idle(arguments.force)
    data = make_data(arguments.clients)
    results = {"htfllib": run_peer(checkout, arguments.peer_python, data, arguments)}
    for engine in ("in-process", "flower"):
        results[f"isoproto, {engine}"] = run_ours(data, arguments, engine)
    for name, found in results.items():
        found["times faster"] = results["htfllib"]["seconds"] / found["seconds"]
        told = f"{found['seconds']:.2f} s per round, accuracy {found['accuracy']:.4f}"
        print(f"{name}: {told}, {found['times faster']:.1f} times as fast as HtFLlib")
    if not arguments.force:
        what = {key: getattr(arguments, key) for key in ("clients", "rounds", "epochs", "batch")}
        command = "python benchmarks/speed/peer_htfllib.py --checkout HtFLlib"
        print("wrote", write_results("peer_htfllib", {"command": command, **what, "target": TARGET, "runs": results}))


if __name__ == "__main__":
    main()
