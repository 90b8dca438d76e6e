"""Cells of a table: whole runs in one process, two at a time, their figures in a JSON file as they end."""

import concurrent.futures
import json
import logging
import multiprocessing
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

from isoproto.paths import write_atomically

ROOT = Path(__file__).resolve().parents[2]
# What isoproto was until ADR 9: prototypes as anchors, a fifth of the weight, no margin.
EARLIER: dict[str, Any] = {
    "strategy": "isoproto",
    "frame": "gram",
    "hyper.init": "prototypes",
    "hyper.margin": "none",
    "hyper.form": "normalised",
    "hyper.pcl": 0.2,
    "hyper.pal": 0.2,
}


def run_cell(settings: dict[str, Any], clients: int, data_dir: str = "") -> dict[str, Any]:
    """Run one cell and return what a table needs of its summary, and the accuracy of each round."""
    from client_app.app import make_app
    from isoproto.engines.in_process import InProcessGrid, in_process_host, task_identity
    from isoproto.report import read_run
    from isoproto.runs.metrics import accuracy_history
    from isoproto.runs.run_folder import show_log
    from server_app.app import run_federation

    show_log(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, task_identity():
        paths = {"output-dir": f"{folder}/runs", "state-dir": f"{folder}/state", "data-dir": data_dir}
        grid = InProcessGrid(make_app(in_process_host), clients)
        run = read_run(run_federation(grid, {**settings, **paths}))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    kept = ("accuracy", "bytes", "seconds", "replaced", "versions", "fingerprint", "git_commit")
    return {
        "settings": settings,
        **{key: run.summary[key] for key in kept},
        "curve": [row["mean"] for row in accuracy_history(run.metrics).summaries()],
        "failed": len(run.summary["clients"]["failed"]),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }


def run_missing(
    path: Path,
    cells: dict[str, dict[str, Any]],
    *,
    clients: int,
    command: str,
    workers: int = 2,
    data_dir: str = "",
) -> dict[str, Any]:
    """Run the cells that ``path`` lacks or has with other settings, and return all; several may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = load(path)
    missing = {name: s for name, s in cells.items() if done.get(name, {}).get("settings") != s}
    # A fresh process per cell: its CPU seconds are its own, and nothing is left over from the one before.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        running = {pool.submit(run_cell, settings, clients, data_dir): name for name, settings in missing.items()}
        for number, future in enumerate(concurrent.futures.as_completed(running), 1):
            result = future.result()
            done = {**load(path), running[future]: result}
            save(path, done, command)
            print(f"{number}/{len(running)}  {running[future]}: {result['accuracy']['mean']:.4f}", flush=True)
    return done


def load(path: Path) -> dict[str, Any]:
    """Return the cells in a results file."""
    return json.loads(path.read_text())["cells"] if path.exists() else {}


def save(path: Path, cells: dict[str, Any], command: str) -> None:
    """Write a results file."""
    content = {"figure": "accuracy.mean", "command": command, "cells": cells}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def points(values: list[float]) -> str:
    """Mean and sample standard deviation in points."""
    return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.stdev(values):.2f}"
