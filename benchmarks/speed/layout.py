"""Measure how much the order of pictures and weights in memory changes the seconds of local training.

On a CPU a client stores the channels last (``FeatureModel.place``); torch's default stores them first. Both layouts do
the same training and one evaluation in turns, on one thread. A ratio is computed in every turn; the result is the
median of these ratios.

    python benchmarks/speed/layout.py [--turns 7] [--force]
"""

import statistics
import time
from typing import Any

import torch
from machine import options, write_results
from settings import plain_settings

from client_app.training import extract, train
from isoproto.data import ClientData
from models import ModelSpec, create_model

CLASSES, WIDTH = 10, 128
# Model, side of a picture in pixels, batch size, samples.
WORK = (
    *((name, 32, 32, 300) for name in ("cnn", "resnet", "mobilenet", "inception")),
    *((name, 32, 10, 300) for name in ("cnn", "resnet", "mobilenet", "inception")),
    ("cnn4", 28, 32, 128),
    ("resnet8", 32, 32, 96),
    ("resnet18", 32, 32, 64),
    ("mobilenet_v2", 64, 32, 32),
    ("googlenet", 64, 16, 32),
)


def measure(name: str, side: int, batch: int, samples: int, turns: int) -> dict[str, float]:
    """Return the median seconds of an epoch and an evaluation in both layouts, and their ratio."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (samples, 3, side, side), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (samples,), generator=generator)
    data = ClientData(pictures, labels, pictures[:0], labels[:0], tuple(map(str, range(CLASSES))))
    settings = plain_settings(batch, 0.01)
    spec, device = ModelSpec(3, side, side, WIDTH, CLASSES), torch.device("cpu")
    models = [create_model(name, spec, seed=0).place(device, rearrange=last) for last in (False, True)]
    seconds: list[list[float]] = [[], []]
    for turn in range(turns + 1):
        for model, found in zip(models, seconds, strict=True):
            began = time.perf_counter()
            train(model, data, settings, [], torch.Generator().manual_seed(turn))
            extract(model, pictures)
            found.append(time.perf_counter() - began)
    plain, placed = (found[1:] for found in seconds)  # the first turn is the warm-up
    return {
        "default": statistics.median(plain),
        "placed": statistics.median(placed),
        "ratio": statistics.median(b / a for a, b in zip(plain, placed, strict=True)),
    }


def main() -> None:
    """Measure and write benchmarks/results/layout.json."""
    arguments = options(__doc__, turns=7)
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for name, side, batch, samples in WORK:
        row = rows[f"{name}, {side}x{side}, B = {batch}"] = measure(name, side, batch, samples, arguments.turns)
        print(f"{name}, {side}x{side}, B = {batch}: {row['default']:.3f} s, {row['placed']:.3f} s, {row['ratio']:.2f}")
    if not arguments.force:
        command = f"python benchmarks/speed/layout.py --turns {arguments.turns}"
        print("wrote", write_results("layout", {"command": command, "unit": "s", "models": rows}))


if __name__ == "__main__":
    main()
