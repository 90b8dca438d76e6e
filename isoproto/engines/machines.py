"""What a simulation has to compute with: this machine, or a cluster of machines that Ray has joined."""

import os
import sys
from typing import NamedTuple


class Machines(NamedTuple):
    """CPUs and GPUs."""

    cpus: int
    gpus: int

    def __str__(self) -> str:
        """Say it.

        Example:
            >>> print(Machines(16, 0), "and", Machines(16, 2))
            16 cores and 16 cores and 2 GPUs
        """
        return f"{self.cpus} cores" + (f" and {self.gpus} GPUs" if self.gpus else "")


def machines() -> Machines:
    """Return what Ray has in all, where this process has started or joined it; else this machine's CPUs."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return Machines(os.cpu_count() or 1, 0)
    there = ray.cluster_resources()
    return Machines(int(there.get("CPU", 0)), int(there.get("GPU", 0)))


def most_workers() -> int:
    """Return how many workers Flower's simulation keeps busy at most: it waits for each in a thread of a default pool.

    The pool is that of ``concurrent.futures.ThreadPoolExecutor``, on the machine that the run was started on.
    """
    return min(32, (os.cpu_count() or 1) + 4)


def idle_cores(here: Machines, *, clients: int, workers: int) -> str:
    """Return advice if a simulation leaves cores idle, else an empty text.

    Args:
        here: The cores and GPUs that there are.
        clients: Clients of the simulation.
        workers: Processes that simulate them, >= 1.

    Example:
        >>> idle_cores(Machines(2, 0), clients=20, workers=2)
        ''
        >>> print(idle_cores(Machines(4, 0), clients=20, workers=2)[:58])
        cores are idle: each client reserves several CPUs, Flower'
    """
    useful = min(here.cpus, clients)
    if workers >= most_workers() < useful:
        return (
            f"cores are idle: Flower keeps {most_workers()} workers busy at most, 4 more than the machine that the run "
            "was started on has cores, and no more than 32 (docs/scale.md)"
        )
    if not here.gpus and workers < useful:
        return (
            "cores are idle: each client reserves several CPUs, Flower's default. Let all work with "
            f'--federation-config "num-supernodes={clients} client-resources-num-cpus=1"'
        )
    return ""
