"""The figures of docs/common.md: what the common frame adds to what clients can do alone, from one command.

Each cell is a whole run with the real ServerApp and ClientApp in one process, so `flwr run` gives the same numbers.
Cells are written to benchmarks/results/common.json as they end; a second call runs only what is missing.

    python benchmarks/reproduce/common.py --data-dir DIR                     # run what is missing, then write the page
    python benchmarks/reproduce/common.py --data-dir DIR --only digits4      # only cells whose name holds this
    python benchmarks/reproduce/common.py --table                            # only write the page from the JSON
"""

import argparse
import itertools
from typing import Any

from cells import run_missing
from common_page import write_page

RESULTS = "common"
COMMAND = "python benchmarks/reproduce/common.py --data-dir DIR"
SEEDS = (0, 1, 2, 3, 4)
Settings = dict[str, Any]

WARPED: Settings = {"augment": "warp", "common.change": "warp"}
NATURAL: Settings = {"augment": "warp_flip", "common.change": "warp_flip"}
SMALL_TEXT: Settings = {"models": "fasttext,textcnn", "common.copies": 0}
# Clients, and the settings of the data, by name. Networks train for so many rounds of one epoch, alone and beside.
DATA: dict[str, tuple[int, Settings]] = {
    "digits4, Dirichlet 0.1": (20, {"data": "digits4", "partition": "dirichlet", "rounds": 24, **WARPED}),
    "digits4, by domain": (20, {"data": "digits4", "partition": "domain", "rounds": 24, **WARPED}),
    "digits4, by domain, 80 clients": (80, {"data": "digits4", "partition": "domain", "rounds": 24, **WARPED}),
    "Office-Caltech, by domain": (20, {"data": "office_caltech", "partition": "domain", "rounds": 24, **NATURAL}),
    "AG News, 7,600 texts, Dirichlet 0.5": (
        20,
        {"data": "ag_news", "partition": "dirichlet", "alpha": 0.5, "rounds": 12, **SMALL_TEXT},
    ),
    "CIFAR-10, 10,000 pictures, Dirichlet 0.1": (
        20,
        {"data": "cifar10", "partition": "dirichlet", "max-samples": 10000, "rounds": 18, **NATURAL},
    ),
    "PACS, 4,000 pictures, by domain": (
        20,
        {"data": "pacs", "partition": "domain", "max-samples": 4000, "rounds": 18, **NATURAL},
    ),
    "reviews of 16 kinds, 8,000 texts, by domain": (
        16,
        {"data": "amazon", "partition": "domain", "max-samples": 8000, "rounds": 12, **SMALL_TEXT},
    ),
    "Shakespeare, 20 roles": (20, {"data": "shakespeare", "partition": "user", "rounds": 12, **SMALL_TEXT}),
}
METHODS: dict[str, Settings] = {"isoproto": {"strategy": "isoproto"}, "local": {"strategy": "local"}}
# What else clients' own networks can learn from others, on two partitions of some of the data.
NETWORKS: dict[str, Settings] = {
    "distilled": {"strategy": "isoproto", "common.distil": 1.0},
    "isoproto_anchors": {"strategy": "isoproto_anchors"},
}
LEARNED = ("digits4, Dirichlet 0.1", "digits4, by domain", "Office-Caltech, by domain")

# Further questions, on two partitions of digits4, without networks: what travels, and how far it goes.
NO_NETWORK: Settings = {"strategy": "isoproto", "models": "none", "rounds": 15, "common.change": "warp"}
QUESTIONS: dict[str, Settings] = {
    "as it is": {},
    "8 directions": {"common.rank": 8},
    "32 directions": {"common.rank": 32},
    "whole scatter": {"common.rank": 0},
    "float16": {"wire.dtype": "float16"},
    "int8": {"wire.dtype": "int8"},
    "no random features": {"common.features": 0},
    "256 random features": {"common.features": 256},
    "2,048 random features": {"common.features": 2048},
    "128 linear coordinates": {"common.dim": 128},
    "256 linear coordinates": {"common.dim": 256},
    "no copies": {"common.copies": 0},
    "no gradients": {"common.rounds": 0},
}
ASKED: dict[str, Settings] = {
    "digits4, Dirichlet 0.1": {"data": "digits4", "partition": "dirichlet"},
    "digits4, by domain": {"data": "digits4", "partition": "domain"},
}

# Noise in the statistics: the sum of all clients under the secure sum, or each client's own.
NOISY: Settings = {
    **NO_NETWORK,
    "data": "digits4",
    "partition": "dirichlet",
    "alpha": 1.0,
    "rounds": 6,
    "min-class-samples": 1,
    **{f"common.{key}": value for key, value in {"dim": 128, "features": 0, "clip": 0.7, "copies": 0}.items()},
    **{f"common.{key}": value for key, value in {"rounds": 0, "holdout": 0.0, "shrink": 0.3}.items()},
    "common.temperature": 0.5,
    "common.delta": 1e-5,
}
NOISES = (0.0, 0.5, 1.0, 2.0, 4.0)
SUMS: dict[str, tuple[int, Settings]] = {
    "digits4, Dirichlet 1.0, 20 clients | secure sum": (20, {"common.secure": True, "min-contributors": 3}),
    "digits4, Dirichlet 1.0, 200 clients | secure sum": (200, {"common.secure": True, "min-contributors": 3}),
    "digits4, Dirichlet 1.0, 20 clients | each its own": (20, {}),
}

