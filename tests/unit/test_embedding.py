"""Embedding of distances whose points are known, and of degenerate spectra."""

import pytest
import torch

from isoproto.errors import FrameError, IsoprotoError
from isoproto.geometry.embedding import embed
from isoproto.geometry.relations import (
    centre,
    shrink,
)
from tests.points import everyone, mask, randn, squares


@pytest.mark.parametrize("width", [4, 6, 20])
def test_embedding_has_the_distances_it_was_made_of(width):
    points, present = randn(6, 4), mask(0, 1, 2, 4, 5, size=6)
    got = embed(centre(squares(points), present), present, width)
    ratio = (squares(got.vectors.double()) / squares(points))[present][:, present]
    off = ~torch.eye(5, dtype=torch.bool)
    torch.testing.assert_close(ratio[off], ratio[0, 1].expand(20), rtol=1e-5, atol=0)
    assert got.vectors.shape == (6, width)
    assert got.vectors.dtype == torch.float32
    assert not got.vectors[3].any()
    torch.testing.assert_close(got.vectors.mean(0), torch.zeros(width), atol=1e-6, rtol=0)
    assert got.vectors[present].square().sum(1).mean().item() == pytest.approx(1, abs=1e-6)
    assert got.cut == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_fewer_coordinates_than_classes_keep_the_widest_directions(width):
    points = randn(6, 4) * torch.tensor([8.0, 4, 2, 1])
    got = embed(centre(squares(points), everyone(6)), everyone(6), width).vectors.double()
    u, s, _ = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    best = u[:, :width] * s[:width]
    assert got.shape == (6, width)
    torch.testing.assert_close(got @ got.T, best @ best.T * 6 / best.square().sum(), atol=1e-5, rtol=0)


def test_negative_eigenvalues_are_cut_and_reported():
    axes = torch.linalg.qr(torch.cat([torch.ones(4, 1).double(), randn(4, 3)], 1)).Q[:, 1:]
    gram = axes @ torch.diag(torch.tensor([3.0, 1.0, -1.0]).double()) @ axes.T
    got = embed(gram, everyone(4), 5)
    assert got.cut == pytest.approx(0.2)
    wanted = axes[:, :2] @ torch.diag(torch.tensor([3.0, 1.0]).double()) @ axes[:, :2].T
    torch.testing.assert_close((got.vectors @ got.vectors.T).double(), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("width", [3, 5, 30])
def test_embedding_turns_onto_earlier_points(width):
    gram, present = shrink(centre(squares(randn(6, 4)), everyone(6)), 1.0, everyone(6)), everyone(6)  # one eigenvalue
    earlier = embed(gram, present, width).vectors @ torch.linalg.qr(randn(width, width, seed=1)).Q.float()
    if width >= 5:
        again = embed(gram, present, width, onto=3 * earlier).vectors
        torch.testing.assert_close(again, earlier, atol=1e-5, rtol=0)
    else:
        free = embed(gram, present, width).vectors
        turned = embed(gram, present, width, onto=earlier).vectors
        torch.testing.assert_close(turned @ turned.T, free @ free.T, atol=1e-5, rtol=0)
        assert (turned - earlier).norm() <= (free - earlier).norm() + 1e-5


def test_classes_that_earlier_points_lack_keep_their_shape():
    points, few = randn(7, 5), mask(0, 1, 2, size=7)
    distances, present = squares(points), everyone(7)
    earlier = embed(centre(distances, few), few, 16).vectors
    free = embed(centre(distances, present), present, 16).vectors
    turned = embed(centre(distances, present), present, 16, onto=earlier).vectors
    torch.testing.assert_close(turned @ turned.T, free @ free.T, atol=1e-5, rtol=0)
    assert (turned - earlier)[few].norm() < (free - earlier)[few].norm()


@pytest.mark.parametrize("held", [[], [1], [0, 2]])
@pytest.mark.parametrize("width", [1, 2, 8])
def test_embedding_of_few_classes(held, width):
    present = mask(*held, size=3)
    gram = shrink(torch.zeros(3, 3), 0.5, present)
    got = embed(gram, present, width, onto=torch.zeros(3, width))
    assert got.vectors.shape == (3, width)
    assert got.vectors.norm(dim=1).tolist() == pytest.approx([float(c in held and len(held) > 1) for c in range(3)])
    assert got.cut == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_relations_that_are_not_finite_have_no_embedding(value):
    gram = torch.eye(4)
    gram[1, 2] = value
    with pytest.raises(FrameError, match=r"relations of 3 classes have no eigenvalues .*; keep last round's frame"):
        embed(gram, mask(0, 1, 2, size=4), 4)
    assert embed(gram, mask(0, 1, 3, size=4), 4).vectors.isfinite().all()
    assert issubclass(FrameError, IsoprotoError)
