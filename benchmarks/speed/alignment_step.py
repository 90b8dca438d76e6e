"""Measure how much longer a training step takes with an alignment than with cross-entropy alone.

Reference work: batches of 100 pictures 32x32x3, d = 512, C = 100, the small CNN and ResNet-18, one thread. The
alignments are GCSA and RCSA at both levels, and HPCL + HPAL. The script times whole epochs of the client's training
loop, which includes preparing the batches. The kinds of step take turns, one epoch each, so that all of them see the
same machine. A ratio is computed in every turn; the result is the median of these ratios.

    python benchmarks/speed/alignment_step.py [--turns 9] [--force]
"""

import argparse
import statistics
import time

import torch
from machine import require_idle, write_results
from settings import plain_settings

from client_app.own_model import build_model
from client_app.training import train
from isoproto.data import ClientData
from isoproto.losses import LOSSES
from isoproto.losses.anchors import Anchors
from isoproto.parts.alignment import AlignmentTerm
from isoproto.parts.anchors import AnchorTerm
from isoproto.parts.base import LossTerm
from models import ModelSpec

BATCH, WIDTH, CLASSES, TARGET = 100, 512, 100, 1.05
STEPS = {
    "cnn": 10,
    "cnn4": 5,
    "resnet18": 2,
}  # in an epoch: few, so that turns are short, but enough to exceed the noise of a timer
SETTINGS = plain_settings(BATCH, 0.01)


def make_data(steps: int) -> ClientData:
    """Random pictures of random classes."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (steps * BATCH, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (steps * BATCH,), generator=generator)
    return ClientData(pictures, labels, pictures[:0], labels[:0], tuple(map(str, range(CLASSES))))


def make_kinds() -> dict[str, list[LossTerm]]:
    """Return the loss terms of each kind of step; the first kind is the reference."""
    prototypes = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))
    present = torch.ones(CLASSES, dtype=torch.bool)
    kinds: dict[str, list[LossTerm]] = {"cross-entropy": []}
    for name in ("gcsa", "rcsa"):
        target = LOSSES[name].target(prototypes, present)
        kinds[name] = [AlignmentTerm(loss=LOSSES[name], target=target, present=present, lambda_=1.0, gamma=1.0)]
    anchors = Anchors.of(prototypes / WIDTH**0.5, prototypes, present, margin=0.1, form="normalised")
    kinds["hpcl + hpal"] = [AnchorTerm(anchors=anchors, pcl=1.0, pal=1.0)]
    return kinds


def measure(architecture: str, turns: int) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of a step of each kind, and its ratio to cross-entropy."""
    steps = STEPS[architecture]
    data, kinds = make_data(steps), make_kinds()
    spec = ModelSpec(3, 32, 32, WIDTH, CLASSES)
    models = {kind: build_model(architecture, spec, torch.device("cpu"), seed=0) for kind in kinds}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    names = list(kinds)
    for turn in range(turns + 1):
        for kind in names[turn % len(names) :] + names[: turn % len(names)]:
            generator = torch.Generator().manual_seed(turn)
            began = time.perf_counter()
            train(models[kind], data, SETTINGS, kinds[kind], generator)
            if turn:  # the first turn is the warm-up
                seconds[kind].append((time.perf_counter() - began) / steps)
    reference = seconds["cross-entropy"]
    return {
        kind: {
            "ms": 1e3 * statistics.median(found),
            "ratio": statistics.median(a / b for a, b in zip(found, reference, strict=True)),
        }
        for kind, found in seconds.items()
    }


def main() -> None:
    """Measure and write benchmarks/results/alignment_step.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--force", action="store_true", help="measure on a busy machine; nothing is recorded")
    arguments = parser.parse_args()
    require_idle(arguments.force)
    torch.set_num_threads(1)
    results = {}
    for architecture in arguments.models:
        results[architecture] = measure(architecture, arguments.turns)
        for kind, found in results[architecture].items():
            print(f"{architecture}, {kind}: {found['ms']:.2f} ms, ratio {found['ratio']:.3f}", flush=True)
    if not arguments.force and set(arguments.models) == set(STEPS):
        command = f"python benchmarks/speed/alignment_step.py --turns {arguments.turns}"
        what = {"unit": "ms per step", "batch": BATCH, "width": WIDTH, "classes": CLASSES, "target": TARGET}
        print("wrote", write_results("alignment_step", {"command": command, **what, "models": results}))


if __name__ == "__main__":
    main()
