"""The table of docs/presets.md: every preset at small scale for one round, with its own method, in one process.

Rows are written to benchmarks/results/presets.json as they end; a second call runs only what is missing.

    python benchmarks/reproduce/presets.py --data-dir DIR   # run what is missing, then write the table
    python benchmarks/reproduce/presets.py --table          # only write the table from the JSON
"""

import argparse
import time
from pathlib import Path
from typing import Any

from cells import ROOT, load, run_cell

from benchmarks.record import record
from isoproto.config import read_overrides
from isoproto.errors import IsoprotoError

CONF = ROOT / "conf"
RESULTS = "presets"
TABLE = ROOT / "docs" / "presets.md"
COMMAND = "python benchmarks/reproduce/presets.py --data-dir DIR"
CLIENTS = 20  # of presets that do not say
# What a preset that is a method leaves to the user.
GIVEN = {"fedhpro/paper.toml": {"models": "cnn"}}


def presets() -> dict[str, dict[str, Any]]:
    """Return the settings of every preset by its place under conf/, for one round at small scale."""
    files = sorted(CONF.rglob("*.toml"))
    found = {str(path.relative_to(CONF)): read_overrides([str(path)]) for path in files}
    return {name: {**read, **GIVEN.get(name, {}), "scale": "small", "rounds": 1} for name, read in found.items()}


def run_missing(data_dir: Path) -> None:
    """Run the presets that the results lack or have with other settings."""
    done = load(RESULTS)
    for name, settings in presets().items():
        if done.get(name, {}).get("settings") == settings:
            continue
        begun = time.monotonic()
        try:
            result = run_cell(settings, int(settings.get("clients", CLIENTS)), str(data_dir.absolute()))
        except IsoprotoError as err:
            print(f"{name}: {err}", flush=True)
            continue
        kept = ("accuracy", "bytes", "replaced", "failed", "versions", "fingerprint", "git_commit")
        done[name] = {"settings": settings, "seconds": round(time.monotonic() - begun, 1), **_only(result, kept)}
        record(RESULTS, {"command": COMMAND, "cells": done})
        print(f"{name}: {done[name]['seconds']} s, {result['accuracy']['mean']:.4f}", flush=True)


def _only(result: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: result[key] for key in keys}


def table() -> str:
    """Return docs/presets.md."""
    done, wanted = load(RESULTS), presets()
    rows = [_row(name, done.get(name)) for name in wanted]
    seconds = sum(done[name]["seconds"] for name in wanted if name in done)
    absent = sum(name not in done for name in wanted)
    state = f"{len(wanted) - absent} of {len(wanted)} presets, {seconds / 60:.0f} minutes in all."
    lines = [
        INTRODUCTION.format(command=COMMAND, state=state).rstrip(),
        "",
        "| preset | seconds | accuracy, % | KiB | replaced |",
    ]
    return "\n".join([*lines, "| --- | ---: | ---: | ---: | --- |", *rows]) + "\n"


def _row(name: str, cell: dict[str, Any] | None) -> str:
    if cell is None:
        return f"| `{name}` | not run | | | |"
    kib = (cell["bytes"]["up"] + cell["bytes"]["down"]) / 1024
    replaced = "; ".join(
        text.removeprefix("scale = small: ").replace(" is replaced by ", " → ") for text in cell["replaced"]
    )
    return f"| `{name}` | {cell['seconds']:.0f} | {100 * cell['accuracy']['mean']:.1f} | {kib:,.0f} | {replaced} |"


INTRODUCTION = """# Presets

`conf/fedsaf/` and `conf/fedhpro/` have one file for each column of the papers' tables. A file sets the data,
partition, clients, models and training as far as the paper states them. Its first lines say what the paper leaves
open, and end with the command. All of these files come from one table, `conf/tables.py`; `make presets` writes
them. The method is given on the command line:

```sh
isoproto run -c conf/fedsaf/cifar10_dir0.1_htfe9.toml -c "strategy='fedsaf' alignment='rcsa' lambda=5 gamma=30"
isoproto run -c conf/fedsaf/cifar10_dir0.1_htfe9.toml -c "strategy='isoproto'"
isoproto run -c conf/fedhpro/digits.toml -c "strategy='fedavg'"
isoproto run -c conf/fedsaf/pacs.toml -c conf/fedsaf/authors_code.toml -c "alignment='gcsa' lambda=5 gamma=30"
flwr run . --stream -c conf/fedsaf/pacs.toml --federation-config "num-supernodes=4 client-resources-num-cpus=1"
```

`clients` in a preset is the paper's number. `num-supernodes` may be smaller, and each node then stands for several
clients. It must not be larger. FedHPro's presets average whole models, as the paper's tables do for all methods;
those of HtFE groups average the classifier. `share='none'` turns averaging off, and `strategy='local'` turns off
everything that is exchanged.

Three files are methods, not columns. `conf/fedhpro/paper.toml` has no data or model.
`conf/fedhpro/released_code.toml` also has the data and the model of the published code, so it runs by itself.
`conf/fedsaf/authors_code.toml` is given after a column's file and makes it train as FedSAF's authors do, on samples
in a fixed order and on whole batches only.

These things in the authors' code were not taken over:

- It stops after 50 rounds without a new best accuracy. (`best` in `summary.json` is that best accuracy.)
- Under GCSA and RCSA, a sample without a prototype is its own target. Ours leaves it out.
- It changes PACS's training pictures once, before they are split, so that changed pictures are tested on too.
- It applies log-softmax to the features of some text models, and reads them after the padding.
- A client with less than one batch never trains. Here it trains on what it has.
- It has faults in other methods (FedTGP, FedGen, FedMRL, FedKD, FedDistill), which these presets do not use.

Two things do not come from the papers:

- Pictures are scaled to [-1, 1] everywhere, as FedSAF does. FedHPro does not state its scaling. Its published code
  scales both CIFARs to the mean and spread of CIFAR-10, and fills crops with that mean.
- The `lambda` and `gamma` in FedSAF's presets are read off the paper's Fig. 5: for MSE and cosine the best cell,
  for GCSA and RCSA one among good ones. The paper states none. A run that sets none takes [our
  own](adr/0003-weights.md).

## At small scale

Put `-c "scale='small'"` after the preset to get a run of minutes on two cores. It replaces data sets that few
people have, and takes smaller models of the same kinds, each below two million parameters. It trains for one epoch
and at most five rounds, on 2,000 samples or 20 per client (on all samples where clients are users or draw fractions
of a domain). The log and `replaced` in `summary.json` say what was replaced. `data_notes` says what a data set uses
for a part that is missing, for example SVHN and SYN of `digits`. Such figures show that a setting runs. They say
nothing about the paper's figures.

The table has each preset at small scale for *one* round, seed 0, with the method in the file (`fedsaf` with our own
weights). Each ran in one process that shared two cores with other work. Accuracy is the mean over the clients after
that round, which is near guessing for most presets. KiB is what a client sends and receives in the round.

{state} `{command}` makes the table and
continues where it stopped. DIR is a folder of data files ([data.md](data.md)).

"""


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of data files")
    parser.add_argument("--table", action="store_true", help="only write the table")
    asked = parser.parse_args()
    if not asked.table:
        if asked.data_dir is None:
            parser.error("--data-dir is missing")
        run_missing(asked.data_dir)
    TABLE.write_text(table())


if __name__ == "__main__":
    main()
