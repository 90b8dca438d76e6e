"""Hyper-prototypes measured: the tables of docs/flagship.md, each row resumable, from one command.

Each cell is a whole run with the real ServerApp and ClientApp in one process, so `flwr run` gives the same numbers.
Cells are written to benchmarks/results/flagship-<stage>.json as they end; a second call runs only what is missing.

    python benchmarks/reproduce/flagship.py main forms one screening          # run what is missing, two at a time
    python benchmarks/reproduce/flagship.py anchors few long                  # more of them
    python benchmarks/reproduce/flagship.py cifar10 tail many --data-dir DIR  # cifar10.npz and tiny_imagenet100.npz
    python benchmarks/reproduce/flagship.py --table                           # write docs/flagship.md from the JSON
"""

import argparse
import io
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cells import EARLIER, ROOT, load, points, run_missing, save
from PIL import Image

from benchmarks.record import paragraph

TABLE = ROOT / "docs" / "flagship.md"
CLIENTS, SEEDS = 20, (0, 1, 2)
Cells = dict[str, dict[str, Any]]

DIGITS: dict[str, Any] = {"data": "digits4", "rounds": 15, "evaluate-every": 1}
PARTITIONS: Cells = {
    "by domain": {"partition": "domain"},
    "Dirichlet 0.1": {"partition": "dirichlet", "alpha": 0.1},
}
# The frame that was the default when one thing was changed at a time.
SCREENED: dict[str, Any] = {**EARLIER, "frame": "procrustes"}
FROZEN = {"hyper.learning-rate": 0.0}
LITERAL = {"hyper.form": "paper"}
ALONE = {"anchors": "private", "relation.shrink": 1.0, **FROZEN}

# One seed, Dirichlet 0.1: one thing changed at a time, and frame x (frozen | learned through either head).
SCREENING: Cells = {
    "local": {"strategy": "local"},
    **{
        f"frame {frame}, {name}": {**EARLIER, "frame": frame, **more}
        for frame in ("procrustes", "gram", "shared")
        for name, more in (
            ("frozen", FROZEN),
            ("learned, prototype head", {"hyper.head": "prototype"}),
            ("learned, server head", {"hyper.head": "server"}),
        )
    },
    "GCSA alone": {**SCREENED, "alignment": "gcsa", **FROZEN},
    "GCSA + HPCL": {**SCREENED, "alignment": "gcsa+hpcl", **FROZEN},
    "GCSA + HPAL": {**SCREENED, "alignment": "gcsa+hpal", **FROZEN},
    "HPCL + HPAL alone": {**SCREENED, "alignment": "hpcl+hpal", **FROZEN},
    "RCSA + HPCL + HPAL": {**SCREENED, "alignment": "rcsa+hpcl+hpal", **FROZEN},
    "HPCL, HPAL weight 1": {**SCREENED, "hyper.pcl": 1.0, "hyper.pal": 1.0, **FROZEN},
    "HPCL, HPAL weight 0.5": {**SCREENED, "hyper.pcl": 0.5, "hyper.pal": 0.5, **FROZEN},
    "shrink 0": {**SCREENED, "relation.shrink": 0.0, **FROZEN},
    "shrink 1": {**SCREENED, "relation.shrink": 1.0, **FROZEN},
    "K = 1": {**SCREENED, "hyper.size": 1},
    "K = 10": {**SCREENED, "hyper.size": 10},
    "M = 10": {**SCREENED, "hyper.steps": 10},
    "anchors own": {**SCREENED, "anchors": "own", **FROZEN},
    "anchors private, shrink 1": {**SCREENED, **ALONE},
}
# The present form (ADR 9): random vectors that are common to all, so that coordinates mean the same everywhere.
FULL = {"hyper.pcl": 1.0, "hyper.pal": 1.0}
MARGIN = {**FULL, "hyper.margin": "literal", "hyper.form": "paper_mean"}
COMMON = {**EARLIER, **MARGIN, "frame": "shared", "hyper.init": "normal"}
BARE = {"alignment": "hpcl+hpal"}
METHODS: Cells = {
    "local": {"strategy": "local"},
    "fedproto": {"strategy": "fedproto"},
    "fedsaf, gcsa": {"strategy": "fedsaf", "alignment": "gcsa"},
    "fedsaf, rcsa": {"strategy": "fedsaf", "alignment": "rcsa"},
    "fedhpro, share = head": {"strategy": "fedhpro", "share": "head"},
    "fedhpro, share = head, S frozen": {"strategy": "fedhpro", "share": "head", **FROZEN},
    "isoproto": COMMON,
    "isoproto, S frozen": {**COMMON, **FROZEN},
    "isoproto, private anchors, simplex": {**COMMON, **ALONE},
    "isoproto, private anchors, no structure": {**COMMON, **BARE, **ALONE},
}
ONE: Cells = {
    "fedavg": {"strategy": "fedavg"},
    "fedhpro": {"strategy": "fedhpro"},
    "fedhpro, S frozen": {"strategy": "fedhpro", **FROZEN},
    "fedhpro literal": {"strategy": "fedhpro", **LITERAL},
}


