"""Measure memory, disk and time of many clients under Flower and Ray.

Large models: 200 clients with a ResNet-18 each (11 million numbers), 20 rounds, 20 % of the clients in a round. There
are few and small pictures, so that a round takes seconds. Here memory must not grow, and the space on the disk counts.

Small clients: 1,000 and 5,000 clients with some kilobytes each, 2 % in a round; and 5,000 clients with as many
participants as the 1,000 have. Here the time of a round must depend on its participants, not on all clients.

    python benchmarks/speed/scale.py [--large-clients 200] [--sizes NAME ...] [--force]

Sizes that are not measured keep their place in the JSON.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import require_idle, write_results
from round_overhead import flatness, sample_memory

from benchmarks.record import recorded
from isoproto.engines.flower import run_under_flower
from models import ModelSpec, create_model

CLASSES, SAMPLES = 10, 24
LARGE = "large models"
SMALL = {"models": "mlp,tiny_cnn", "feature-dim": 64, "batch-size": 10, "rounds": 60}
SIZES: dict[str, dict[str, Any]] = {
    LARGE: {
        "models": "resnet18",
        "feature-dim": 512,
        "batch-size": 10,
        "rounds": 20,
        "clients": 200,
        "fraction": 0.2,
    },
    "1,000 clients, 2 %": {**SMALL, "clients": 1000, "fraction": 0.02},
    "5,000 clients, 0.4 %": {**SMALL, "clients": 5000, "fraction": 0.004},
    "5,000 clients, 2 %": {**SMALL, "clients": 5000, "fraction": 0.02},
}
# Each is the largest ratio that is allowed: memory in the last quarter of the rounds to that in the second quarter;
# seconds per participant with five times as many participants; seconds of a round with five times as many clients, but
# as many participants.
TARGETS = {"memory growth": 1.05, "seconds per participant": 1.0, "seconds for clients that rest": 1.1}
WARM_UP = 2  # first rounds import, load data and fill caches
GENERATIONS = 2.2  # models of one client on the disk at most, on average (client_app/store.py)


def make_data(clients: int, path: Path) -> None:
    """Write 16x16 pictures whose class is a pattern under noise, ``SAMPLES`` for each client."""
    rng = np.random.default_rng(0)
    y = np.arange(clients * SAMPLES) % CLASSES
    patterns = rng.integers(0, 160, (CLASSES, 16, 16, 1), dtype=np.uint8)
    x = patterns[y] + rng.integers(0, 96, (len(y), 16, 16, 1), dtype=np.uint8)
    some, classes = slice(0, CLASSES), np.array([str(c) for c in range(CLASSES)])
    np.savez(path, train_x=x[CLASSES:], train_y=y[CLASSES:], test_x=x[some], test_y=y[some], classes=classes)


def measure(size: dict[str, Any], parent: Path) -> dict[str, Any]:
    """Run one federation and return what it took."""
    with tempfile.TemporaryDirectory(prefix="isoproto-scale-", dir=parent) as scratch:
        folder = Path(scratch)
        make_data(size["clients"], folder / "pictures.npz")
        settings = {key: value for key, value in size.items() if key != "clients"}
        settings |= {"data": f"npz:{folder / 'pictures.npz'}", "partition": "iid", "strategy": "fedsaf"}
        settings |= {"output-dir": str(folder / "runs"), "state-dir": str(folder / "state")}
        memory: list[tuple[float, float]] = []
        stop = threading.Event()
        sampler = threading.Thread(target=sample_memory, args=(memory, stop))
        sampler.start()
        began = time.time()
        try:
            run_under_flower(settings, clients=size["clients"])
        finally:
            stop.set()
            sampler.join()
        ended = time.time()
        (run,) = (folder / "runs").iterdir()
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rounds = [line for line in lines if line["kind"] == "round"]
        assert all(line["failed"] == 0 for line in rounds)
        said = moments(run / "log.txt")
        ends = [line["seconds"]["since_start"] for line in rounds]
        # From the end of one round to the end of the next; an evaluation of everybody follows the last one.
        each = [later - earlier for earlier, later in zip(ends[WARM_UP - 1 :], ends[WARM_UP:], strict=False)]
        first = said("round 1/") - rounds[0]["seconds"]["round"]
        participants = rounds[-1]["clients"]
        # The start takes less memory and the report takes more, so neither is counted.
        start, end = said(f"round {WARM_UP}/") - began, said(f"round {size['rounds']}/") - began
        of_rounds = [(at, mib) for at, mib in memory if start < at < end]
        return {
            "clients": size["clients"],
            "participants": participants,
            "rounds": each,
            "seconds": statistics.median(each),
            "milliseconds per participant": 1e3 * statistics.median(each) / participants,
            "server, seconds": statistics.median(line["seconds"]["server"] for line in rounds[WARM_UP:]),
            "start": {
                "the server app runs": said("run folder") - began,
                "all clients are known": said("training samples of each client") - began,
                "all are evaluated, round 1 begins": first - began,
            },
            "end": {
                "last evaluation and report": said("report: ") - said(f"round {size['rounds']}/"),
                "the command, all in all": ended - began,
            },
            "memory": {**flatness(of_rounds), "peak_mib": round(max(mib for _, mib in memory))},
            "disk": {
                "model_mib": model_mib(size),
                "state_mib": used_mib(folder / "state"),
                "run_folder_mib": used_mib(run),
                "report_mib": used_mib(run / "report.html"),
            },
        }


def moments(log: Path) -> Any:
    """Return a function that finds the time (seconds since 1970) of the first log line that contains some words."""
    lines = [line for line in log.read_text("utf8").splitlines() if line[:2] == "20"]

    def when(words: str) -> float:
        found = next(line for line in lines if words in line)
        second, millisecond = found[:23].split(",")
        return time.mktime(time.strptime(second, "%Y-%m-%d %H:%M:%S")) + int(millisecond) / 1e3

    return when


def used_mib(path: Path) -> float:
    """Return the MiB of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return round(sum(file.stat().st_size for file in files) / 2**20, 2)


