"""Hyper-prototypes measured: the tables of docs/flagship.md, each row resumable, from one command.

Each cell is a whole run with the real ServerApp and ClientApp in one process, so `flwr run` gives the same numbers.
Cells are written to benchmarks/results/flagship-<stage>.json as they end; a second call runs only what is missing.

    python benchmarks/reproduce/flagship.py screening main one cifar10   # run what is missing, two cells at a time
    python benchmarks/reproduce/flagship.py --table                      # only write docs/flagship.md from the JSON
"""

import argparse
import itertools
from typing import Any

from cells import ROOT, run_missing

RESULTS = ROOT / "benchmarks" / "results"
CLIENTS, SEEDS = 20, (0, 1, 2)
Cells = dict[str, dict[str, Any]]

DIGITS: dict[str, Any] = {"data": "digits4", "rounds": 15, "evaluate-every": 1}
PARTITIONS: Cells = {
    "by domain": {"partition": "domain"},
    "Dirichlet 0.1": {"partition": "dirichlet", "alpha": 0.1},
}
FLAGSHIP: dict[str, Any] = {"strategy": "isoproto"}
FROZEN = {"hyper.learning-rate": 0.0}
ALONE = {"anchors": "private", "relation.shrink": 1.0, **FROZEN}

# One seed, Dirichlet 0.1: one thing changed at a time, and frame x (frozen | learned through either head).
SCREENING: Cells = {
    "local": {"strategy": "local"},
    **{
        f"frame {frame}, {name}": {**FLAGSHIP, "frame": frame, **more}
        for frame in ("procrustes", "gram", "shared")
        for name, more in (
            ("frozen", FROZEN),
            ("learned, prototype head", {"hyper.head": "prototype"}),
            ("learned, server head", {"hyper.head": "server"}),
        )
    },
    "GCSA alone": {**FLAGSHIP, "alignment": "gcsa", **FROZEN},
    "GCSA + HPCL": {**FLAGSHIP, "alignment": "gcsa+hpcl", **FROZEN},
    "GCSA + HPAL": {**FLAGSHIP, "alignment": "gcsa+hpal", **FROZEN},
    "HPCL + HPAL alone": {**FLAGSHIP, "alignment": "hpcl+hpal", **FROZEN},
    "RCSA + HPCL + HPAL": {**FLAGSHIP, "alignment": "rcsa+hpcl+hpal", **FROZEN},
    "HPCL, HPAL weight 1": {**FLAGSHIP, "hyper.pcl": 1.0, "hyper.pal": 1.0, **FROZEN},
    "HPCL, HPAL weight 0.5": {**FLAGSHIP, "hyper.pcl": 0.5, "hyper.pal": 0.5, **FROZEN},
    "shrink 0": {**FLAGSHIP, "relation.shrink": 0.0, **FROZEN},
    "shrink 1": {**FLAGSHIP, "relation.shrink": 1.0, **FROZEN},
    "K = 1": {**FLAGSHIP, "hyper.size": 1},
    "K = 10": {**FLAGSHIP, "hyper.size": 10},
    "M = 10": {**FLAGSHIP, "hyper.steps": 10},
    "anchors own": {**FLAGSHIP, "anchors": "own", **FROZEN},
    "anchors private, shrink 1": {**FLAGSHIP, **ALONE},
}
METHODS: Cells = {
    "local": {"strategy": "local"},
    "fedproto": {"strategy": "fedproto"},
    "fedsaf, gcsa": {"strategy": "fedsaf", "alignment": "gcsa"},
    "fedsaf, rcsa": {"strategy": "fedsaf", "alignment": "rcsa"},
    "fedhpro, share = head": {"strategy": "fedhpro", "share": "head"},
    "fedhpro, share = head, S frozen": {"strategy": "fedhpro", "share": "head", **FROZEN},
    "isoproto": FLAGSHIP,
    "isoproto, S frozen": {**FLAGSHIP, **FROZEN},
    "isoproto, anchors = own": {**FLAGSHIP, "anchors": "own", **FROZEN},
    "isoproto, anchors = private, shrink = 1": {**FLAGSHIP, **ALONE},
}
ONE: Cells = {
    "fedavg": {"strategy": "fedavg"},
    "fedhpro": {"strategy": "fedhpro"},
    "fedhpro, S frozen": {"strategy": "fedhpro", **FROZEN},
}


def stages(data: str) -> dict[str, Cells]:
    """Return the settings of every cell by stage and name."""
    seeds = list(itertools.product(SEEDS, PARTITIONS))
    return {
        "screening": {
            f"{partition} | {name}": {**DIGITS, **PARTITIONS[partition], **settings, "seed": 0}
            for partition in ("Dirichlet 0.1", "by domain")
            for name, settings in SCREENING.items()
        },
        "main": {
            f"{partition} | {name} | seed {seed}": {**DIGITS, **PARTITIONS[partition], **settings, "seed": seed}
            for seed, partition in seeds
            for name, settings in METHODS.items()
        },
        "one": {
            f"{partition} | {name} | seed {seed}": {
                **DIGITS,
                **PARTITIONS[partition],
                **settings,
                "models": "cnn",
                "seed": seed,
            }
            for seed, partition in seeds
            for name, settings in ONE.items()
        },
    }


def main() -> None:
    """Run what is missing of the stages named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*")
    parser.add_argument("--data-dir", default="", help="folder with cifar10.npz")
    parser.add_argument("--table", action="store_true", help="only write the tables from the JSON")
    arguments = parser.parse_args()
    for stage in arguments.stages:
        command = f"python benchmarks/reproduce/flagship.py {stage}"
        run_missing(
            RESULTS / f"flagship-{stage}.json", stages(arguments.data_dir)[stage], clients=CLIENTS, command=command
        )


if __name__ == "__main__":
    main()
