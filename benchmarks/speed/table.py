"""Write docs/performance.md from benchmarks/results/*.json: every figure, its target, and an explanation.

All figures in tables, and whether a target was met, come from the JSON. The text around the tables is in this file, one
``Section`` per benchmark: what was tried, where the time goes, and what it would take to reach a missed target.

    python benchmarks/speed/table.py
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from machine import ROOT

from benchmarks.record import paragraph

RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"
MISSED = "**missed**"
NEAR_LINEAR = 1.2  # highest power of the number of classes that still counts as near linear


class Section(NamedTuple):
    """One section of the page, for one benchmark.

    Attributes:
        name: Name of the JSON file without its suffix.
        title: Heading of the section.
        before: Text before the figures: what was measured.
        rows: Function that makes the lines of the figures from the JSON.
        meanwhile: Text that is shown instead while there is no JSON.
        after: Text after the figures: what explains them.
        missed: Text that is shown if a target was missed: what was tried, and what it would take.
        command: Command that measures; empty for `python benchmarks/speed/<name>.py`.
    """

    name: str
    title: str
    before: str
    rows: Callable[[dict[str, Any]], list[str]]
    meanwhile: str = ""
    after: str = ""
    missed: str = ""
    command: str = ""


def verdict(figure: float, target: float, *, at_least: bool = False) -> str:
    """Return whether a figure reaches a target: at most the target, or with ``at_least`` at least the target."""
    return "met" if (figure >= target if at_least else figure <= target) else MISSED


def beside(figure: float, target: float, *, at_least: bool = False) -> str:
    """Return a target with its verdict."""
    return f"{target:g}, {verdict(figure, target, at_least=at_least)}"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def round_overhead(found: dict[str, Any]) -> list[str]:
    """Return the tables of ratios to the bare loop, of memory, and of the parts of a round."""
    rows, memory = [], []
    for name, size in found["sizes"].items():
        plain = size["alignment none"]
        repeats = ", ".join(f"{run['ratio']:.2f}" for run in plain["runs"])
        rows.append(
            [
                name,
                f"{min(size['reference'].values()):.2f}",
                f"{plain['figure']:.2f}",
                f"**{plain['ratio']:.3f}** ({repeats})",
                beside(plain["ratio"], size["target"]),
                f"{size['alignment gcsa']['ratio']:.2f}",
            ]
        )
        sampled = [run["memory"] for run in plain["runs"]]
        quarters = (", ".join(str(m[f"{q}_mib"]) for m in sampled) for q in ("second_quarter", "last_quarter", "peak"))
        memory.append([name, *quarters])
    return [
        *grid(["reference work", "bare loop, s", "simulated, s", "ratio", "target", "with GCSA"], rows),
        "",
        "Most memory of all processes in MiB (resident, shared pages counted in each), by repetition; to stay flat:",
        "",
        *grid(["reference work", "second quarter", "last quarter", "peak"], memory),
        *where_time_goes(found["sizes"]),
    ]


def where_time_goes(sizes: dict[str, Any]) -> list[str]:
    """Return the table of seconds in each part of a round, summed over all workers; nothing if the JSON has none."""
    noted = {name: size["alignment none"]["runs"][-1] for name, size in sizes.items()}
    if not all("parts" in run for run in noted.values()):
        return []
    wholes = [sum(run["parts"].values()) for run in noted.values()]
    rows = []
    for part in dict.fromkeys(part for run in noted.values() for part in run["parts"]):
        each = zip((run["parts"].get(part, 0.0) for run in noted.values()), wholes, strict=True)
        rows.append([part, *(f"{s:.3f} ({100 * s / whole:.0f} %)" for s, whole in each)])
    rows.append(["in all", *(f"{whole:.3f}" for whole in wholes)])
    written = ", ".join(f"{run['written']:.3f} s ({name})" for name, run in noted.items())
    return [
        "",
        "Where a round goes, in seconds of all workers together; for what comes before see [the start](#the-start):",
        "",
        *grid(["part", *noted], rows),
        "",
        f"A second thread writes models to the disk meanwhile: {written}.",
    ]


def server_step(found: dict[str, Any]) -> list[str]:
    """Return the tables of gradient matching: compared with autograd, and by number of classes."""
    ours, theirs, ratio = found["figure"], found["reference"], found["ratio"]
    target = beside(ratio, found["target"], at_least=True)
    few, *_, many = ((int(name.removeprefix("C = ")), s["sgd"]) for name, s in found["scaling"].items())
    power = math.log(many[1] / few[1]) / math.log(many[0] / few[0])
    growth = (
        f"{many[0] / few[0]:.0f} times the classes take {many[1] / few[1]:.0f} times as long with SGD, which is "
        f"$C^{{{power:.2f}}}$ (near linear: at most $C^{{{NEAR_LINEAR:g}}}$, {verdict(power, NEAR_LINEAR)})."
    )
    return [
        *grid(
            ["", "closed form, ms", "class by class, s", "times as fast", "target"],
            [["C = 100", f"{1e3 * ours:.0f}", f"{theirs:.2f}", f"**{ratio:.1f}**", target]],
        ),
        "",
        *grid(
            ["classes", "SGD, ms", "Adam, ms"],
            [[name, f"{1e3 * s['sgd']:.0f}", f"{1e3 * s['adam']:.0f}"] for name, s in found["scaling"].items()],
        ),
        "",
        growth,
    ]


def aggregate(found: dict[str, Any]) -> list[str]:
    """Return the table of seconds that the server takes for 1,000 replies."""
    labels = {
        "averages": "averages of prototypes and gradients alone",
        "isoproto, frame = gram": "a whole fold of `isoproto_anchors`: relations, frame, matching",
        "isoproto, frame = procrustes": "the same with `frame = procrustes`",
    }
    figures = found["figures"].items()
    return grid(
        ["work", "s", "target"],
        [[labels.get(name, name), f"{s:.2f}", beside(s, found["target"])] for name, s in figures],
    )


def maps(found: dict[str, Any]) -> list[str]:
    """Return the table of what the common frame costs."""
    targets, rows = found["targets"], []
    for name, figure in found["figures"].items():
        target = beside(figure, targets[name], at_least=name.endswith("/s")) if name in targets else ""
        rows.append([name, f"{figure:,.1f}", target])
    return grid(["work", "figure", "target"], rows)


def alignment_step(found: dict[str, Any]) -> list[str]:
    """Return the table of ratios to cross-entropy, by model and kind of step."""
    target = found["target"]
    kinds = [kind for kind in next(iter(found["models"].values())) if kind != "cross-entropy"]
    rows = [
        [
            f"`{model}`",
            f"{steps['cross-entropy']['ms']:.1f}",
            *(f"{steps[kind]['ratio']:.3f}, {verdict(steps[kind]['ratio'], target)}" for kind in kinds),
            f"{target:g}",
        ]
        for model, steps in found["models"].items()
    ]
    return grid(["model", "cross-entropy, ms", *(kind.upper() for kind in kinds), "target"], rows)


def layout(found: dict[str, Any]) -> list[str]:
    """Return the table of seconds in both layouts."""
    rows = [
        [name, f"{row['default']:.3f}", f"{row['placed']:.3f}", f"{row['ratio']:.2f}"]
        for name, row in found["models"].items()
    ]
    return grid(["model, picture, batch", "torch's default, s", "channels last, s", "ratio"], rows)


def secure(found: dict[str, Any]) -> list[str]:
    """Return the table of seconds and bytes of secure sums."""
    rows = [
        [
            name,
            f"{size['seconds']['client']:.3f}",
            f"{size['seconds']['server']:.2f}",
            *(f"{size[key] / 1e3:,.1f}" for key in ("vector", "up", "down")),
        ]
        for name, size in found["figures"].items()
    ]
    return [
        *grid(["", "a client, s", "the server, s", "vector, kB", "beside it up, kB", "down, kB"], rows),
        "",
        f"{100 * found['dropped']:.0f} % of the clients drop out before they send a vector.",
    ]


def batched(found: dict[str, Any]) -> list[str]:
    """Return the tables of clients that train together: whole trainings by device, and single steps."""
    # The targets are for 32 clients with cross-entropy alone. All other rows must not be slower than one by one.
    targets = {f"{name}, 32 clients, none": target for name, target in found["targets"].items()}
    rows = []
    for device in ("cpu", "cuda"):
        for name, row in found.get(device, {}).items():
            target = beside(row["ratio"], targets.get(name, 1), at_least=True)
            rows.append(
                [f"{device}: {name}", f"{row['loop']:.2f}", f"{row['cohort']:.2f}", f"{row['ratio']:.2f}", target]
            )
    steps = {name: row for name, row in found["step"].items() if name != "unit"}
    return [
        *grid(["model, clients, alignment", "one by one, ms", "together, ms", "times as fast", "target"], rows),
        "",
        "One step of 16 clients with `torch.vmap`, times as fast as a loop:",
        "",
        *grid(
            ["model", "loop, µs per client", "grouped convolutions", "products of patches"],
            [[f"`{n}`", f"{s['loop']:.0f}", f"{s['grouped']:.2f}", f"{s['products']:.2f}"] for n, s in steps.items()],
        ),
    ]


def wire(found: dict[str, Any]) -> list[str]:
    """Return the table of bytes of replies, and the bytes of a broadcast."""
    most, few, small = found["targets"].values()
    rows = []
    for kind in ("prototypes", "prototypes and gradients"):
        for number, size in found["sizes"][kind]["float32"].items():
            ratio, over = size["ratio"], size["over"]
            goal = beside(ratio, most) if int(number) >= 50 else f"{few:g} B over, {verdict(over, few)}"
            half, byte = (found["sizes"][kind][dtype][number]["of float32"] for dtype in ("float16", "int8"))
            byte_goal = beside(byte, small) if number == "50" else ""
            columns = [f"{size['bytes']:,}", f"{over:,}", f"{ratio:.3f}", goal, f"{half:.3f}", f"{byte:.3f}", byte_goal]
            rows.append([f"{number}, {kind}", *columns])
    down = ", ".join(
        f"{dtype} {size['bytes']:,} bytes ({size['of float32']:.3f})"
        for dtype, size in found["sizes"]["broadcast"].items()
    )
    head = ["rows", "float32, bytes", "over its rows, B", "ratio", "target", "float16", "int8", "target"]
    return [*grid(head, rows), "", paragraph(f"A broadcast of 100 prototypes and their relations: {down}.")]


def rounding(found: dict[str, Any]) -> list[str]:
    """Return the table of accuracy and bytes by `wire.dtype`, with differences to float32 for the same seed."""
    runs: dict[str, dict[str, Any]] = {}
    for name, cell in found["cells"].items():
        dtype, seed = name.split(" | ")
        runs.setdefault(dtype, {})[seed] = cell
    rows = []
    for dtype, seeds in runs.items():
        columns = []
        for key in ("mean", "last5", "nearest_prototype"):
            apart = [100 * (run["accuracy"][key] - runs["float32"][s]["accuracy"][key]) for s, run in seeds.items()]
            beside = "" if dtype == "float32" else f" ({min(apart):+.1f} to {max(apart):+.1f})"
            columns.append(f"{statistics.mean(run['accuracy'][key] for run in seeds.values()):.4f}{beside}")
        sent = (statistics.mean(run["bytes"][way] for run in seeds.values()) for way in ("up", "down"))
        rows.append([dtype, str(len(seeds)), *columns, *(f"{size / 1e3:.1f}" for size in sent)])
    head = ["rows in", "runs", "at the end", "last five rounds", "nearest prototype", "kB up", "kB down"]
    return grid(head, rows)


def startup(found: dict[str, Any]) -> list[str]:
    """Return the tables of milestones and of import times."""
    imports = found["imports"]
    return [
        *grid(["milestone", "s after the command"], [[name, f"{s:.1f}"] for name, s in found["milestones"].items()]),
        "",
        *grid(
            ["import", "s", "times that of torch", "target"],
            [
                ["`torch`", f"{imports['torch']:.2f}", "1", ""],
                [
                    "`client_app.app`",
                    f"{imports['client_app.app']:.2f}",
                    f"{imports['ratio']:.2f}",
                    beside(imports["ratio"], found["target"]),
                ],
            ],
        ),
    ]


def scale(found: dict[str, Any]) -> list[str]:
    """Return the tables of time, memory and disk for many clients, and how the time grows."""
    sizes, targets = found["sizes"], found["targets"]
    rounds, memory = [], []
    for name, size in sizes.items():
        start, end, disk = size["start"], size["end"], size["disk"]
        seconds = [*start.values(), size["seconds"], *end.values()]
        each = f"{size['milliseconds per participant']:.0f}"
        rounds.append([name, str(size["clients"]), str(size["participants"]), *(f"{s:.1f}" for s in seconds), each])
        early, late = size["memory"]["second_quarter_mib"], size["memory"]["last_quarter_mib"]
        memory.append(
            [
                name,
                *(f"{disk[part]:,.1f}" for part in ("model_mib", "state_mib", "run_folder_mib", "report_mib")),
                f"{size['memory']['peak_mib']:,}",
                f"{early:,}",
                f"{late:,}",
                f"{late / early:.2f} ({beside(late / early, targets['memory growth'])})",
            ]
        )
    lines = [
        *grid(
            [
                "size",
                "clients",
                "in a round",
                "server app, s",
                "all known, s",
                "round 1 begins, s",
                "a round, s",
                "last evaluation and report, s",
                "in all, s",
                "ms per participant",
            ],
            rounds,
        ),
        "",
        "Disk and memory in MiB (all processes, shared pages counted in each; quarters of the rounds):",
        "",
        *grid(
            ["size", "a model", "all models", "run folder", "report", "peak", "2nd quarter", "last quarter", "growth"],
            memory,
        ),
    ]
    few, rest, many = (sizes.get(name) for name in ("1,000 clients, 2 %", "5,000 clients, 0.4 %", "5,000 clients, 2 %"))
    if few and rest and many:
        proportion = many["milliseconds per participant"] / few["milliseconds per participant"]
        resting = rest["seconds"] / few["seconds"]
        text = (
            f"Five times the participants take {proportion:.2f} times as long for each "
            f"({beside(proportion, targets['seconds per participant'])}); four thousand more clients that do not "
            f"train make a round {resting:.2f} times as long "
            f"({beside(resting, targets['seconds for clients that rest'])})."
        )
        lines += ["", paragraph(text)]
    return lines


def deployment(found: dict[str, Any]) -> list[str]:
    """Return the table of seconds of a round, of a process that answers a message, and of its parts."""
    whole, process = found["round"], found["process"]
    rows = [
        ("**a round**", whole),
        ("a message's process on a node", process),
        *((f"- {name}", seconds) for name, seconds in found["parts"].items()),
        ("waiting: polls, dispatch, the server's step", whole - process),
    ]
    return grid(["", "s", "of the round"], [[name, f"{s:.2f}", f"{100 * s / whole:.0f} %"] for name, s in rows])


def data_memory(found: dict[str, Any]) -> list[str]:
    """Return the table of the MiB of the worker that takes most."""
    figures = found["figures"]
    return [
        f"{found['workers']} workers, {found['pictures_mib']:g} MiB of pictures:",
        "",
        *grid(
            ["of the worst worker, MiB more than before", ""],
            [
                ["its own alone", f"{figures['uss']:g}"],
                ["with its share of what others map too", f"{figures['pss']:g}"],
                ["resident", f"{figures['rss']:g}"],
            ],
        ),
    ]


def peer_htfllib(found: dict[str, Any]) -> list[str]:
    """Return the table of seconds of a round and accuracy, for HtFLlib and for this project."""
    rows, theirs = [], found["runs"]["htfllib"]["accuracy"]
    for name, run in found["runs"].items():
        faster, accuracy, own = run["times faster"], f"{run['accuracy']:.4f}", run.get("accuracy by its head")
        goals = ["", ""]
        if name != "htfllib":
            goals = [beside(faster, found["target"], at_least=True), verdict(run["accuracy"], theirs, at_least=True)]
        by_head = "" if own is None else f"{own:.4f}"
        rows.append([name, f"{run['seconds']:.2f}", f"{faster:.1f}", goals[0], accuracy, goals[1], by_head])
    head = ["", "s per round", "times as fast", "target", "accuracy, nearest prototype", "no worse", "by the own head"]
    return grid(head, rows)


def gpu(found: dict[str, Any]) -> list[str]:
    """Return the table of figures on a GPU: a client's epoch, alignments, small clients together, memory."""
    targets, memory = found["targets"], found["memory"]
    epoch, step, growth, together = targets.values()
    bare, narrow = found["epoch over a bare loop"], found["bf16 over float32"]
    rows = [
        [f"epoch of `{found['model']}` over a bare loop", f"{bare:.3f}", beside(bare, epoch)],
        ["the same, bf16 over float32", f"{narrow:.3f}", ""],
    ]
    aligned = found["step with an alignment"].items()
    rows += [[f"step with {name.upper()} over cross-entropy", f"{r:.3f}", beside(r, step)] for name, r in aligned]
    for name, both in found["cohort"].items():
        faster = both["times as fast"]
        rows.append([f"small clients together, `{name}`", f"{faster:.2f}", beside(faster, together, at_least=True)])
    more, rounds = memory["growth MiB"], len(memory["MiB after each round"])
    rows.append([f"more memory after {rounds} rounds, MiB", f"{more:.1f}", beside(more, growth)])
    return [*grid(["", "figure", "target"], rows), "", f"Most memory: {memory['peak MiB']:,.0f} MiB."]


