"""Inputs for tests of geometry: points, masks of classes, and clients that hold some of the points."""

from __future__ import annotations

import torch

from isoproto.geometry.prototypes import ClassRows


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def mask(*held, size):
    present = torch.zeros(size, dtype=torch.bool)
    present[list(held)] = True
    return present


def everyone(size):
    return torch.ones(size, dtype=torch.bool)


def contribution(ids, means, counts=None):
    counts = torch.full((len(ids),), 10) if counts is None else torch.tensor(counts)
    return ClassRows(torch.tensor(ids, dtype=torch.int64), torch.as_tensor(means), counts, int(counts.sum()))


def squares(points):
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()


def copies(points, classes_of_clients):
    """Make clients with turned, scaled and shifted copies of some of the points."""
    d = points.shape[1]
    for k, ids in enumerate(classes_of_clients):
        rotation = torch.linalg.qr(randn(d, d, seed=k)).Q
        yield contribution(ids, (0.5 + k) * points[ids] @ rotation + randn(d, seed=100 + k))


# Classes of each client. The scales of two clients can be compared by the pairs of classes that both hold.
OVERLAPPING = [[0, 1, 2, 3], [2, 3, 4], [0, 3, 4, 5], [0, 1], [3, 5, 6], [6], []]
