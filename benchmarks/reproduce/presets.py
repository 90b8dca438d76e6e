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

`conf/fedsaf/` and `conf/fedhpro/` have a file for each column of the papers' tables: data, partition, clients, models
and training, as far as the papers tell; what they do not tell is said on top of each file, with the command. The
method comes on the command line:

```sh
isoproto run -c conf/fedsaf/cifar10_dir0.1_htfe9.toml -c "strategy='fedsaf' alignment='rcsa' lambda=5 gamma=30"
isoproto run -c conf/fedsaf/cifar10_dir0.1_htfe9.toml -c "strategy='isoproto'"
isoproto run -c conf/fedhpro/digits.toml -c "strategy='fedavg'"
isoproto run -c conf/fedsaf/pacs.toml -c conf/fedsaf/authors_code.toml -c "alignment='gcsa' lambda=5 gamma=30"
flwr run . --stream -c conf/fedsaf/pacs.toml --federation-config "num-supernodes=4 client-resources-num-cpus=1"
```

`clients` in a preset is the paper's number; `num-supernodes` may be smaller (nodes then stand for several clients
each), not larger. FedHPro's presets average whole models, as the paper's tables do for all methods, those of HtFE
groups the classifier: `share='none'` leaves that out, and `strategy='local'` leaves out all that is exchanged.
`conf/fedhpro/paper.toml`, `released_code.toml` and `conf/fedsaf/authors_code.toml` are methods, not columns. The
second has data and model of the published code too, so it runs as it is; the third is laid over a column, and trains
as FedSAF's authors do, on samples in one order and whole batches alone.

Not taken from that code: it stops a run after 50 rounds without a new best accuracy (`best` in `summary.json` is that
best); under GCSA and RCSA a sample without a prototype is its own target, where ours leaves it out; PACS's training
pictures are changed once, before they are split, so that changed ones are tested on too; features of some text models
are log-softmaxed and read out behind the padding; a client with less than a batch never trains, where here it trains
on what it has; and the faults of other methods (FedTGP, FedGen, FedMRL, FedKD, FedDistill), which are not here either.

What is not the papers': pictures are brought to [-1, 1] everywhere, as FedSAF does. FedHPro does not tell; its
published code brings both CIFARs to the mean and spread of CIFAR-10, and fills crops up with that mean. The `lambda`
and `gamma` that FedSAF's presets name are read off the paper's Fig. 5, for MSE and cosine the best cell, for GCSA and
RCSA one amid good ones; the paper tells none, and a run that names none takes [ours](adr/0003-weights.md).

## At small scale

`-c "scale='small'"`, after the preset, makes a run of minutes on two cores of it: stand-ins for data sets that few
have, smaller models of the same kinds, each below two million parameters, one epoch, at most five rounds, and 2,000
samples or 20 a client (all of them where clients are users or draw fractions of a domain). What was replaced by what
stands in the log and in `replaced` of `summary.json`; what a data set takes for a part that is not there (SVHN and SYN
of `digits`, say) is in `data_notes`, as always. Such figures say that a setting runs, and nothing about the paper's.

The table: each preset at small scale for *one* round, seed 0, with the method in the file (`fedsaf`'s own weights),
in one process that shares two cores with other work. Accuracy is the mean over the clients after that round, near
guessing in most of them; KiB what a client sends and receives in the round. {state} It is made by `{command}`, which
goes on where it stopped; DIR is a folder of data files ([data.md](data.md)).

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