SECTIONS = (
    Section(
        "round_overhead",
        "A round",
        """\
Medians over rounds, start-up left out; 20 clients train with B = 32, 200 with B = 10. The bare loop is torch alone
with models and float pictures in memory, in the faster of its two forms (one process with two threads, two with one).
The simulated round adds Flower, Ray, two processes, client models on disk (written and flushed every round), checks,
checkpoint and metrics. The machine is shared and its speed drifts by a tenth within minutes, so each simulation stands
between two bare loops and is divided by their mean; in brackets the repetitions.""",
        round_overhead,
        after="""\
How a round got from 1.26 to this ([ADR 7](adr/0007-several-clients-in-one-message.md)):

- one message for several clients: what was paid per client (Ray's dispatch, Flower's queue, polling; 15 ms) is paid a
  few times per worker. A message to a worker that is free now costs 3 ms; about 60 ms a round are left between the last
  reply and the first step of the next one, most of it Flower's queue, which is read every 0.1 s.
- in the client: models are written by a second thread, with NumPy's writer of the same format (0.5 ms instead of 1.5),
  read into a network that is there already, and checked for finiteness in one pass; together 12 ms became about 4.
- local training itself: pictures are evaluated in parts that fit the cache (5 to 8 ms of 120 per client), and the
  optimiser is fused (2 to 6 % of a step).
- accuracy before training is that after the round before and is not measured again (6 ms of 120 per client) when
  nothing was put into the model. The bare loop measures it; without this, the ratio would be about 0.05 higher.
- a few Flower nodes stand for all clients of a simulation (`clients`; `isoproto run --engine flower` does it by
  itself), since Flower asks for the messages of each node ten times a second: its simulation took 12 % of a core with
  200 nodes and 4.6 % with 8. And the run's SuperExec asks once a second, Flower's default, instead of ten times: the
  SuperLink's share fell from 4.7 % to 0.7 % of a core. Both sampled once with psutil;
- convolutions run with their channels last ([below](#how-pictures-lie-in-memory)): 4 to 13 % off a small network's
  training, which the bare loop does not have;
- the number of threads is set only where it is not set already: torch forgets its prepared convolutions each time, and
  for a while that was done in every message, which made a client 5 to 8 % slower (found by this benchmark).

With GCSA at both levels a step costs about 0.4 ms more, which is 4 ms of the 140 that a client takes at B = 32 and
three times as many steps at B = 10.""",
        missed="""\
What is left: of a round of 20 clients (1.4 s) workers are busy with clients for nine tenths. Flower's simulation looks
for messages every 0.1 s, which costs 60 ms between two rounds whatever their length, and a worker that has nothing left
waits for the other one's last client (130 ms). It would take rounds that overlap, or a simulation of our own, which is
not Flower any more.""",
    ),
    Section(
        "server_step",
        "Gradient matching on the server",
        """\
One round of C = 100 classes, K = 5 hyper-prototypes each, d = 512, M = 30 steps, float64, against the paper's
equations class by class with autograd, which give the same vectors.""",
        server_step,
        missed="""\
Why it is not near linear in C: the gradient of one class goes through a softmax over all classes. So a step is either a
product of `[C K, C]` and `[C, C]`, which grows with the cube of C, or of `[C K, C]` and `[C, d]`, which grows with its
square. Up to C = 100 the cost of starting operations hides that. Class by class the time grows with the square, too.
What it would take: logits of a few nearest classes only, which is another method; or the product over d where C > d.
Not tried.""",
    ),
    Section(
        "aggregate",
        "A thousand replies",
        "The server folds in 1,000 replies of 20 rows, d = 512.",
        aggregate,
        missed="""\
`frame = procrustes` is not the default of `isoproto_anchors`: each reply gets a map of its own there, by two QR and one
singular value decomposition. Replies with equally many classes are decomposed in one batch, which halved its time; what
it would take is a float32 decomposition, or fewer iterations. Not tried. The machine drifts: 0.93 and 1.01 s were
measured of the same code.""",
    ),
    Section(
        "maps",
        "The common frame",
        """\
One core, float32, batches as the client makes them. The naive scattering convolves each picture by itself with each
wavelet; the benchmark checks that both give the same features. The cache is read with its checksum.""",
        maps,
    ),
    Section(
        "alignment_step",
        "A step with an alignment",
        """\
The client's own training loop, batches of 100 pictures 32x32x3, d = 512, C = 100, one thread, preparation of the
batches included; median over turns of the ratio to cross-entropy alone. The papers pay 1.11 (GCSA, RCSA) and about 1.5
(HPCL, HPAL).""",
        alignment_step,
        meanwhile=f"""\
Measured by hand over 8 turns, while nothing else was to run but without the benchmark's own check of that
(target 1.05): `cnn`, whose step takes 25.3 ms, 1.073 with GCSA and 1.068 with RCSA ({MISSED}), 1.049 with HPCL + HPAL;
`cnn4` (98.8 ms) 1.022, 1.019, 1.010; `resnet18` (583 ms) 1.003, 0.998, 1.000.""",
        missed="""\
An alignment costs 1.5 to 2 ms a step whatever the model is, so only a model whose step takes less than 40 ms misses the
target. Called in a loop, with all data in the cache, its operations take less: 1.0 ms for GCSA and 1.15 ms for RCSA. Of
that, 0.3 ms are the two products with the features, which nothing can avoid, and 0.07 ms the averages over classes.
After the backward pass of a model they take half as long again.

Two changes helped a little. The gradients of both levels, and the level of the samples, are computed without matrix
products; these took 1.3 ms before, which is at most half a point of the ratio. The gradients of both terms are added
before they are multiplied with the features. Two changes made no difference that exceeds the noise: a C library that
keeps freed memory, and gradients that go to autograd together with those of the cross-entropy instead of through a
function of their own. What it would take: a compiled kernel in place of some forty small
operations.""",
    ),
    Section(
        "gpu",
        "On a GPU",
        """\
Local training of a ResNet-18 on generated pictures 32x32x3, d = 512, C = 100, batches of 128, in bfloat16 autocast with
the channels last and the data on the device; beside it 32 small clients, as [below](#small-clients-as-one-program).
Needs a GPU with PyTorch and NumPy and nothing installed, so it is not part of `make bench`; the same code runs small on
a CPU in `make test`.""",
        gpu,
        meanwhile="""\
No GPU was lent when this was built. That a training step never waits for one, `augment = autoaugment` and data of more
than 1 GiB apart, is seen without it (tests/unit/test_no_waiting.py).""",
        command="make gpu-check",
    ),
    Section(
        "layout",
        "How pictures lie in memory",
        """\
An epoch and an evaluation of a client's model on a CPU, one thread: pictures and weights in torch's default layout, and
with their channels last, as clients train. A user's own model keeps the default, which its code may rely on.""",
        layout,
    ),
    Section(
        "cohort",
        "Small clients as one program",
        """\
Local training of clients of 15 to 60 samples of 1x32x32 pixels, B = 10, one epoch, SGD with momentum, one thread: one
after the other, and together ([ADR 8](adr/0008-cohort.md)).""",
        batched,
        meanwhile=f"""\
On a machine that others used too, 16 clients with cross-entropy: `mlp` 2.5 to 2.8 times as fast (target 3,
{MISSED}), `tiny_cnn` 2.2 times (target 1.5, met).""",
        missed="""\
A client that trains alone uses the same program, although that is slower for it. The reason: which clients train
together depends on timing, and must not change the last bit of a result. In a run in one process every client trains
alone, as each message is for one client. A client with much more data than the others is alone at its end, too. What it
would take: messages for several clients in one process, as under Flower; and for a single client a program with less
overhead in each operation. Not tried.

The ratio of an MLP changes from day to day, as other users share the memory of the machine: it was 2.7 to 3.2 in five
runs within two hours. Three changes were tried for it: one vector of all weights for a fused optimiser; gradients that
are written where the optimiser reads them (before, they were copied twice, which took a third of a step); and clients
without further batches stay in the vector. 16 clients at once are a little faster than 8. A larger MLP is slower
together, as its weights and the state of the optimiser do not fit into the cache. What it would take is not known.""",
    ),
    Section(
        "wire",
        "Bytes",
        "A training reply as protobuf writes it, d = 512; float16 and int8 (`wire.dtype`) over the same in float32.",
        wire,
    ),
    Section(
        "secure",
        "The secure sum",
        "All four steps of one secure sum ([secure-sum.md](secure-sum.md)) on one thread: seconds of a client and of "
        "the server, and what a client sends and receives beside its vector.",
        secure,
        after="A client's time goes into random words for the masks that it shares with up to 40 others. The server's "
        "goes into the own masks of all survivors, and into up to 40 masks for each client that dropped out.",
    ),
    Section(
        "rounding",
        "Accuracy with fewer bytes",
        """\
The demo (conf/demo.toml, 20 clients) in one process with rows of each `wire.dtype`; means of the runs, in brackets how
far the worst and the best run of a kind is from float32 with the same seed, in points.""",
        rounding,
        meanwhile="""\
Noted by hand from one run each (seed 0), which no JSON records: float32 ends at 0.7375 (mean of the last five rounds
0.7311, nearest prototype 0.7419; 11.2 kB up and 28.7 down per client and round), float16 at 0.7425 (0.7320, 0.7469; 6.6
and 15.8), int8 at 0.7413 (0.7320, 0.7531; 4.2 and 9.0). No loss is seen; one seed tells no difference of half a point
from chance.""",
        command="python benchmarks/reproduce/rounding.py",
    ),
    Section(
        "startup",
        "The start",
        "4 clients and 1 round of digits under Flower and Ray.",
        startup,
        meanwhile="""\
Noted by hand from one run while the machine had other work: the SuperLink answers 1.6 s after the command, the
server app runs at 5.5, Ray starts at 6.7, a worker at 7.2, and a client's first step is at 11.9 at the latest;
`import client_app.app` takes 1.19 times as long as `import torch` alone (target 1.5, met).""",
        after="""\
torchvision, pillow and Ray are imported where they are used; tests/contract/test_import_weight.py lists what must not
be imported at the start.""",
    ),
    Section(
        "scale",
        "Many clients",
        """\
Large models: ResNet-18, 20 rounds at 20 %, pictures and data so small that a round is seconds. Small clients: `mlp` and
`tiny_cnn`, 18 pictures 16x16 to train and 6 to test, 60 rounds. Under Flower and Ray; all clients are evaluated
before round 1 and after the last. Not part of `make bench`, but of `make bench-scale`.""",
        scale,
    ),
    Section(
        "deployment",
        "A round in a deployment",
        """\
The SuperLink and two SuperNodes are processes on one machine. Clients have almost nothing to train (an MLP, 40 pictures
each). Flower starts a process per message. Figures are medians over messages and rounds.""",
        deployment,
        meanwhile="""\
Noted by hand from `make compose-test` (three nodes and the server on two cores, the flagship on digits4): a round
takes 11.8 to 14.0 s, of which the work of a client, its model and its training, is 3.0 to 4.0 s; the same round takes
1.6 to 3.1 s in simulation.""",
        after="""\
What does not depend on the client's work is the process, most of which is imports, and waiting: a SuperNode
asks the SuperLink for messages every 3 s, and looks every 0.5 s whether its process is done; both are fixed in Flower.
How often it looks for work for a process is 0.2 s in `isoproto node` and the compose files (1 s in Flower). Imports
take as long as they do here because both nodes share two cores with the server.""",
    ),
    Section(
        "data_memory",
        "Memory of pictures",
        """\
Worker processes all use one data set as large as CIFAR-10. It is decoded once per machine, and all processes map it.
Figures are what a process holds more than before it read anything.""",
        data_memory,
    ),
    Section(
        "peer_htfllib",
        "Beside HtFLlib",
        """\
FedProto on identical data files, the same small CNN, rate and batches, every client tested in every round by the
nearest global prototype, as HtFLlib does it, on a CPU. Needs a checkout of HtFLlib, so it is not part of `make
bench`.""",
        peer_htfllib,
        command="python benchmarks/speed/peer_htfllib.py --checkout HtFLlib",
    ),
)

