"""Count the cores and GPUs of a simulation: those of this machine, or of a cluster that Ray has joined."""

import os
import sys
from typing import NamedTuple


class Machines(NamedTuple):
    """Number of CPU cores and of GPUs."""

    cpus: int
    gpus: int

    def __str__(self) -> str:
        """Return the numbers in words.

        Example:
            >>> print(Machines(16, 0), "and", Machines(16, 2))
            16 cores and 16 cores and 2 GPUs
        """
        return f"{self.cpus} cores" + (f" and {self.gpus} GPUs" if self.gpus else "")


def machines() -> Machines:
    """Return what Ray's cluster has if this process has started or joined one; else this machine's cores."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return Machines(os.cpu_count() or 1, 0)
    resources = ray.cluster_resources()
    return Machines(int(resources.get("CPU", 0)), int(resources.get("GPU", 0)))


def most_workers() -> int:
    """Return the most workers that Flower's simulation keeps busy.

    Flower waits for each worker in a thread of a ``concurrent.futures.ThreadPoolExecutor`` of default size, on the
    machine that the run was started on.
    """
    return min(32, (os.cpu_count() or 1) + 4)


def idle_cores(here: Machines, *, clients: int, workers: int) -> str:
    """Return advice if a simulation leaves cores idle, else an empty text.

    Args:
        here: The cores and GPUs of the simulation.
        clients: Number of clients.
        workers: Number of processes that simulate them, >= 1.

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
