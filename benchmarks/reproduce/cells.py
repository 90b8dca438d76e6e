"""Cells of a table: whole runs in one process, two at a time, their figures in a JSON file as they end."""

import concurrent.futures
import logging
import multiprocessing
import resource
import statistics
import tempfile
from typing import Any

from benchmarks.record import ROOT as ROOT
from benchmarks.record import record, recorded

# What isoproto was until ADR 9: prototypes as anchors, a fifth of the weight, no margin.
EARLIER: dict[str, Any] = {
    "strategy": "isoproto_anchors",
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
        **({"privacy": run.summary["privacy"]} if "privacy" in run.summary else {}),
        "failed": len(run.summary["clients"]["failed"]),
        "largest_reply": max((line["bytes"]["up_rows"] for line in run.metrics if line["kind"] == "client"), default=0),
        "evaluations": _evaluations([line for line in run.metrics if line["kind"] == "evaluation"]),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }


# After this round everybody's classifier is made of all statistics, and no gradient step is in it yet.
EXCHANGED = 3


def _evaluations(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a table needs of all evaluations: accuracies of each, and counts by client of those that it shows."""
    found = []
    for line in lines:
        totals = [entry for entry in line["clients"] if entry["total"]]
        pooled = sum(entry["correct"] for entry in totals) / max(1, sum(entry["total"] for entry in totals))
        mean = statistics.fmean([entry["correct"] / entry["total"] for entry in totals] or [0.0])
        shown = line is lines[-1] or line["round"] == EXCHANGED
        found.append({"round": line["round"], "mean": mean, "pooled": pooled, **(_counts(line) if shown else {})})
    return found


def _counts(line: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of each client, of each way to predict if there are several."""
    clients = [entry for entry in line["clients"] if entry["total"]]
    names = clients[0].get("predictors", {}) if clients else {}
    return {
        **{key: [entry[key] for entry in clients] for key in ("total", "correct")},
        **{f"correct, {name}": [entry["predictors"][name] for entry in clients] for name in names},
        **({"samples": [entry["samples"] for entry in clients]} if names else {}),
    }


def run_missing(
    table: str,
    cells: dict[str, dict[str, Any]],
    *,
    clients: int | dict[str, int],
    command: str,
    workers: int = 2,
    data_dir: str = "",
) -> dict[str, Any]:
    """Run the cells that are not recorded yet, or were run with other settings, and return all cells.

    Several processes may do this at once: each reads the file again before it adds a cell.

    Args:
        table: Name of the results file, without ``.json``.
        cells: Settings of each cell by its name.
        clients: Number of simulated clients: of all cells, or of each by its name.
        command: What makes these results, as the file tells its readers.
        workers: Cells that run at the same time.
        data_dir: Folder of data files.
    """
    done = load(table)
    missing = {name: s for name, s in cells.items() if done.get(name, {}).get("settings") != s}
    # A fresh process per cell: its CPU seconds are its own, and nothing is left over from the one before.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        running, broken = {}, {}
        for name, settings in missing.items():
            number = clients if isinstance(clients, int) else clients[name]
            running[pool.submit(run_cell, settings, number, data_dir)] = name
        for number, future in enumerate(concurrent.futures.as_completed(running), 1):
            try:
                result = future.result()
            except Exception as err:
                broken[running[future]] = err
                print(f"{number}/{len(running)}  {running[future]}: {type(err).__name__}: {err}", flush=True)
                continue
            done = {**load(table), running[future]: result}
            save(table, done, command)
            print(f"{number}/{len(running)}  {running[future]}: {result['accuracy']['mean']:.4f}", flush=True)
    if broken:
        raise RuntimeError(f"{len(broken)} cells failed, and are run again by the next call: {sorted(broken)}")
    return done


def load(table: str) -> dict[str, Any]:
    """Return the cells in a results file."""
    cells: dict[str, Any] = recorded(table).get("cells", {})
    return cells


def save(table: str, cells: dict[str, Any], command: str) -> None:
    """Write a results file."""
    record(table, {"figure": "accuracy.mean", "command": command, "cells": cells})


def points(values: list[float]) -> str:
    """Mean and sample standard deviation in points."""
    return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.stdev(values):.2f}"