INTRODUCTION = """# Performance

Made by `python benchmarks/speed/table.py`, the last step of `make bench`, from `benchmarks/results/*.json`: all figures
in tables are from there, and so is whether a target was met. Figures in the text around them were taken by hand while
the thing was built; they say why, not how fast it is today."""


def provenance(found: dict[str, Any]) -> str:
    """Return the command, the machine and the commit of some figures."""
    if "machine" not in found:
        return f"`{found['command']}`."
    on = found["machine"]
    what = f"{on['processor']}, {on['cores']} cores, Python {on['python']}, torch {on['torch']}"
    return paragraph(f"`{found['command']}` on {what}; commit {found.get('git_commit') or 'not noted'}.")


def part(section: Section, folder: Path) -> list[str]:
    """Return the paragraphs of a section."""
    path = folder / f"{section.name}.json"
    if path.exists():
        found = json.loads(path.read_text("utf8"))
        body = ["\n".join(section.rows(found)), provenance(found)]
    else:
        command = section.command or f"python benchmarks/speed/{section.name}.py"
        body = [f"Not recorded yet: run `{command}`.", section.meanwhile]
    missed = section.missed or "What was tried and what it would take is not written down yet."
    text = [section.after, missed if any(MISSED in lines for lines in body) else ""]
    return [f"## {section.title}", section.before, *filter(None, [*body, *text])]


def page(folder: Path = RESULTS) -> str:
    """Return docs/performance.md, made of the JSON files in a folder."""
    return "\n\n".join([INTRODUCTION, *(text for section in SECTIONS for text in part(section, folder))]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