CIFAR: Cells = {
    name: METHODS[name]
    for name in (
        "local",
        "fedproto",
        "fedsaf, gcsa",
        "fedsaf, rcsa",
        "fedhpro, share = head",
        "isoproto",
        "isoproto, S frozen",
        "isoproto, private anchors, simplex",
    )
}
TAIL: Cells = {
    **{f"one architecture, {name}": {**settings, "models": "cnn"} for name, settings in ONE.items()},
    "one architecture, fedhpro + classifier re-training": {
        "strategy": "fedhpro",
        "hyper.retrain": "creff",
        "models": "cnn",
    },
    **{name: METHODS[name] for name in ("local", "isoproto", "isoproto, S frozen")},
}
# 100 classes: does the federation know more of their relations than the simplex, which needs no message?
MANY: Cells = {
    "local": {"strategy": "local"},
    "prototypes at 0.2": EARLIER,
    "prototypes at 0.2, S frozen": {**EARLIER, **FROZEN},
    "GCSA alone, shrink 0": {**EARLIER, "alignment": "gcsa", "relation.shrink": 0.0, **FROZEN},
    "GCSA alone, shrink 1": {**EARLIER, "alignment": "gcsa", "relation.shrink": 1.0, **FROZEN},
}
# Other optimisers, and training until it has converged.
OPTIMISERS: Cells = {
    "SGD 0.1 without momentum": {"learning-rate": 0.1, "momentum": 0.0},
    "Adam 0.002": {"optimizer": "adam", "learning-rate": 0.002},
    "60 rounds": {"rounds": 60},
}
LONG: Cells = {
    f"{optimiser}, {name}": {**settings, **changes}
    for optimiser, changes in OPTIMISERS.items()
    for name, settings in (("local", {"strategy": "local"}), ("prototypes at 0.2", EARLIER))
}
# 80 clients with 60 training pictures each: where others' knowledge should be worth most.
FEW: Cells = {
    "local": {"strategy": "local"},
    "prototypes at 1": {**EARLIER, **FULL},
    "prototypes at 1, S frozen": {**EARLIER, **FULL, **FROZEN},
    "prototypes at 1, frame = shared, S frozen": {**EARLIER, **FULL, "frame": "shared", **FROZEN},
    "prototypes at 1, anchors = own": {**EARLIER, **FULL, "anchors": "own", **FROZEN},
    "prototypes at 1, anchors = private, shrink = 1": {**EARLIER, **FULL, **ALONE},
}
# What makes fedhpro's anchors good: shared heads, common random vectors, or only the margin and the mean form?
RANDOM = {
    "strategy": "fedhpro",
    "share": "none",
    "hyper.head": "prototype",
    **FROZEN,
}
ANCHORS: Cells = {
    "local": {"strategy": "local"},
    "fedhpro's losses, common random vectors, nothing shared": RANDOM,
    "fedhpro's losses, private random vectors (nothing exchanged)": {**RANDOM, "anchors": "private"},
    "the same without margin": {**RANDOM, "anchors": "private", "hyper.margin": "none"},
}
# Other forms, one seed.
FORMS: Cells = {
    **{name: METHODS[name] for name in ("local", "isoproto", "isoproto, S frozen")},
    "isoproto, no structure": {**COMMON, **BARE},
    "isoproto, no structure, S frozen": {**COMMON, **BARE, **FROZEN},
    "isoproto, SGD 0.1": {**COMMON, "hyper.optimizer": "sgd", "hyper.learning-rate": 0.1},
    "prototypes as anchors": {**EARLIER, **MARGIN},
    "prototypes as anchors, S frozen": {**EARLIER, **MARGIN, **FROZEN},
    "prototypes as anchors, anchors = own": {**EARLIER, **MARGIN, "anchors": "own", **FROZEN},
    "prototypes at 1, no margin": {**EARLIER, **FULL},
    "prototypes at 0.2": EARLIER,
    "prototypes at 0.2, S frozen": {**EARLIER, **FROZEN},
    "prototypes at 0.2, anchors = own": {**EARLIER, "anchors": "own", **FROZEN},
    "prototypes at 0.2, anchors = private, shrink = 1": {**EARLIER, **ALONE},
    "fedhpro literal, share = head": {"strategy": "fedhpro", "share": "head", **LITERAL},
    "fedhpro literal, share = head, S frozen": {"strategy": "fedhpro", "share": "head", **LITERAL, **FROZEN},
}
LONG |= {f"{optimiser}, isoproto": {**settings, **COMMON} for optimiser, settings in OPTIMISERS.items()}
FEW |= {"isoproto": COMMON, "isoproto, private anchors, simplex": {**COMMON, **ALONE}}
MANY |= {"isoproto": COMMON, "isoproto, S frozen": {**COMMON, **FROZEN}}
CLIENTS_OF = {"few": 80}
MANY_TRAIN, MANY_TEST = 10000, 2000
TRAIN, TEST, TAIL_MOST, RHO, TAIL_TEST = 8000, 2000, 2000, 100, 200


