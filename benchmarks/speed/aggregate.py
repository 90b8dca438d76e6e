"""Seconds to average the replies of 1,000 clients with 20 classes each, d = 512: prototypes, then gradients.

python benchmarks/speed/aggregate.py [--repeats 5] [--force]
"""

import argparse
import statistics
import time

import torch
from machine import require_idle, write_results

from isoproto.prototypes import Contribution, average_prototypes

CLIENTS, CLASSES, HELD, WIDTH, TARGET = 1000, 100, 20, 512, 1.0


def make_replies(seed: int) -> list[Contribution]:
    """What the clients send, each for its own 20 of 100 classes."""
    generator = torch.Generator().manual_seed(seed)
    replies = []
    for _ in range(CLIENTS):
        ids = torch.randperm(CLASSES, generator=generator)[:HELD].sort().values
        counts = torch.randint(1, 100, (HELD,), generator=generator)
        rows = torch.randn(HELD, WIDTH, generator=generator)
        replies.append(Contribution(ids, rows, counts, int(counts.sum())))
    return replies


def main() -> None:
    """Measure and write benchmarks/results/aggregate.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--force", action="store_true", help="measure on a busy machine; nothing is recorded")
    arguments = parser.parse_args()
    require_idle(arguments.force)
    prototypes, gradients = make_replies(0), make_replies(1)
    measured = []
    for _ in range(arguments.repeats + 1):
        began = time.perf_counter()
        average_prototypes(prototypes, CLASSES, WIDTH)
        average_prototypes(gradients, CLASSES, WIDTH, weighting="uniform")
        measured.append(time.perf_counter() - began)
    figure = statistics.median(measured[1:])  # the first one warms up
    print(f"{figure:.3f} s")
    results = {"unit": "s per round", "threads": torch.get_num_threads(), "figure": figure, "target": TARGET}
    if not arguments.force:
        command = f"python benchmarks/speed/aggregate.py --repeats {arguments.repeats}"
        print("wrote", write_results("aggregate", {"command": command, **results}))


if __name__ == "__main__":
    main()
