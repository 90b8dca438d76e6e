"""Measure the seconds a server takes for 1,000 replies with 20 classes each and d = 512.

Its work is to average prototypes and gradients, to find the common frame, and to match gradients.

python benchmarks/speed/aggregate.py [--repeats 5] [--force]
"""

import dataclasses
from collections.abc import Callable

import torch
from machine import median_seconds, options, write_results

from isoproto.config import RunConfig
from isoproto.geometry.prototypes import ClassRows, average_prototypes
from isoproto.parts import Sent, ServerState, parts_of
from strategies import STRATEGIES

CLIENTS, CLASSES, HELD, WIDTH, TARGET = 1000, 100, 20, 512, 1.0


def make_replies() -> list[Sent]:
    """Return what the clients send: each holds 20 of 100 classes and uses other coordinates than the others."""
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(CLASSES, WIDTH, generator=generator)
    replies = []
    for _ in range(CLIENTS):
        ids = torch.randperm(CLASSES, generator=generator)[:HELD].sort().values
        counts = torch.randint(1, 100, (HELD,), generator=generator)
        shift = torch.randint(0, WIDTH, (), generator=generator)  # a rotation that costs nothing to make
        rows = true[ids].roll(int(shift), 1) + 0.1 * torch.randn(HELD, WIDTH, generator=generator)
        gradients = 0.01 * torch.randn(HELD, WIDTH, generator=generator)
        replies.append(Sent(ClassRows(ids, rows, counts, int(counts.sum())), 5.0, {"grad": gradients}, {}))
    return replies


def averages(replies: list[Sent]) -> None:
    """Average prototypes and gradients in the coordinates of the clients."""
    average_prototypes([s.means for s in replies], CLASSES, WIDTH)
    rows = [found for s in replies if (found := s.rows("grad")) is not None]
    average_prototypes(rows, CLASSES, WIDTH, weighting="uniform")


def flagship(replies: list[Sent], frame: str) -> Callable[[], object]:
    """Return the server's work in a later round of isoproto_anchors: relations, frame, gradient matching."""
    asked = RunConfig(strategy="isoproto_anchors", frame=frame, feature_dim=WIDTH)
    config = STRATEGIES["isoproto_anchors"].resolve(asked)
    parts = parts_of(config)

    def fold(before: ServerState) -> ServerState:
        after = dataclasses.replace(before, figures={})
        for part in parts:
            after = part.fold(before, after, replies)
        return after

    later = fold(ServerState.start(CLASSES, WIDTH))
    return lambda: fold(later)


def main() -> None:
    """Measure and write benchmarks/results/aggregate.json."""
    arguments = options(__doc__, repeats=5)
    replies = make_replies()
    (figure,) = median_seconds([lambda: averages(replies)], arguments.repeats)
    figures = {"averages": figure}
    for frame in ("gram", "procrustes"):
        (figures[f"isoproto, frame = {frame}"],) = median_seconds([flagship(replies, frame)], arguments.repeats)
    for name, figure in figures.items():
        print(f"{name}: {figure:.3f} s")
    results = {"unit": "s per round", "threads": torch.get_num_threads(), "target": TARGET, "figures": figures}
    if not arguments.force:
        command = f"python benchmarks/speed/aggregate.py --repeats {arguments.repeats}"
        print("wrote", write_results("aggregate", {"command": command, **results}))


if __name__ == "__main__":
    main()
