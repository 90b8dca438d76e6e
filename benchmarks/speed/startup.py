"""Measure the time from the command to a client's first training step under Flower and Ray, and import times.

The script watches a run of 4 clients from outside. Milestones are a new process, a new folder, and the first model that
is written, minus its training time. The script looks every 0.05 s, so each milestone is late by up to that. Imports are
timed in fresh processes that take turns. Target: `client_app.app` takes at most 1.5 times as long as torch alone.

    python benchmarks/speed/startup.py [--repeats 5] [--force]
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from machine import ROOT, options, write_results

from isoproto.engines.flower import run_under_flower

TARGET, POLL_S = 1.5, 0.05
# A step has been reached once a process has this text in its command line or title.
PROCESSES = {
    "SuperLink starts": "flower-superlink",
    "flwr run starts": "flwr run",
    "simulation starts": "flwr-simulation",
    "Ray starts": "raylet",
    "a worker starts": "ray::",
}


def import_seconds(module: str) -> float:
    """Return the seconds of an import in a fresh interpreter, without the start of the interpreter."""
    code = f"import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def imports(repeats: int) -> dict[str, float]:
    """Return the median seconds of both imports, and the median of their ratio in each turn.

    The first turn is left out: it fills the cache of the disk.
    """
    found = [(import_seconds("torch"), import_seconds("client_app.app")) for _ in range(repeats + 1)][1:]
    ratio = statistics.median(ours / torch for torch, ours in found)
    medians = [statistics.median(each) for each in zip(*found, strict=True)]
    return {"torch": medians[0], "client_app.app": medians[1], "ratio": ratio}


def watch(seen: dict[str, float], folder: Path, stop: threading.Event) -> None:
    """Note when each milestone is seen first, in seconds after this call."""
    began, me = time.perf_counter(), psutil.Process()
    while not stop.wait(POLL_S):
        now, lines = time.perf_counter() - began, []
        for process in me.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
                lines.append(" ".join(process.cmdline()))
        for name, text in PROCESSES.items():
            if name not in seen and any(text in line for line in lines):
                seen[name] = now
        if any((folder / "runs").glob("*/log.txt")):
            seen.setdefault("server app runs", now)
        if any(path.is_file() for path in (folder / "state").rglob("*.safetensors")):
            seen.setdefault("first model is written", now)


def start_up() -> dict[str, float]:
    """Return the seconds from the command to each milestone."""
    with tempfile.TemporaryDirectory(prefix="isoproto-start-") as scratch:
        folder, stop = Path(scratch), threading.Event()
        seen: dict[str, float] = {}
        watcher = threading.Thread(target=watch, args=(seen, folder, stop))
        watcher.start()
        began = time.perf_counter()
        try:
            settings = {"rounds": 1, "output-dir": str(folder / "runs"), "state-dir": str(folder / "state")}
            run_under_flower(settings, clients=4)
        finally:
            whole = time.perf_counter() - began
            stop.set()
            watcher.join()
        (run,) = (folder / "runs").iterdir()
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        training = next(line["seconds"]["train"] for line in lines if line["kind"] == "round")
    # Models are written when all clients of a message have trained, so nearly at the end of the round's training.
    seen["first step, at the latest"] = max(seen["server app runs"], seen["first model is written"] - training)
    return {**dict(sorted(seen.items(), key=lambda item: item[1])), "the command ends": whole}


def main() -> None:
    """Measure and write benchmarks/results/startup.json."""
    arguments = options(__doc__, repeats=5)
    imported, milestones = imports(arguments.repeats), start_up()
    print(f"import: torch {imported['torch']:.2f} s, client_app.app {imported['client_app.app']:.2f} s,", end=" ")
    print(f"ratio {imported['ratio']:.2f}")
    for name, second in milestones.items():
        print(f"{second:6.2f} s  {name}")
    if not arguments.force:
        results: dict[str, Any] = {"unit": "s", "target": TARGET, "imports": imported, "milestones": milestones}
        command = f"python benchmarks/speed/startup.py --repeats {arguments.repeats}"
        print("wrote", write_results("startup", {"command": command, **results}))


if __name__ == "__main__":
    main()
