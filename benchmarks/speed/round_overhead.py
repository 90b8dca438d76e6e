"""Measure how much longer a simulated round takes than a bare training loop with the same work.

A simulated round includes Flower, Ray, all checks, and client models on disk. Reference work: pictures 32x32x3, 300 to
train and 100 to test per client, one epoch, the four demo models, class statistics, and an evaluation before and after
training. There are two sizes: 20 clients at B = 32, and 200 clients at B = 10 of which 20 % train in a round.

The bare loop is plain torch with models and float pictures in memory. It runs as one process with two threads and as
two processes with one thread; the faster form counts. Start-up is left out on both sides. The script samples the memory
of all processes, and workers note where their time goes.

A shared machine is not equally fast all the time. So each simulation runs between two bare loops and is divided by
their mean. This is done twice, and once with GCSA, for which there is no target.

    python benchmarks/speed/round_overhead.py [--rounds 8] [--repeats 2] [--force]
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
from machine import require_idle, write_results
from torch import nn
from torch.nn import functional

from isoproto.engines.flower import run_under_flower
from models import ModelSpec, architecture_for, create_model

CLASSES, TRAIN, TEST, WIDTH = 10, 300, 100, 128
SIZES = {
    "20 clients": {"clients": 20, "fraction": 1.0, "batch": 32, "target": 1.10},
    "200 clients, 20 %": {"clients": 200, "fraction": 0.2, "batch": 10, "target": 1.15},
}
WORKERS = os.cpu_count() or 1
WARM_UP = 2  # first rounds import, load data and fill caches


def make_data(clients: int, path: Path) -> None:
    """Write pictures whose class is a colour pattern under noise."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(CLASSES), clients * (TRAIN + TEST) // CLASSES)
    patterns = rng.integers(0, 160, (CLASSES, 32, 32, 3), dtype=np.uint8)
    x = patterns[y] + rng.integers(0, 96, (len(y), 32, 32, 3), dtype=np.uint8)
    classes = np.array([str(c) for c in range(CLASSES)])
    np.savez(
        path, train_x=x[:-CLASSES], train_y=y[:-CLASSES], test_x=x[-CLASSES:], test_y=y[-CLASSES:], classes=classes
    )


def bare_client(model: nn.Module, data: tuple[torch.Tensor, ...], batch: int) -> None:
    """Do the work of one client in a round as a script without a federation would."""
    x, y, test_x, test_y = data
    evaluate(model, test_x, test_y)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    order = torch.randperm(len(y))
    for index in order.split(batch):
        loss = functional.cross_entropy(model(x[index]), y[index])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    evaluate(model, test_x, test_y)
    with torch.no_grad():
        features = torch.cat([model.features(part) for part in x.split(256)])
        total = torch.zeros(CLASSES, WIDTH).index_add_(0, y, features)
        total / torch.bincount(y, minlength=CLASSES).clamp(min=1).unsqueeze(1)


@torch.no_grad()
def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> int:
    """Return how many samples the model gets right."""
    model.eval()
    return int((model(x).argmax(dim=1) == y).sum())