# Other sources: frozen networks as map, all of CIFAR-10 at FedSAF's partition, averaged weights of one architecture.
FROZEN: Settings = {**NO_NETWORK, "common.map": "efficientnet_lite0", "common.copies": 0}
ALL: Settings = {"data": "cifar10", "partition": "dirichlet", "common.copies": 1, "common.change": "flip"}
OTHERS: dict[str, tuple[int, Settings]] = {
    "CIFAR-10, all pictures, Dirichlet 0.1 | isoproto, no networks": (20, {**NO_NETWORK, **ALL}),
    "Office-Caltech, by domain | EfficientNet-Lite0": (20, {**FROZEN, "data": "office_caltech", "partition": "domain"}),
    "PACS, 4,000 pictures, by domain | EfficientNet-Lite0": (
        20,
        {**FROZEN, "data": "pacs", "partition": "domain", "max-samples": 4000},
    ),
    "AG News, 7,600 texts, Dirichlet 0.5 | MiniLM": (
        20,
        {**FROZEN, "common.map": "minilm", "data": "ag_news", "partition": "dirichlet", "alpha": 0.5},
    ),
    **{
        f"{data} | {strategy}, one architecture": (
            20,
            {**asked, "strategy": strategy, "share": "model", "models": "cnn", "rounds": 60, "augment": "warp"},
        )
        for data, asked in ASKED.items()
        for strategy in ("fedavg", "fedhpro")
    },
}


def cells() -> dict[str, tuple[int, Settings]]:
    """Return number of clients and settings of every cell by its name, the most important first."""
    found: dict[str, tuple[int, Settings]] = _main((0, 1))
    found |= {f"{name} | seed 0": cell for name, cell in OTHERS.items()}
    found |= _main((2,)) | _further(0) | _main((3, 4))
    found |= {f"{name} | seed {seed}": cell for seed in (1, 2) for name, cell in OTHERS.items() if _frozen(name)}
    return {name: (clients, _seeded(name, _fitting(settings))) for name, (clients, settings) in found.items()}


def _frozen(name: str) -> bool:
    """Return whether a cell is one with a frozen network, which are run with three seeds; others with one."""
    return "EfficientNet" in name or "MiniLM" in name


def _further(seed: int) -> dict[str, tuple[int, Settings]]:
    """Return the cells of the further questions, of noise, and of what networks learn, with one seed."""
    found: dict[str, tuple[int, Settings]] = {
        f"{data} | question: {name} | seed {seed}": (20, {**NO_NETWORK, **asked, **changed})
        for (data, asked), (name, changed) in itertools.product(ASKED.items(), QUESTIONS.items())
    }
    found |= {
        f"{name}, noise {noise} | seed {seed}": (clients, {**NOISY, **of_sum, "common.noise": noise})
        for (name, (clients, of_sum)), noise in itertools.product(SUMS.items(), NOISES)
        if noise or of_sum
    }
    return found | {
        f"{data} | {name} | seed {seed}": (DATA[data][0], {**DATA[data][1], **changed})
        for data, (name, changed) in itertools.product(LEARNED, NETWORKS.items())
    }


def _main(seeds: tuple[int, ...]) -> dict[str, tuple[int, Settings]]:
    """Return the cells of the main table."""
    return {
        f"{data} | {method} | seed {seed}": (clients, {**of_data, **of_method})
        for seed, (data, (clients, of_data)), (method, of_method) in itertools.product(
            seeds, DATA.items(), METHODS.items()
        )
    }


def _fitting(settings: Settings) -> Settings:
    """Return the settings without those of the common frame, if the strategy has none."""
    framed = settings["strategy"] == "isoproto"
    return {key: value for key, value in settings.items() if framed or not key.startswith("common.")}


def _seeded(name: str, settings: Settings) -> Settings:
    seed = int(name.rpartition(" ")[2])
    return {**settings, "seed": seed, "partition-seed": seed, "evaluate-every": 3}


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder of data files")
    parser.add_argument("--only", default="", help="run cells whose name holds this text")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="run this many seeds")
    parser.add_argument("--jobs", type=int, default=2, help="cells that run at the same time")
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.table:
        chosen = {
            name: cell for name, cell in cells().items() if arguments.only in name and cell[1]["seed"] < arguments.seeds
        }
        run_missing(
            RESULTS,
            {name: settings for name, (_, settings) in chosen.items()},
            clients={name: clients for name, (clients, _) in chosen.items()},
            command=COMMAND,
            workers=arguments.jobs,
            data_dir=arguments.data_dir,
        )
    write_page()


if __name__ == "__main__":
    main()
