"""Measure the memory of worker processes that all use one data set.

Some memory belongs to one worker alone; the rest is shared by all.

python benchmarks/speed/data_memory.py [--workers 4] [--pictures 50000] [--data NAME --data-dir DIR]

Every worker reads all pictures and keeps the data of one client, as in a simulation. The default data set is random and
as large as CIFAR-10. Figures are differences to the same process before it has read anything.
"""

import argparse
import multiprocessing
import os
import tempfile
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
from machine import write_results

from isoproto.data import ClientData, Dataset, client_data, load_dataset, split_clients

CLIENTS = 200


def resident() -> dict[str, float]:
    """Return the MiB of this process: what only it holds (USS), and that plus its share of shared memory (PSS)."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, amount, _ = line.split()
        fields[name.rstrip(":")] = int(amount) / 1024
    return {"uss": fields["Private_Clean"] + fields["Private_Dirty"], "pss": fields["Pss"], "rss": fields["Rss"]}


def work(client: int, name: str, folder: str, together: Barrier, results: Any) -> None:
    """Use the data set as a worker does, and measure while all other workers hold it too."""
    use("digits4", "", 0)  # loads libraries, and lets torch set up what it needs, so that neither is counted
    before = resident()
    together.wait()
    held = use(name, folder, client)
    together.wait()
    after = resident()
    together.wait()
    results.put({key: after[key] - before[key] for key in after})
    del held


def use(name: str, folder: str, client: int) -> tuple[Dataset, ClientData]:
    """Read every picture once, and return the data set and the data of one client."""
    dataset = load_dataset(name, folder)
    for part in dataset.x.split(1000):
        part.max()  # a sum would make a wider copy
    shares = split_clients(dataset, partition="iid", clients=CLIENTS, seed=1)
    return dataset, client_data(dataset, shares[client])


def make_up(folder: Path, pictures: int) -> str:
    """Write a data set of random pictures of 32x32x3, as in CIFAR-10, and return its name."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (pictures, 32, 32, 3), np.uint8)
    classes = np.array([str(label) for label in range(10)])
    np.savez(folder / "made_up.npz", train_x=x, train_y=rng.integers(0, 10, pictures), classes=classes)
    return "npz:made_up.npz"


def measure(name: str, folder: str, workers: int) -> list[dict[str, float]]:
    """Start workers that use the set at the same time, and return what each measured."""
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(workers), context.Queue()
    processes = [context.Process(target=work, args=(i, name, folder, together, results)) for i in range(workers)]
    for process in processes:
        process.start()
    measured = [results.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return measured


def main() -> None:
    """Measure and write benchmarks/results/data_memory.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pictures", type=int, default=50_000)
    parser.add_argument("--data", default="", help="a set of yours instead")
    parser.add_argument("--data-dir", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, name = arguments.data_dir, arguments.data
        if not name:
            os.environ["ISOPROTO_HOME"] = folder = scratch
            name = make_up(Path(scratch), arguments.pictures)
        size = load_dataset(name, folder).x.numel() / 2**20  # decoded here, so that workers only map it
        measured = measure(name, folder, arguments.workers)
    figures = {key: max(worker[key] for worker in measured) for key in ("uss", "pss", "rss")}
    print(f"{name}: {size:.0f} MiB of pictures, {arguments.workers} workers; of the worst, more than before in MiB:")
    print(", ".join(f"{key} {figure:.0f}" for key, figure in figures.items()))
    command = f"python benchmarks/speed/data_memory.py --workers {arguments.workers} --pictures {arguments.pictures}"
    results = {"unit": "MiB", "workers": arguments.workers, "pictures_mib": round(size, 1)}
    figures = {key: round(figure, 1) for key, figure in figures.items()}
    if not arguments.data:
        print("wrote", write_results("data_memory", {"command": command, **results, "figures": figures}))


if __name__ == "__main__":
    main()
