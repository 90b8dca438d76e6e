"""What rows in fewer bytes (`wire.dtype`) do to the accuracy of the demo, conf/demo.toml, in one process.

Runs of the same seed differ in nothing else. Three runs tell a loss of a point from chance, not one of a tenth.

    python benchmarks/reproduce/rounding.py
"""

import tomllib
from typing import Any

from cells import ROOT, run_missing

RESULTS = "rounding"
CLIENTS, SEEDS = 20, (0, 1, 2)
DTYPES = ("float32", "float16", "int8")


def cells() -> dict[str, dict[str, Any]]:
    """Return the settings of every cell by its name."""
    demo = tomllib.loads((ROOT / "conf" / "demo.toml").read_text("utf8"))
    return {f"{dtype} | {seed}": {**demo, "seed": seed, "wire.dtype": dtype} for dtype in DTYPES for seed in SEEDS}


if __name__ == "__main__":
    run_missing(RESULTS, cells(), clients=CLIENTS, command="python benchmarks/reproduce/rounding.py")