def prepare(data_dir: Path) -> None:
    """Write small sets, 32x32, from the packs into the data folder of this process: subsets, and a long tail."""
    tail = [round(TAIL_MOST * RHO ** (-c / 9)) for c in range(10)]
    write_subset(data_dir / "cifar10.npz", "cifar10-small", [TRAIN // 10] * 10, [TEST // 10] * 10)
    write_subset(data_dir / "cifar10.npz", "cifar10-tail", tail, [TAIL_TEST] * 10)
    write_subset(data_dir / "tiny_imagenet100.npz", "tiny-100", [MANY_TRAIN // 100] * 100, [MANY_TEST // 100] * 100)


def write_subset(source: Path, name: str, train: list[int], test: list[int]) -> None:
    """Write so many training and test pictures of each class, drawn at random."""
    with np.load(source) as pack:
        jpeg, offsets, labels, split = (pack[key] for key in ("jpeg", "offsets", "labels", "split"))
    rng = np.random.default_rng(0)
    arrays = {"classes": np.array([str(c) for c in range(len(train))])}
    for part, (key, most) in enumerate((("train", train), ("test", test))):
        order = rng.permutation(np.flatnonzero(split == part))
        index = np.concatenate([order[labels[order] == c][:n] for c, n in enumerate(most)])
        files = (io.BytesIO(jpeg[offsets[i] : offsets[i + 1]].tobytes()) for i in index)
        pictures = [
            np.asarray(Image.open(file).convert("RGB").resize((32, 32), Image.Resampling.BOX)) for file in files
        ]
        arrays |= {f"{key}_x": np.stack(pictures), f"{key}_y": labels[index].astype(np.int64)}
    folder = Path(os.environ["ISOPROTO_HOME"]) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)


def stages() -> dict[str, Cells]:
    """Return the settings of every cell by stage and name."""
    seeds = list(itertools.product(SEEDS, PARTITIONS))
    return {
        "screening": {
            f"Dirichlet 0.1 | {name}": {**DIGITS, **PARTITIONS["Dirichlet 0.1"], **settings, "seed": 0}
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
        "cifar10": {
            f"Dirichlet 0.1 | {name} | seed 0": {
                "data": "npz:cifar10-small.npz",
                "rounds": 12,
                "evaluate-every": 1,
                **PARTITIONS["Dirichlet 0.1"],
                **settings,
            }
            for name, settings in CIFAR.items()
        },
        "tail": {
            f"Dirichlet 0.5, rho 100 | {name} | seed 0": {
                "data": "npz:cifar10-tail.npz",
                "rounds": 15,
                "evaluate-every": 1,
                "partition": "dirichlet",
                "alpha": 0.5,
                "split": "official",
                **settings,
            }
            for name, settings in TAIL.items()
        },
        "many": {
            f"Dirichlet 0.1 | {name} | seed 0": {
                "data": "npz:tiny-100.npz",
                "rounds": 15,
                "evaluate-every": 1,
                **PARTITIONS["Dirichlet 0.1"],
                **settings,
            }
            for name, settings in MANY.items()
        },
        "anchors": {
            f"{partition} | {name} | seed 0": {**DIGITS, **PARTITIONS[partition], **settings, "seed": 0}
            for partition in PARTITIONS
            for name, settings in ANCHORS.items()
        },
        "forms": {
            f"{partition} | {name} | seed 0": {**DIGITS, **PARTITIONS[partition], **settings, "seed": 0}
            for partition in PARTITIONS
            for name, settings in FORMS.items()
        },
        "few": {
            f"by domain | {name} | seed {seed}": {**DIGITS, **PARTITIONS["by domain"], **settings, "seed": seed}
            for seed in SEEDS
            for name, settings in FEW.items()
        },
        "long": {
            f"by domain | {name} | seed 0": {**DIGITS, **PARTITIONS["by domain"], **settings}
            for name, settings in LONG.items()
        },
    }


def identity(stage: str, settings: dict[str, Any]) -> str:
    """Return what tells a run from others: cells of two stages that agree in it are one run."""
    return json.dumps([CLIENTS_OF.get(stage, CLIENTS), settings], sort_keys=True)


def adopt(stage: str) -> None:
    """Take over what other stages have run already, controls above all."""
    name = f"flagship-{stage}"
    done = {s: load(f"flagship-{s}") for s in reversed(stages())}  # of several, the main tables' run
    runs = {identity(s, cell["settings"]): cell for s, cells in done.items() for cell in cells.values()}
    wanted = {name: runs.get(identity(stage, settings)) for name, settings in stages()[stage].items()}
    kept = {cell: found for cell, found in (wanted | load(name)).items() if found and cell in wanted}
    save(name, kept, command(stage))


def command(stage: str) -> str:
    """Return what makes the cells of a stage."""
    return f"python benchmarks/reproduce/flagship.py {stage}"


def table() -> str:
    """Return docs/flagship.md."""
    done = {stage: load(f"flagship-{stage}") for stage in stages()}
    lines = [INTRODUCTION]

    def single(stage: str, partition: str, rows: Cells, control: str, suffix: str = "") -> None:
        found = {name: done[stage].get(f"{partition} | {name}{suffix}") for name in rows}
        if not found[control]:
            return
        lines.extend([f"### {partition}\n", "| method | final | last five | minus control (last five) |"])
        lines.append("| --- | ---: | ---: | ---: |")
        accuracy = {name: cell["accuracy"] for name, cell in found.items() if cell}
        for name, own in accuracy.items():
            gain = "" if name == control else f"{100 * (own['last5'] - accuracy[control]['last5']):+.2f}"
            lines.append(f"| {name} | {100 * own['mean']:.2f} | {100 * own['last5']:.2f} | {gain} |")
        lines.append("")

    def seeded(stage: str, partition: str, rows: Cells, control: str) -> None:
        cells = {name: [done[stage].get(f"{partition} | {name} | seed {s}") for s in SEEDS] for name in rows}
        cells = {name: found for name, found in cells.items() if all(found)}
        if control not in cells:
            return
        last = {name: [cell["accuracy"]["last5"] for cell in found if cell] for name, found in cells.items()}
        final = {name: [cell["accuracy"]["mean"] for cell in found if cell] for name, found in cells.items()}
        lines.extend(
            [
                f"### {partition}\n",
                "| method | final | last five | minus control, paired | by seed | minus its frozen twin |",
            ]
        )
        lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
        for name in cells:
            gain = [a - b for a, b in zip(last[name], last[control], strict=True)]
            twin = last.get(f"{name}, S frozen")
            learned = [a - b for a, b in zip(last[name], twin, strict=True)] if twin else []
            columns = [points(final[name]), points(last[name])]
            columns += ["", ""] if name == control else [points(gain), ", ".join(f"{100 * g:+.2f}" for g in gain)]
            lines.append(f"| {name} | {' | '.join(columns)} | {points(learned) if learned else ''} |")
        lines.append("")

    sections: list[tuple[str, str, Callable[[], object]]] = [
        (
            "main",
            "Four architectures, nobody's weights (three seeds; control: local)",
            lambda: [seeded("main", partition, METHODS, "local") for partition in PARTITIONS],
        ),
        (
            "one",
            "One architecture, models averaged: the model that the server sends (three seeds; control: fedavg)",
            lambda: [seeded("one", partition, ONE, "fedavg") for partition in PARTITIONS],
        ),
        (
            "anchors",
            "Why fedhpro's anchors do well (seed 0; control: local)",
            lambda: [single("anchors", partition, ANCHORS, "local", " | seed 0") for partition in PARTITIONS],
        ),
        (
            "forms",
            "Other forms (seed 0; control: local)",
            lambda: [single("forms", partition, FORMS, "local", " | seed 0") for partition in PARTITIONS],
        ),
        (
            "few",
            "Little data: 80 clients with 60 training pictures (three seeds; control: local)",
            lambda: seeded("few", "by domain", FEW, "local"),
        ),
        (
            "cifar10",
            "CIFAR-10, 8,000 + 2,000 pictures, 12 rounds (one seed; control: local)",
            lambda: single("cifar10", "Dirichlet 0.1", CIFAR, "local", " | seed 0"),
        ),
        (
            "tail",
            "Long tail: CIFAR-10, 2,000 to 20 pictures a class, balanced test, 15 rounds (one seed; control: fedavg)",
            lambda: single("tail", "Dirichlet 0.5, rho 100", TAIL, "one architecture, fedavg", " | seed 0"),
        ),
        (
            "many",
            "100 classes: Tiny-ImageNet-100 at 32x32, 10,000 + 2,000 pictures, 15 rounds (one seed; control: local)",
            lambda: single("many", "Dirichlet 0.1", MANY, "local", " | seed 0"),
        ),
        (
            "long",
            "Other optimisers, and longer training (one seed; control: local)",
            lambda: [
                single(
                    "long", "by domain", {n: s for n, s in LONG.items() if n.startswith(o)}, f"{o}, local", " | seed 0"
                )
                for o in OPTIMISERS
            ],
        ),
        (
            "screening",
            "Screening: one thing changed at a time (seed 0; control: local)",
            lambda: single("screening", "Dirichlet 0.1", SCREENING, "local"),
        ),
    ]
    for stage, title, write in sections:
        lines.append(f"## {title}\n")
        if absent := len(set(stages()[stage]) - set(done[stage])):
            lines.append(f"{absent} runs of `flagship.py {stage}` are still to be made.\n")
        write()
    lines.append(MATCHING)
    cells = list({identity(s, cell["settings"]): cell for s, found in done.items() for cell in found.values()}.values())
    minutes = sum(cell["cpu_seconds"] for cell in cells) / 60
    median = statistics.median(cell["cpu_seconds"] for cell in cells)
    commits = sorted({cell["git_commit"] for cell in cells})
    made_with = ", ".join(f"{name} {version}" for name, version in cells[0]["versions"].items())
    cpu = f"{minutes:.0f} minutes of CPU (median {median:.0f} s a run)"
    lines.append(paragraph(f"{len(cells)} runs, {cpu}. Code {', '.join(commits)}; {made_with}."))
    return "\n".join(lines) + "\n"


INTRODUCTION = """# Hyper-prototypes, measured

`python benchmarks/reproduce/flagship.py --table` makes this page from `benchmarks/results/flagship-*.json`. No
figure in a table is typed by hand. [Gradient matching](#gradient-matching) has pictures, and [ADR
6](adr/0006-flagship.md) the decisions that followed from the screening.

**Since [ADR 11](adr/0011-common-frame.md)** the method that this page calls `isoproto` is the strategy
`isoproto_anchors`. The strategy `isoproto` is now the [common frame](common.md).

**Figures.** Accuracy in per cent. Each client tests its own model, with its own classifier, on its own test part;
the figure is the mean over 20 clients. `final` is the last round. `last five` is the mean of the last five rounds.
Differences are taken on `last five`, since a client's test part is small. They are paired: all methods of a seed
share partition, initial weights and batch order. ± is the sample standard deviation over seeds 0, 1 and 2. The
partition is the same in all of them.

**Setting.** Unless a section says otherwise: digits4, 20 clients, 15 rounds of one local epoch, SGD 0.02 with
momentum 0.9, batches of 32, four architectures, features of width 128.

**Rows.** *Frozen* is the same method with `hyper.learning-rate = 0`: hyper-prototypes stay where they start, and no
gradients travel. `anchors = own`, and `anchors = private` with the simplex (`shrink = 1`), use nothing of other
clients. They have the same losses, but pull towards the client's own prototypes and relations, or towards its own
random vectors. Rows named *prototypes* are `isoproto` with prototypes as anchors, in the frame that is embedded
from the averaged relations. Each table holds its own control, because the tables were made by code of different
days, which rounds differently. Rounding alone is worth up to a point in one run, and a few tenths in the mean of
three.

**What it says.** The clients of these four points have four architectures and share no weights.

- `isoproto` is better than `local` and `fedproto` in both settings, by more than the spread and in every seed. By
  domain it gains +3.2 over `local` and +3.7 over `fedproto`; under Dirichlet 0.1 it gains +2.0 and +2.1. After 60
  rounds, when training has converged, it gains +4.2 by domain (one seed; the earlier form gained nothing there).
  With 80 clients of 60 pictures each it gains +5.3.
- *The gain is not federation.* The same losses with nothing exchanged, towards the client's own random vectors and
  the simplex, gain +3.3 and +1.7, and with little data +4.7 of the 5.3. So the gain is regularisation, by random
  directions at full weight with a margin. What comes from other clients adds -0.1 +- 0.6, 0.3 +- 0.3 and (little
  data) 0.5 +- 1.1 points.
- Gradient matching does its job: L_GM falls to a fourth or less within a round. It brings no accuracy: the
  differences to the frozen twin are -0.2 +- 0.1 and 0.0 +- 0.4. `hyper.learning-rate = 0` halves the uplink and
  loses nothing.
- `fedhpro` with `share = head` gains +3.4 by domain and +1.5 under Dirichlet. Its frozen twin gains as much
  (differences -0.1 +- 0.3 and 0.2 +- 0.3). A lead of 0.8 +- 0.5 in an earlier run did not appear again. FedSAF's
  own losses gain less than a point: GCSA 0.5 +- 0.3 and 0.7 +- 0.2, RCSA 0.3 +- 0.7 and 0.5 +- 0.1.

**How we came to this form.**

- The first form pulled towards prototypes in a frame of the server, at a fifth of the weight. It gained +1.4 and
  +0.9 over three seeds ([ADR 9](adr/0009-common-anchors.md)). Three frames, two heads, K = 1, 5, 10 and M = 10, 30
  made no difference there ("Screening").
- Taking `fedhpro` apart showed what matters. The shared head and the learned vectors matter least. Random vectors,
  full weight and the margin matter most. Prototypes as anchors at that weight are worse by domain and lose 1.4
  points under Dirichlet ("Other forms").
- Three seeds do not show that structure (GCSA) adds anything: with nothing exchanged it adds 0.8 +- 1.2 by domain
  and 0.6 +- 1.1 under Dirichlet.
- In its literal form (HPAL summed over coordinates) `fedhpro` loses under both settings with this optimiser. The
  papers do not use digits4, so they have no number to compare with.
- A high learning rate breaks `isoproto`. With SGD 0.1 without momentum it ends 4 points below `local` (one seed),
  where the earlier form gains 0.9. With Adam 0.002 it gains 2.7.

**One architecture.** With averaged models `fedhpro` is 3.6 +- 0.5 above `fedavg` by domain, in every seed. Its
frozen twin is 3.3 +- 0.7 above it (difference 0.3 +- 0.5). So the two losses help, and three seeds show no gain
from learning the hyper-prototypes. Under Dirichlet 0.1 clients hold few classes and averaging itself is in trouble;
there `fedhpro` is 22 points below. The literal form does not train.

**Other data.** All of these are far from the papers' settings: 8,000 to 10,000 pictures, 12 and 15 rounds, small
networks.

- On CIFAR-10 (one seed, Dirichlet 0.1; clients of few classes, `local` at 85) nothing helps. RCSA ends 0.4 above
  `local` and GCSA 0.3. `isoproto` ends 0.9 below it, `fedhpro` 1.6, and 0.4 with nothing exchanged.
- With a long tail (rho 100) an averaged model collapses under this label skew, whichever method trains it (17 to
  18; 22 with classifier re-training). Clients that train alone reach 55, `isoproto` 54.
- With 100 classes (Tiny-ImageNet-100, Dirichlet 0.1) one seed tells no method from `local`: `isoproto` +0.2, its
  frozen twin +0.6, the earlier form +1.3, and relations alone -0.3. The simplex (+0.3) does without those
  relations.
"""


MATCHING = """## Gradient matching

`python benchmarks/reproduce/diagnostics.py` makes these pictures (digits4 by domain, 20 clients, 15 rounds, seed
0). Their figures are in `benchmarks/results/diagnostics.json`.

![L_GM against the matching step](figures/gradient-matching.svg)

This is L_GM per class over the 30 steps of a round (FedHPro's Fig. 4).

- With the paper's start from noise and SGD 0.1, L_GM is small before the first step (0.001 to 0.014). It falls by 1
  to 4 per cent of itself. Hyper-prototypes move by 0.8 per cent of their length in 15 rounds.
- In `isoproto` (Adam 0.002, prototype head) it starts at 0.29. It falls by a third in the first round that has
  gradients, and four- to eightfold within each later round. Hyper-prototypes move by 15 per cent; in the earlier
  form, which starts from prototypes, they move by 23.
- Clients' gradients of a class agree with a mean cosine of 0.9 and more from the start where models are averaged,
  and in the frame of the earlier form. Where only heads are averaged, or only directions are common, they start at
  0.0 and 0.6 and come to 0.96 and more as training goes on.

![Distance from central prototypes](figures/central-prototypes.svg)

This is the distance from central prototypes, in their radii (FedHPro's Fig. 2; one architecture, averaged model).
Features are pulled towards the hyper-prototypes, so both kinds come closer. Averaged prototypes are nearer in every
round (0.24 against 0.48 after 15). The paper reports the opposite order, with central prototypes from a model that
was trained centrally. Its data, depth and number of rounds differ too.

"""


def main() -> None:
    """Run what is missing of the stages named, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*")
    parser.add_argument("--data-dir", default="", help="folder with cifar10.npz")
    parser.add_argument("--table", action="store_true", help="only write the tables from the JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["ISOPROTO_HOME"] = home  # of the cells' processes too
        if {"cifar10", "tail", "many"} & set(arguments.stages):
            prepare(Path(arguments.data_dir).expanduser())
        for stage in arguments.stages:
            adopt(stage)
            clients = CLIENTS_OF.get(stage, CLIENTS)
            run_missing(f"flagship-{stage}", stages()[stage], clients=clients, command=command(stage))
    if arguments.table:
        TABLE.write_text(table())
        print(f"wrote {TABLE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
