"""Write docs/common.md from benchmarks/results/common.json."""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from cells import EXCHANGED, ROOT, load

from isoproto.runs.added import client_interval

RESULTS = "common"
PAGE = ROOT / "docs" / "common.md"
Cell = dict[str, Any]
# What a client can do with nothing exchanged: name, method whose run holds it, and its counts.
CONTROLS = {
    "network": ("local", "correct"),
    "own": ("isoproto", "correct, own"),
    "own and network": ("isoproto", "correct, alone"),
}
INTRODUCTION = """# The common frame, measured

`python benchmarks/reproduce/common.py --data-dir DIR` runs what is missing of `benchmarks/results/common.json`, and
makes this page from it. No figure in a table is typed by hand. [ADR 11](adr/0011-common-frame.md) says what was
decided, and why.

**Figures.** Accuracy in per cent: the mean over clients, each on its own test part, after the last round. Every cell is
a whole run. A seed decides the partition, the initial weights and the order of batches. ± is the sample standard
deviation over seeds.

**Columns.** *network*: the clients' own networks, trained alone (`local`), on changed pictures. *own*: a classifier in
the common frame from the client's own samples and changed copies of them alone; shrinkage and temperature by five-fold
cross-validation. *own and network*: the mixture of both. None of the three gets anything from others. *one exchange*:
everybody's classifier after the statistics of all clients were added up. *gradients*: the same after rounds of
gradients. *joint*: what `isoproto` predicts with.

**Gain.** *joint* minus the *best* of the three controls, which is chosen seed by seed after the fact, in the control's
favour. The interval is over clients (paired, all seeds together; `isoproto.runs.added.client_interval`).
"""


def mean(evaluation: Cell, counts: str) -> float:
    """Return the mean accuracy over clients, in per cent."""
    return 100 * statistics.fmean(accuracies(evaluation, counts))


def accuracies(evaluation: Cell, counts: str) -> list[float]:
    """Return each client's accuracy."""
    return [right / total for right, total in zip(evaluation[counts], evaluation["total"], strict=True)]


def last(cell: Cell) -> Cell:
    """Return the last evaluation of a run."""
    found: Cell = cell["evaluations"][-1]
    return found


def write_page() -> None:
    """Write the page from what is recorded."""
    cells = load(RESULTS)
    parts = [INTRODUCTION, *_main_table(cells), *_questions(cells), *_others(cells)]
    PAGE.write_text("\n".join(parts).rstrip() + "\n", "utf8")


def _main_table(cells: dict[str, Cell]) -> list[str]:
    seeds: dict[str, dict[int, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for name, cell in cells.items():
        if found := re.fullmatch(r"(.*) \| (isoproto|local) \| seed (\d+)", name):
            seeds[found[1]][int(found[3])][found[2]] = cell
    lines = [
        "## What the exchange adds to the best without it\n",
        "| data | seeds | network | own | own and network | one exchange | gradients | joint | gain | by seed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for data, by_seed in seeds.items():
        whole = {seed: runs for seed, runs in sorted(by_seed.items()) if {"isoproto", "local"} <= runs.keys()}
        if whole:
            lines.append(_row(data, list(whole.values())))
    return [*lines, ""]


def _row(data: str, runs: list[dict[str, Cell]]) -> str:
    columns: dict[str, list[float]] = defaultdict(list)
    gains, differences = [], []
    for run in runs:
        end = last(run["isoproto"])
        controls = {name: accuracies(last(run[method]), counts) for name, (method, counts) in CONTROLS.items()}
        for name, values in controls.items():
            columns[name].append(100 * statistics.fmean(values))
        best = max(controls.values(), key=statistics.fmean)
        joint = accuracies(end, "correct, joint")
        differences += [a - b for a, b in zip(joint, best, strict=True)]
        gains.append(100 * (statistics.fmean(joint) - statistics.fmean(best)))
        columns["one exchange"].append(mean(_exchanged(run["isoproto"]), "correct, common"))
        columns["gradients"].append(mean(end, "correct, common"))
        columns["joint"].append(100 * statistics.fmean(joint))
    shown = [_spread(columns[name]) for name in (*CONTROLS, "one exchange", "gradients", "joint")]
    low, high = (f"{100 * end:.1f}" for end in client_interval(differences) or (float("nan"),) * 2)
    gain = f"**{statistics.fmean(gains):+.1f}** [{low}, {high}]"
    return f"| {data} | {len(runs)} | {' | '.join(shown)} | {gain} | {', '.join(f'{g:+.1f}' for g in gains)} |"


def _exchanged(cell: Cell) -> Cell:
    """Return the evaluation in which everybody's classifier is the closed form."""
    return next(e for e in cell["evaluations"] if e["round"] == min(EXCHANGED, last(cell)["round"]))


def _spread(values: Iterable[float]) -> str:
    values = list(values)
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def _questions(cells: dict[str, Cell]) -> list[str]:
    found: dict[str, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for name, cell in cells.items():
        if match := re.fullmatch(r"(.*) \| question: (.*) \| seed \d+", name):
            found[match[2]][match[1]].append(cell)
    if not found:
        return []
    settings = sorted({data for by_data in found.values() for data in by_data})
    lines = [
        "## What travels, and how far it goes\n",
        (
            "Clients without networks (`models = none`): everybody's classifier mixed with the client's own. Bytes are "
            "those of the largest message of a client, the one with its statistics.\n"
        ),
        f"| | {' | '.join(f'{data}: one exchange | end | own' for data in settings)} | kB |",
        f"| --- |{' ---: |' * (3 * len(settings) + 1)}",
    ]
    for question, by_data in found.items():
        row = []
        for data in settings:
            runs = by_data.get(data, [])
            ends = [last(cell) for cell in runs]
            row += [
                _spread(mean(_exchanged(cell), "correct, common") for cell in runs) if runs else "",
                _spread(mean(end, "correct, joint") for end in ends) if runs else "",
                _spread(mean(end, "correct, own") for end in ends) if runs else "",
            ]
        largest = max(cell.get("largest_reply", 0) for runs in by_data.values() for cell in runs)
        lines.append(f"| {question} | {' | '.join(row)} | {largest / 1e3:.0f} |")
    return [*lines, ""]


def _others(cells: dict[str, Cell]) -> list[str]:
    lines = [
        "## Beside them\n",
        (
            "One seed each. *pooled*: over all test samples together. Best rounds are chosen on test data, as the "
            "papers do. FedSAF reports 88.03 for CIFAR-10 (Dirichlet 0.1, 20 clients, pooled, best of 300 rounds of 5 "
            "epochs), on its own draw of the partition.\n"
        ),
        "| data and method | mean | best round | pooled | best round | own, mean |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    start = len(lines)
    for name, cell in cells.items():
        data, method, *_ = name.split(" | ")
        if method in ("isoproto", "local") or method.startswith("question"):
            continue
        evaluations = [e for e in cell["evaluations"] if e["round"]]
        means, pooled = ([100 * e[key] for e in evaluations] for key in ("mean", "pooled"))
        own = f"{mean(evaluations[-1], 'correct, own'):.1f}" if "correct, own" in evaluations[-1] else ""
        figures = f"{means[-1]:.1f} | {max(means):.1f} | {pooled[-1]:.1f} | {max(pooled):.1f}"
        lines.append(f"| {data}, {method} | {figures} | {own} |")
    return [*lines, ""] if len(lines) > start else []
