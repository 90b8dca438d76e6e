"""The figures of docs/common.md: what the common frame adds to what clients can do alone, from one command.

Each cell is a whole run with the real ServerApp and ClientApp in one process, so `flwr run` gives the same numbers.
Cells are written to benchmarks/results/common.json as they end; a second call runs only what is missing.

    python benchmarks/reproduce/common.py --data-dir DIR                     # run what is missing, then write the page
    python benchmarks/reproduce/common.py --data-dir DIR --only digits4      # only cells whose name holds this
    python benchmarks/reproduce/common.py --table                            # only write the page from the JSON
"""

import argparse
import itertools
import logging
from collections import defaultdict
from typing import Any

from cells import ROOT, run_missing

RESULTS = "common"
PAGE = ROOT / "docs" / "common.md"
COMMAND = "python benchmarks/reproduce/common.py --data-dir DIR"
SEEDS = (0, 1, 2, 3, 4)
Settings = dict[str, Any]

WARPED: Settings = {"augment": "warp", "common.change": "warp"}
NATURAL: Settings = {"augment": "warp_flip", "common.change": "warp_flip"}
SMALL_TEXT: Settings = {"models": "fasttext,textcnn", "common.copies": 0}
# Clients, and the settings of the data, by name. Networks train for so many rounds of one epoch.
DATA: dict[str, tuple[int, Settings]] = {
    "digits4, Dirichlet 0.1": (20, {"data": "digits4", "partition": "dirichlet", "rounds": 15, **WARPED}),
    "digits4, by domain": (20, {"data": "digits4", "partition": "domain", "rounds": 15, **WARPED}),
    "digits4, by domain, 80 clients": (80, {"data": "digits4", "partition": "domain", "rounds": 15, **WARPED}),
    "Office-Caltech, by domain": (20, {"data": "office_caltech", "partition": "domain", "rounds": 15, **NATURAL}),
    "AG News, 7,600 texts, Dirichlet 0.5": (
        20,
        {"data": "ag_news", "partition": "dirichlet", "alpha": 0.5, "rounds": 10, **SMALL_TEXT},
    ),
    "CIFAR-10, 10,000 pictures, Dirichlet 0.1": (
        20,
        {"data": "cifar10", "partition": "dirichlet", "max-samples": 10000, "rounds": 12, **NATURAL},
    ),
    "PACS, 4,000 pictures, by domain": (
        20,
        {"data": "pacs", "partition": "domain", "max-samples": 4000, "rounds": 12, **NATURAL},
    ),
    "reviews of 16 kinds, 8,000 texts, by domain": (
        16,
        {"data": "amazon", "partition": "domain", "max-samples": 8000, "rounds": 10, **SMALL_TEXT},
    ),
}
METHODS: dict[str, Settings] = {"isoproto": {"strategy": "isoproto"}, "local": {"strategy": "local"}}


def cells() -> dict[str, tuple[int, Settings]]:
    """Return number of clients and settings of every cell by its name."""
    found = {}
    for seed, (data, (clients, of_data)), (method, of_method) in itertools.product(
        SEEDS, DATA.items(), METHODS.items()
    ):
        settings = {**of_data, **of_method, "seed": seed, "partition-seed": seed, "evaluate-every": 1}
        if method == "local":
            settings = {key: value for key, value in settings.items() if not key.startswith("common.")}
        found[f"{data} | {method} | seed {seed}"] = (clients, settings)
    return found


def main() -> None:
    """Run what is missing, and write the page."""
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder of data files")
    parser.add_argument("--only", default="", help="run cells whose name holds this text")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="run this many seeds")
    parser.add_argument("--jobs", type=int, default=2, help="cells that run at the same time")
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.table:
        chosen = {
            name: cell
            for name, cell in cells().items()
            if arguments.only in name and int(name.rpartition(" ")[2]) < arguments.seeds
        }
        groups: dict[int, dict[str, Settings]] = defaultdict(dict)
        for name, (clients, settings) in chosen.items():
            groups[clients][name] = settings
        for clients, group in groups.items():
            run_missing(
                RESULTS,
                group,
                clients=clients,
                command=COMMAND,
                workers=arguments.jobs,
                data_dir=arguments.data_dir,
            )


if __name__ == "__main__":
    main()