def model_mib(size: dict[str, Any]) -> float:
    """Return the MiB of the largest model."""
    spec = ModelSpec(1, 16, 16, feature_dim=size["feature-dim"], num_classes=CLASSES)
    states = (create_model(name, spec, seed=0).state_dict() for name in size["models"].split(","))
    return round(max(sum(t.nbytes for t in state.values()) for state in states) / 2**20, 2)


def main() -> None:
    """Measure all sizes and write benchmarks/results/scale.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large-clients", type=int, default=SIZES[LARGE]["clients"], help="of the large models")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="what to measure")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where models go meanwhile")
    parser.add_argument("--force", action="store_true", help="measure on a busy machine; nothing is recorded")
    arguments = parser.parse_args()
    require_idle(arguments.force)
    sizes = {**SIZES, LARGE: {**SIZES[LARGE], "clients": arguments.large_clients}}
    wanted = GENERATIONS * arguments.large_clients * model_mib(sizes[LARGE])
    free = shutil.disk_usage(arguments.folder).free / 2**20
    if LARGE in arguments.sizes and wanted > free:
        sys.exit(f"{wanted / 1024:.0f} GiB are needed in {arguments.folder}, {free / 1024:.0f} are free; see --folder")
    found = recorded("scale").get("sizes", {})
    for name in arguments.sizes:
        found[name] = measure(sizes[name], arguments.folder)
        print(name, json.dumps(found[name], indent=1), flush=True)
    if not arguments.force:
        ordered = {name: found[name] for name in SIZES if name in found}
        command = f"python benchmarks/speed/scale.py --large-clients {ordered.get(LARGE, sizes[LARGE])['clients']}"
        print("wrote", write_results("scale", {"command": command, "targets": TARGETS, "sizes": ordered}))


if __name__ == "__main__":
    main()