def bare_worker(share: list[int], batch: int, rounds: int, threads: int, start: Any, seconds: Any) -> None:
    """Train some clients for some rounds; put the seconds of each round on the queue."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(TRAIN + TEST, 3, 32, 32, generator=generator)
    labels = torch.arange(TRAIN + TEST) % CLASSES
    data = (pictures[:TRAIN], labels[:TRAIN], pictures[TRAIN:], labels[TRAIN:])
    spec = ModelSpec(3, 32, 32, feature_dim=WIDTH, num_classes=CLASSES)
    models = [create_model(architecture_for("demo4", i), spec, seed=i) for i in share]
    for number in range(rounds + WARM_UP):
        start.wait()
        began = time.perf_counter()
        for model in models:
            bare_client(model, data, batch)
        if number >= WARM_UP:
            seconds.put((number, time.perf_counter() - began))


def deal_out(clients: int, processes: int) -> list[list[int]]:
    """Deal whole groups of four architectures to each process, so that all processes have equal work."""
    whole = clients // (4 * processes) * 4 * processes

    def process(client: int) -> int:
        # A remaining group is split: its two middle architectures take about as long as the two others.
        return client // 4 % processes if client < whole else int(client % 4 in (1, 2))

    return [[client for client in range(clients) if process(client) == p] for p in range(processes)]


def bare_loop(clients: int, batch: int, rounds: int, processes: int) -> list[float]:
    """Return the seconds of each round of a bare loop; a round lasts as long as its slowest process."""
    context = multiprocessing.get_context("spawn")
    start, seconds = context.Barrier(processes), context.Queue()
    shares = deal_out(clients, processes)
    workers = [
        context.Process(target=bare_worker, args=(share, batch, rounds, 2 // processes, start, seconds))
        for share in shares
    ]
    for worker in workers:
        worker.start()
    came = [seconds.get() for _ in range(rounds * processes)]
    for worker in workers:
        worker.join()
    return [max(s for n, s in came if n == number) for number in range(WARM_UP, rounds + WARM_UP)]


def bare_median(clients: int, size: dict[str, Any], rounds: int, processes: int) -> float:
    """Return the median seconds of a round of a bare loop."""
    return statistics.median(bare_loop(clients, size["batch"], rounds, processes))


def simulated(size: dict[str, Any], rounds: int, alignment: str) -> dict[str, Any]:
    """Return the seconds of each round under Flower and Ray, the seconds of its parts, and the memory."""
    with tempfile.TemporaryDirectory(prefix="isoproto-bench-") as scratch, noting(Path(scratch) / "parts"):
        folder = Path(scratch)
        make_data(size["clients"], folder / "pictures.npz")
        memory: list[tuple[float, float]] = []
        stop = threading.Event()
        sampler = threading.Thread(target=sample_memory, args=(memory, stop))
        sampler.start()
        try:
            run_under_flower(
                {
                    "strategy": "fedsaf",
                    "alignment": alignment,
                    "data": f"npz:{folder / 'pictures.npz'}",
                    "partition": "iid",
                    "rounds": rounds + WARM_UP,
                    "fraction": size["fraction"],
                    "batch-size": size["batch"],
                    "output-dir": str(folder / "runs"),
                    "state-dir": str(folder / "state"),
                },
                clients=size["clients"],
            )
        finally:
            stop.set()
            sampler.join()
        (run,) = (folder / "runs").iterdir()
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        parts, written = where_time_goes(folder / "parts", range(WARM_UP + 1, rounds + WARM_UP))
    ends = [line["seconds"]["since_start"] for line in lines if line["kind"] == "round"]
    # From the end of one round to the end of the next: training, aggregation, checkpoint, metrics, all of it.
    each = [b - a for a, b in zip(ends[WARM_UP - 1 :], ends[WARM_UP:], strict=False)][: rounds - 1]
    # The server works while the workers wait.
    parts["waiting: Flower, the server, the other worker"] = WORKERS * statistics.mean(each) - sum(parts.values())
    return {"rounds": each, "memory": flatness(memory), "parts": parts, "written": written}


@contextlib.contextmanager
def noting(folder: Path) -> Iterator[None]:
    """Have all processes that are started in the block note where their time goes, in a folder."""
    folder.mkdir()
    hooks = str(Path(__file__).with_name("hooks"))
    path = os.pathsep.join(filter(None, [hooks, os.environ.get("PYTHONPATH", "")]))
    with mock.patch.dict(os.environ, {"PYTHONPATH": path, "ISOPROTO_PARTS": str(folder)}):
        yield


def where_time_goes(folder: Path, rounds: range) -> tuple[dict[str, float], float]:
    """Seconds of each part of training, of all workers together, and of what a second thread writes beside it.

    Means of some rounds; the largest part first.
    """
    found: Counter[str] = Counter()
    written = 0.0
    for path in folder.glob("*.jsonl"):
        for told in map(json.loads, path.read_text().splitlines()):
            if told["type"] == "train" and told["round"] in rounds:
                found.update(told["parts"])
                written += told["beside"]
    return {part: seconds / len(rounds) for part, seconds in found.most_common()}, written / len(rounds)


def sample_memory(samples: list[tuple[float, float]], stop: threading.Event) -> None:
    """Note the resident memory of all processes below this one once a second.

    Shared pages count in each process: proportional shares would be exact, but reading them takes half a core.
    """
    began, me = time.perf_counter(), psutil.Process()
    while not stop.wait(1.0):
        total = 0.0
        for process in me.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
                total += process.memory_info().rss / 2**20
        samples.append((time.perf_counter() - began, total))


def flatness(samples: list[tuple[float, float]]) -> dict[str, float]:
    """Return the peak of the memory, and its maximum in the second and in the last quarter of the run."""
    values = [mib for _, mib in samples]
    quarter = len(values) // 4
    early, late = max(values[quarter : 2 * quarter]), max(values[-quarter:])
    return {"peak_mib": round(max(values)), "second_quarter_mib": round(early), "last_quarter_mib": round(late)}


def main() -> None:
    """Measure both sizes and write benchmarks/results/round_overhead.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--force", action="store_true", help="measure on a busy machine; nothing is recorded")
    arguments = parser.parse_args()
    require_idle(arguments.force)
    results: dict[str, Any] = {}
    for name, size in SIZES.items():
        at_once = round(size["clients"] * size["fraction"])
        bare = {n: [bare_median(at_once, size, arguments.rounds, n)] for n in (1, 2)}
        best = min(bare, key=lambda processes: bare[processes][0])
        measured: dict[str, list[dict[str, Any]]] = {"none": [], "gcsa": []}
        for alignment in ("none", "gcsa", *["none"] * (arguments.repeats - 1)):
            run = simulated(size, arguments.rounds, alignment)
            bare[best].append(bare_median(at_once, size, arguments.rounds, best))
            figure, reference = statistics.median(run["rounds"]), statistics.mean(bare[best][-2:])
            ratio = figure / reference
            print(f"{name}, alignment {alignment}: {figure:.2f} s / {reference:.2f} s = {ratio:.3f}", flush=True)
            measured[alignment].append({"figure": figure, "ratio": ratio, **run})
        results[name] = {
            "target": size["target"],
            "reference": {f"{n} process(es)": statistics.median(seconds) for n, seconds in bare.items()},
            **{
                f"alignment {alignment}": {
                    **{key: statistics.median(run[key] for run in found) for key in ("figure", "ratio")},
                    "runs": found,
                }
                for alignment, found in measured.items()
            },
        }
    if not arguments.force:
        command = f"python benchmarks/speed/round_overhead.py --rounds {arguments.rounds} --repeats {arguments.repeats}"
        print("wrote", write_results("round_overhead", {"command": command, "unit": "s per round", "sizes": results}))


if __name__ == "__main__":
    main()
