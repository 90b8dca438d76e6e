"""The weights of the alignment terms under the product's optimiser (docs/adr/0003-weights.md).

Screening: digits4, 20 clients, one seed, ten rounds; final accuracy minus `local` of the same seed, in points.

    python benchmarks/reproduce/weights.py
"""

from typing import Any

from cells import run_missing

RESULTS = "weights"
COMMON: dict[str, Any] = {"rounds": 10, "seed": 7, "evaluate-every": 1}
PARTITIONS = {"domain": {"partition": "domain"}, "dirichlet": {"partition": "dirichlet", "alpha": 0.1}}
GRID = {
    "gcsa": [(0.1, 0.3), (0.3, 1.0), (1.0, 1.0), (1.0, 5.0), (5.0, 30.0)],
    "rcsa": [(0.1, 0.3), (0.3, 1.0), (1.0, 1.0), (1.0, 5.0)],
    "mse": [(0.01, 0.01), (0.1, 0.1), (1.0, 1.0)],
    "cosine": [(0.01, 1.0), (0.1, 0.1), (1.0, 1.0)],
}


def cells() -> dict[str, dict[str, Any]]:
    """Return the settings of every cell by its name."""
    wanted: dict[str, dict[str, Any]] = {}
    for name, partition in PARTITIONS.items():
        wanted[f"{name} | local"] = {**COMMON, **partition, "strategy": "local"}
        for alignment, weights in GRID.items():
            for lambda_, gamma in weights:
                terms = {"alignment": alignment, "lambda": lambda_, "gamma": gamma}
                wanted[f"{name} | {alignment} {lambda_:g} / {gamma:g}"] = {**COMMON, **partition, **terms}
    return wanted


def main() -> None:
    """Run what is missing and print the table."""
    done = run_missing(RESULTS, cells(), clients=20, command="python benchmarks/reproduce/weights.py")
    print("| alignment | lambda / gamma | " + " | ".join(PARTITIONS) + " |\n| --- | --- | ---: | ---: |")
    for alignment, weights in GRID.items():
        for lambda_, gamma in weights:
            name = f"{alignment} {lambda_:g} / {gamma:g}"
            gains = [
                100 * (done[f"{p} | {name}"]["accuracy"]["mean"] - done[f"{p} | local"]["accuracy"]["mean"])
                for p in PARTITIONS
            ]
            print(f"| {alignment} | {lambda_:g} / {gamma:g} | " + " | ".join(f"{g:+.2f}" for g in gains) + " |")


if __name__ == "__main__":
    main()
