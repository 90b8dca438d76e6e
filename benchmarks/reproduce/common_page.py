"""Write docs/common.md and its figures from benchmarks/results/common.json."""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from cells import EXCHANGED, ROOT, load
from common_figures import draw

from benchmarks.record import recorded
from isoproto.runs.added import client_interval

RESULTS, VECTORS = "common", "common_vectors"
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
    """Write the page and its figures from what is recorded."""
    cells = load(RESULTS)
    tables = (_main_table, _sizes, _frozen, _networks, _questions, _vectors, _noise, _others)
    parts = [INTRODUCTION, *(line for table in tables for line in table(cells))]
    PAGE.write_text("\n".join(parts).rstrip() + "\n", "utf8")
    draw(questions(cells), noises(cells))


def _main_runs(cells: dict[str, Cell]) -> dict[str, list[dict[str, Cell]]]:
    """Return the runs of each seed that has all methods, by data."""
    seeds: dict[str, dict[int, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for name, cell in cells.items():
        if found := re.fullmatch(r"(.*) \| (isoproto|local) \| seed (\d+)", name):
            seeds[found[1]][int(found[3])][found[2]] = cell
    whole = {data: [runs for _, runs in sorted(by.items()) if len(runs) == 2] for data, by in seeds.items()}
    return {data: runs for data, runs in whole.items() if runs}


def _main_table(cells: dict[str, Cell]) -> list[str]:
    lines = [
        "## What the exchange adds to the best without it\n",
        "| data | seeds | network | own | own and network | one exchange | gradients | joint | gain | by seed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *(_row(data, runs) for data, runs in _main_runs(cells).items()),
    ]
    return [*lines, ""]


def _best_alone(run: dict[str, Cell]) -> tuple[dict[str, list[float]], str]:
    """Return each control's accuracies by client, and the name of the best control."""
    controls = {name: accuracies(last(run[method]), counts) for name, (method, counts) in CONTROLS.items()}
    return controls, max(controls, key=lambda name: statistics.fmean(controls[name]))


def _row(data: str, runs: list[dict[str, Cell]]) -> str:
    columns: dict[str, list[float]] = defaultdict(list)
    gains, differences = [], []
    for run in runs:
        end = last(run["isoproto"])
        controls, name_of_best = _best_alone(run)
        for name, values in controls.items():
            columns[name].append(100 * statistics.fmean(values))
        best = controls[name_of_best]
        joint = accuracies(end, "correct, joint")
        differences += [a - b for a, b in zip(joint, best, strict=True)]
        gains.append(100 * (statistics.fmean(joint) - statistics.fmean(best)))
        columns["one exchange"].append(mean(_exchanged(run["isoproto"]), "correct, common"))
        columns["gradients"].append(mean(end, "correct, common"))
        columns["joint"].append(100 * statistics.fmean(joint))
    shown = [_spread(columns[name]) for name in (*CONTROLS, "one exchange", "gradients", "joint")]
    gain = f"**{statistics.fmean(gains):+.1f}** {_interval(differences)}"
    return f"| {data} | {len(runs)} | {' | '.join(shown)} | {gain} | {', '.join(f'{g:+.1f}' for g in gains)} |"


def _interval(differences: list[float]) -> str:
    low, high = (f"{100 * end:.1f}" for end in client_interval(differences) or (float("nan"),) * 2)
    return f"[{low}, {high}]"


def _sizes(cells: dict[str, Cell]) -> list[str]:
    lines = [
        "## Who gains\n",
        (
            "The same gain over all test samples together (*pooled*), and as a mean over thirds of the clients by the "
            "number of their training samples.\n"
        ),
        "| data | pooled | smallest third | middle | largest third |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for data, runs in _main_runs(cells).items():
        pooled: list[float] = []
        thirds: list[list[float]] = [[], [], []]
        for run in runs:
            controls, best = _best_alone(run)
            end = last(run["isoproto"])
            joint = accuracies(end, "correct, joint")
            weights = end["total"]
            pooled.append(
                sum(w * (j - o) for w, j, o in zip(weights, joint, controls[best], strict=True)) / sum(weights)
            )
            clients = sorted(zip(end["samples"], joint, controls[best], strict=True))
            for number, (_, with_others, alone) in enumerate(clients):
                thirds[3 * number // len(clients)].append(with_others - alone)
        figures = [f"{100 * statistics.fmean(values):+.1f}" for values in (pooled, *thirds)]
        lines.append(f"| {data} | {' | '.join(figures)} |")
    return [*lines, ""]


def _frozen(cells: dict[str, Cell]) -> list[str]:
    found: dict[str, list[Cell]] = defaultdict(list)
    for name, cell in cells.items():
        if match := re.fullmatch(r"(.*) \| (EfficientNet-Lite0|MiniLM) \| seed \d+", name):
            found[f"{match[1]}, {match[2]}"].append(cell)
    lines = [
        "## With a frozen network as map\n",
        (
            "Every node computes features with the same public network, and nobody trains one. The networks were "
            "trained on data of their makers, so these figures are not comparable with those of methods that start "
            "from nothing.\n"
        ),
        "| data | seeds | own | one exchange | gradients | joint | gain over own |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for data, runs in found.items():
        ends = [last(cell) for cell in runs]
        shown = [_spread(mean(end, "correct, own") for end in ends)]
        shown.append(_spread(mean(_exchanged(cell), "correct, common") for cell in runs))
        shown += [_spread(mean(end, f"correct, {name}") for end in ends) for name in ("common", "joint")]
        pairs = [(accuracies(end, "correct, joint"), accuracies(end, "correct, own")) for end in ends]
        differences = [a - b for joint, own in pairs for a, b in zip(joint, own, strict=True)]
        gain = f"**{100 * statistics.fmean(differences):+.1f}** {_interval(differences)}"
        lines.append(f"| {data} | {len(runs)} | {' | '.join(shown)} | {gain} |")
    return [*lines, ""] if found else []


def _networks(cells: dict[str, Cell]) -> list[str]:
    found: dict[str, dict[str, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for name, cell in cells.items():
        if match := re.fullmatch(r"(.*) \| (local|isoproto|distilled|isoproto_anchors) \| (seed \d+)", name):
            found[match[1]][match[2]][match[3]] = cell
    methods = ("local", "isoproto", "distilled", "isoproto_anchors")
    lines = [
        "## What the clients' own networks gain\n",
        (
            "Accuracy of the clients' networks by themselves. *isoproto* trains them as *local* does, on nine tenths "
            "of the samples, since a tenth is held out. *distilled* (`common.distil = 1`) also teaches them what "
            "everybody's classifier says. *isoproto_anchors* is the former flagship.\n"
        ),
        f"| data | seeds | {' | '.join(methods)} |",
        f"| --- | ---: |{' ---: |' * len(methods)}",
    ]
    rows = []
    for data, runs in found.items():
        seeds = sorted(set.intersection(*(set(runs[method]) for method in methods)))
        if not seeds:
            continue
        heads = [[_network(runs[method][seed]) for seed in seeds] for method in methods]
        rows.append(f"| {data} | {len(seeds)} | {' | '.join(_spread(values) for values in heads)} |")
    return [*lines, *rows, ""] if rows else []


def _network(cell: Cell) -> float:
    """Return the mean accuracy of the clients' networks in the last round, in per cent."""
    return mean(last(cell), "correct, head" if "correct, head" in last(cell) else "correct")


def _exchanged(cell: Cell) -> Cell:
    """Return the evaluation in which everybody's classifier is the closed form."""
    return next(e for e in cell["evaluations"] if e["round"] == min(EXCHANGED, last(cell)["round"]))


def _spread(values: Iterable[float]) -> str:
    values = list(values)
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


Questions = dict[str, dict[str, list[Cell]]]


def questions(cells: dict[str, Cell]) -> Questions:
    """Return the cells of each further question, by data."""
    found: Questions = defaultdict(lambda: defaultdict(list))
    for name, cell in cells.items():
        if match := re.fullmatch(r"(.*) \| question: (.*) \| seed \d+", name):
            found[match[2]][match[1]].append(cell)
    return found


def _questions(cells: dict[str, Cell]) -> list[str]:
    found = questions(cells)
    if not found:
        return []
    settings = sorted({data for by_data in found.values() for data in by_data})
    lines = [
        "## What travels, and how far it goes\n",
        (
            "Clients without networks (`models = none`). *as it is*: 512 linear coordinates and 1,024 random features, "
            "64 directions, four copies, up to ten steps. kB are those of the largest message of a client, the one "
            "with its statistics.\n"
        ),
        f"| | {' | '.join(f'{data}: one exchange | end, joint | own' for data in settings)} | kB |",
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
        lines.append(f"| {question} | {' | '.join(row)} | {kilobytes(by_data):.0f} |")
    pictures = (
        ("common-bytes", "accuracy against the bytes of the first message"),
        (
            "common-size",
            "accuracy against coordinates, random features and directions",
        ),
    )
    return [*lines, "", *(f"![{text}](figures/{name}.svg)\n" for name, text in pictures)]


def _vectors(_: dict[str, Cell]) -> list[str]:
    partitions = recorded(VECTORS).get("partitions", {})
    if not partitions:
        return []
    forms = list(next(iter(partitions.values())))
    return [
        "## Vectors that match the gradients\n",
        (
            "`python benchmarks/reproduce/common_vectors.py` compares the gradient steps with FedHPro's form of them: "
            "the server moves K vectors per class until the classifier has the clients' gradients on them (L_GM), and "
            "then trains the classifier on these vectors. Each cell is the accuracy of everybody's classifier when the "
            "held-out loss rises, and in brackets the number of rounds. Vectors need the gradient for the samples of "
            "each class, which is as many times larger as there are classes.\n"
        ),
        f"| | {' | '.join(f'digits4, {name}' for name in partitions)} |",
        f"| --- |{' ---: |' * len(partitions)}",
        *(
            f"| {form} | {' | '.join('{accuracy:.1f} ({steps})'.format(**by[form]) for by in partitions.values())} |"
            for form in forms
        ),
        "",
    ]


def kilobytes(by_data: dict[str, list[Cell]]) -> float:
    """Return the size of the largest message of a client, in kB."""
    return float(max(cell.get("largest_reply", 0) for runs in by_data.values() for cell in runs)) / 1e3


Noises = dict[str, dict[float, list[Cell]]]


def noises(cells: dict[str, Cell]) -> Noises:
    """Return the cells with noise, by kind of sum and noise."""
    found: Noises = defaultdict(lambda: defaultdict(list))
    for name, cell in cells.items():
        if match := re.fullmatch(r"(.*), noise ([\d.]+) \| seed \d+", name):
            found[match[1]][float(match[2])].append(cell)
    return found


def _noise(cells: dict[str, Cell]) -> list[str]:
    found = noises(cells)
    lines = [
        "## Noise\n",
        (
            "Gaussian noise in the statistics, once, at delta 1e-5 for one training sample. With *secure sum* noise "
            "is shared out over the clients and only their sum is seen; with *each its own* every client adds all of "
            "it. 128 linear coordinates, lengths clipped to 0.7, shrinkage 0.3, no copies, no networks, no gradient "
            "steps. *own* has the same settings and no noise, since nothing of it leaves the client. "
            "[secure-sum.md](secure-sum.md) says what epsilon covers.\n"
        ),
        "| data and sum | noise | epsilon | everybody's classifier | own |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, by_noise in found.items():
        for noise, runs in sorted(by_noise.items()):
            epsilon = f"{runs[0]['privacy']['epsilon']:.1f}" if "privacy" in runs[0] else "none"
            shown = [_spread(mean(last(cell), f"correct, {of}") for cell in runs) for of in ("common", "own")]
            lines.append(f"| {name.replace(' | ', ', ')} | {noise:g} | {epsilon} | {' | '.join(shown)} |")
    return [*lines, "", "![accuracy against epsilon](figures/common-epsilon.svg)\n"] if found else []


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
        if "one architecture" not in method and "no networks" not in method:
            continue
        evaluations = [e for e in cell["evaluations"] if e["round"]]
        means, pooled = ([100 * e[key] for e in evaluations] for key in ("mean", "pooled"))
        own = f"{mean(evaluations[-1], 'correct, own'):.1f}" if "correct, own" in evaluations[-1] else ""
        figures = f"{means[-1]:.1f} | {max(means):.1f} | {pooled[-1]:.1f} | {max(pooled):.1f}"
        lines.append(f"| {data}, {method} | {figures} | {own} |")
    return [*lines, ""] if len(lines) > start else []
