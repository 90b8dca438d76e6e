"""Measure how many times faster gradient matching is than differentiating twice, class by class.

Work: C = 100 classes, I = 5 hyper-prototypes each, d = 512, M = 30 steps, float64, random head and gradients. The
reference computes the equations of FedHPro (arXiv:2605.13475) in plain torch with the same threads, also in float64,
which is its faster precision here. Both must give the same vectors. The script also measures how the time grows with C,
with SGD and with Adam.

    python benchmarks/speed/server_step.py [--repeats 5] [--force]
"""

import functools
from typing import Any

import torch
from machine import median_seconds, options, write_results
from torch import Tensor
from torch.nn import functional

from isoproto.matching.hyperproto import match_gradients

CLASSES, PER_CLASS, WIDTH, STEPS, TARGET = 100, 5, 512, 30, 50.0
SCALING = (50, 100, 200, 400)


def make_problem(classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return vectors, weight and bias of the head, gradients, and which classes are present."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(classes, PER_CLASS, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5
    gradients = torch.randn(classes, WIDTH, generator=generator, dtype=torch.float64)
    return vectors, weight, torch.zeros(classes).double(), gradients, torch.ones(classes, dtype=torch.bool)


def class_by_class(vectors: Tensor, weight: Tensor, bias: Tensor, gradients: Tensor, present: Tensor) -> Tensor:
    """Compute Eqs. (7) to (9) of FedHPro in the most direct way."""
    moved = []
    for c in range(len(vectors)):
        s, labels = vectors[c].clone().requires_grad_(), torch.full((PER_CLASS,), c)
        optimizer = torch.optim.SGD([s], lr=0.1)
        for _ in range(STEPS):
            loss = functional.cross_entropy(functional.linear(s, weight, bias), labels, reduction="sum")
            (single,) = torch.autograd.grad(loss, s, create_graph=True)
            distance = 1 - functional.cosine_similarity(single.mean(0), gradients[c], dim=0)
            optimizer.zero_grad()
            distance.backward()
            optimizer.step()
        moved.append(s.detach())
    return torch.stack(moved)


def main() -> None:
    """Measure and write benchmarks/results/server_step.json."""
    arguments = options(__doc__, repeats=5)
    problem = make_problem(CLASSES)
    torch.testing.assert_close(match_gradients(*problem, steps=STEPS).vectors, class_by_class(*problem))
    (reference,) = median_seconds([lambda: class_by_class(*problem)], arguments.repeats)
    scaling: dict[str, dict[str, float]] = {}
    for classes in SCALING:
        sized = make_problem(classes)
        steps = {
            optimizer: functools.partial(match_gradients, *sized, steps=STEPS, optimizer=optimizer)
            for optimizer in ("sgd", "adam")
        }
        measured = median_seconds(list(steps.values()), arguments.repeats)
        scaling[f"C = {classes}"] = dict(zip(steps, measured, strict=True))
    figure = scaling[f"C = {CLASSES}"]["sgd"]
    print(f"{figure * 1e3:.1f} ms; class by class {reference:.2f} s, {reference / figure:.0f} times as long")
    for name, found in scaling.items():
        print(name, {key: f"{value * 1e3:.1f} ms" for key, value in found.items()})
    results: dict[str, Any] = {
        "unit": "s per round",
        "threads": torch.get_num_threads(),
        "figure": figure,
        "reference": reference,
        "ratio": reference / figure,
        "target": TARGET,
        "scaling": scaling,
    }
    if not arguments.force:
        command = f"python benchmarks/speed/server_step.py --repeats {arguments.repeats}"
        print("wrote", write_results("server_step", {"command": command, **results}))


if __name__ == "__main__":
    main()
