"""Functions that all speed benchmarks use: check that the machine is idle, measure, write results."""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.record import ROOT as ROOT
from benchmarks.record import record

_BUSY_PERCENT = 15.0


def options(text: str | None, **counts: int) -> argparse.Namespace:
    """Parse ``--force`` and an option per count, then leave if the machine is busy.

    Args:
        text: The benchmark's docstring, shown by ``--help``.
        **counts: Options that are whole numbers, with their defaults.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--force", action="store_true", help="measure on a busy machine; nothing is recorded")
    arguments = parser.parse_args()
    require_idle(arguments.force)
    return arguments


def require_idle(force: bool = False) -> None:
    """Exit with status 2 if the machine is busy, since other work would spoil the figures."""
    busy = psutil.cpu_percent(interval=3.0)
    if busy > _BUSY_PERCENT:
        print(f"the machine is {busy:.0f} % busy (limit {_BUSY_PERCENT:.0f} %); nothing is recorded", file=sys.stderr)
        if not force:
            sys.exit(2)


def median_seconds(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of each function.

    The functions take turns, so that a busy moment of the machine slows all of them. The first turn is the warm-up.
    """
    measured: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, values in zip(functions, measured, strict=True):
            began = time.perf_counter()
            function()
            values.append(time.perf_counter() - began)
    return [statistics.median(values[1:]) for values in measured]


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, memory, system, versions."""
    import torch

    name = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        name = next(
            (line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line), name
        )
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_results(name: str, results: dict[str, Any]) -> Path:
    """Write ``benchmarks/results/<name>.json``, with the commit and the machine that figures belong to."""
    from server_app.versions import git_commit

    return record(name, {**results, "git_commit": git_commit(), "machine": machine()})
