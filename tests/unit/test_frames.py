"""A common frame, from averaged relations to aligned clients."""

import pytest
import torch

from isoproto.geometry.embedding import embed
from isoproto.geometry.prototypes import ClassRows, average_prototypes
from isoproto.geometry.relations import (
    average_relations,
    centre,
    shrink,
)
from isoproto.geometry.similarity import align
from isoproto.losses import LOSSES, alignment_terms
from tests.points import contribution, everyone, generator

gcsa = LOSSES["gcsa"].pair


def federation(seed, *, clients=20, classes=12, supers=3, width=16, held=6, noise=0.3):
    """Make true class means, and clients that send some of them, each client rotated, scaled and shifted."""
    g = generator(seed)

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    means = (2 * random(supers, 1, width) + random(supers, classes // supers, width)).flatten(0, 1)
    sent, scatters = [], []
    for _ in range(clients):
        ids = torch.randperm(classes, generator=g)[:held].sort().values
        rotation, scale, shift = torch.linalg.qr(random(width, width)).Q, torch.exp(0.5 * random(1)), random(width)
        counts = torch.randint(10, 60, (held,), generator=g)
        measured = means[ids] + noise * random(held, width) / counts.sqrt().unsqueeze(1)
        sent.append(ClassRows(ids, (scale * measured @ rotation + shift).float(), counts, int(counts.sum())))
        scatters.append(float(scale**2 * noise**2 * width))
    return means, sent, scatters


@pytest.mark.parametrize("seed", range(5))
def test_frames_recover_the_structure_that_shared_coordinates_lose(seed):
    means, sent, scatters = federation(seed)
    relations = average_relations(sent, scatters, 12)
    gram = centre(relations.distances, relations.present)
    embedding = embed(gram, relations.present, 16).vectors
    first = align(sent, embedding, relations.present, iterations=8)
    later = align(sent, first.vectors, first.present)
    for points in (embedding, first.vectors, later.vectors):
        assert gcsa(points, means) <= 0.05
    kernel, present = LOSSES["gcsa"].relations(gram, relations.present), everyone(12)
    assert alignment_terms(LOSSES["gcsa"], means, torch.arange(12), kernel, present)[1] <= 0.05
    assert gcsa(average_prototypes(sent, 12, 16).vectors, means) >= 0.15


def test_with_all_classes_everywhere_the_frames_hardly_differ():
    means, sent, scatters = federation(0, held=12, clients=5)
    relations = average_relations(sent, scatters, 12)
    assert relations.seen.sum() == 12 * 11
    embedding = embed(centre(relations.distances, relations.present), relations.present, 16).vectors
    assert gcsa(embedding, align(sent, embedding, relations.present, iterations=8).vectors) < 1e-3
    assert gcsa(embedding, means) < 1e-3


@pytest.mark.parametrize("width", [1, 2, 3])
def test_degenerate_prototypes_align(width):
    """Repeated points, points on a line, a client of one class, fewer coordinates than classes."""
    line = torch.arange(5.0).unsqueeze(1).expand(5, width)
    repeated = line[[0, 0, 1, 1, 1]]
    sent = [contribution(range(5), line), contribution(range(5), repeated), contribution([2], line[:1])]
    relations = average_relations(sent, [0.1] * 3, 5)
    gram = shrink(centre(relations.distances, relations.present), 0.5, relations.present)
    embedding = embed(gram, relations.present, width)
    got = align(sent, embedding.vectors, relations.present, iterations=8)
    assert got.vectors.isfinite().all()
    assert got.vectors.square().sum(1).mean().item() == pytest.approx(1, abs=1e-5)
