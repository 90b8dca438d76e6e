"""Maps between copies of one set of points, and clients aligned with them."""

import pytest
import torch

from isoproto.errors import FrameError
from isoproto.geometry import similarity
from isoproto.geometry.embedding import embed
from isoproto.geometry.numerics import standardised
from isoproto.geometry.prototypes import ClassRows
from isoproto.geometry.relations import (
    centre,
)
from isoproto.geometry.similarity import align, similarity_map
from isoproto.losses import LOSSES
from tests.points import OVERLAPPING, contribution, copies, everyone, generator, mask, randn, squares

gcsa = LOSSES["gcsa"].pair


# Similarity maps


@pytest.mark.parametrize(("n", "d"), [(2, 5), (4, 3), (6, 40), (12, 12), (3, 1)])
def test_a_known_motion_is_found(n, d):
    a, rotation = randn(n, d), torch.linalg.qr(randn(d, d, seed=1)).Q
    rotation[:, 0] *= -torch.linalg.det(rotation).sign()  # a reflection
    b = 3.5 * a @ rotation + randn(d, seed=2)
    there = similarity_map(a, b, torch.arange(1, n + 1))
    torch.testing.assert_close(there.forward(a), b)
    torch.testing.assert_close(there.backward(b), a)
    assert there.scale == pytest.approx(3.5)
    assert there.left.shape[1] == min(n - 1, d)


def test_the_map_works_in_the_precision_of_its_argument_on_any_shape():
    a, b = randn(4, 3), randn(4, 5, seed=1)
    there = similarity_map(a, b, torch.ones(4))
    x = randn(2, 7, 3, seed=2)
    assert there.forward(x).shape == (2, 7, 5)
    assert there.forward(x.float()).dtype == torch.float32
    torch.testing.assert_close(there.forward(x.float()), there.forward(x).float(), rtol=1e-4, atol=1e-5)
    assert there.backward(there.forward(x)).shape == x.shape


def test_weights_say_which_rows_matter():
    a, b = randn(5, 4), randn(5, 4, seed=1)
    b[:4] = 2 * a[:4] + 1
    there = similarity_map(a, b, torch.tensor([1.0, 1, 1, 1, 0]))
    torch.testing.assert_close(there.forward(a[:4]), b[:4])
    same = similarity_map(a, b, torch.tensor([5.0, 5, 5, 5, 0]))
    torch.testing.assert_close(same.forward(a), there.forward(a))


def test_what_lies_outside_the_rows_is_dropped():
    a = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    there = similarity_map(a, 2 * a, torch.ones(3))
    torch.testing.assert_close(there.forward(torch.tensor([1.0, 1.0, 9.0])), torch.tensor([2.0, 2.0, 0.0]))


FLIPPED = torch.tensor([[1.0], [-1.0], [0.0], [0.0]])


@pytest.mark.parametrize(
    ("a", "b", "weights"),
    [
        (torch.ones(0, 3), torch.ones(0, 3), torch.ones(0)),
        (torch.ones(1, 3), torch.ones(1, 3), torch.ones(1)),
        (torch.full((4, 3), 0.1), randn(4, 3), torch.ones(4)),
        (randn(4, 3), torch.full((4, 3), 0.1), torch.ones(4)),
        (torch.zeros(4, 3), randn(4, 3), torch.ones(4)),
        (randn(4, 3), randn(4, 3), torch.tensor([0.0, 0, 3, 0])),
        (FLIPPED, FLIPPED.flip(0), torch.ones(4)),
    ],
    ids=["no row", "one row", "one point", "onto one point", "zeros", "one weight", "nothing in common"],
)
def test_there_is_no_map(a, b, weights):
    assert similarity_map(a, b, weights) is None


# Alignment


def test_copies_align_to_the_shape_of_the_original():
    points = randn(7, 5)
    present = everyone(7)
    clients = [c for c in copies(points, OVERLAPPING) if len(c.class_ids) > 2]
    reference = embed(centre(squares(points), present), present, 9).vectors
    got = align(clients, reference, present, iterations=3)
    torch.testing.assert_close(got.vectors, reference, atol=1e-5, rtol=0)
    assert got.vectors.dtype == torch.float32
    assert got.present.all()


def test_classes_without_an_aligned_client_keep_their_row():
    reference = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1], [torch.nan, torch.nan]])
    present = mask(0, 1, 2, 3, size=5)
    lonely = contribution([3], [[50.0, 50.0]])
    got = align([contribution([0, 1], [[7.0, 0], [7.0, 4]]), lonely], reference, present)
    torch.testing.assert_close(got.vectors, torch.where(present.unsqueeze(1), reference, 0))
    assert torch.equal(got.present, present)


def test_a_class_that_comes_later_is_placed_by_those_who_know_others():
    points = torch.tensor([[1.0, 1], [-1, 1], [-1, -1], [1, -2]])
    reference = torch.where(mask(0, 1, 2, size=4).unsqueeze(1), points, 0)
    client = contribution([0, 1, 2, 3], 5 * points @ torch.tensor([[0.0, 1], [1, 0]]) + 3)
    got = align([client], reference, mask(0, 1, 2, size=4))
    centred = points - points.mean(0)
    torch.testing.assert_close(got.vectors, centred / centred.square().sum(1).mean().sqrt(), atol=1e-6, rtol=0)
    assert got.present.all()


def test_aligning_many_clients_at_once_is_aligning_each(monkeypatch):
    """Clients hold one to eight classes. The reference lacks some of them. A batch takes two clients."""
    monkeypatch.setattr(similarity, "_AT_ONCE", 2)
    g = generator()
    reference, present = torch.randn(9, 6, generator=g), torch.arange(9) != 4
    clients = []
    for number in range(20):
        ids = torch.randperm(9, generator=g)[: 1 + number % 8].sort().values
        counts = torch.randint(1, 9, (len(ids),), generator=g)
        clients.append(ClassRows(ids, torch.randn(len(ids), 7, generator=g), counts, 50))
    total, weight = torch.zeros(9, 6, dtype=torch.float64), torch.zeros(9, 1, dtype=torch.float64)
    for ids, means, counts, _ in clients:
        known = present[ids]
        if there := similarity_map(means[known], reference[ids[known]], counts[known]):
            total.index_add_(0, ids, counts.unsqueeze(1) * there.forward(means.double()))
            weight.index_add_(0, ids, counts.double().unsqueeze(1))
    wanted = standardised(torch.where(weight > 0, total / weight, 0), weight[:, 0] > 0)
    got = align(clients, reference, present, iterations=1)
    torch.testing.assert_close(got.vectors, wanted.float())
    assert got.present.all()


def test_clients_count_by_their_samples():
    reference = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    other = torch.tensor([[1.0, 0], [-1, 0], [0, 2], [0, -2]])
    few, many = (
        align([contribution(range(4), reference, [n] * 4), contribution(range(4), other)], reference, everyone(4))
        for n in (1, 10_000)
    )
    assert gcsa(few.vectors, other) < gcsa(few.vectors, reference)
    assert gcsa(many.vectors, reference) < 1e-4 < gcsa(many.vectors, other)


@pytest.mark.parametrize("sent", [[], [contribution([1], [[1.0, 2.0]])], [contribution([0, 1], [[1.0, 2.0]] * 2)]])
def test_nobody_to_align(sent):
    reference = torch.tensor([[1.0, 0], [-1, 0], [0, 0]])
    got = align(sent, reference, mask(0, 1, size=3))
    torch.testing.assert_close(got.vectors, reference)
    empty = align(sent, torch.zeros(3, 2), mask(size=3))
    assert not empty.vectors.any()
    assert not empty.present.any()


def test_a_class_with_too_few_aligned_clients_keeps_its_row():
    """Two clients send class 3, but one of them holds nothing else and so has no map."""
    reference = torch.randn(4, 6, generator=generator(7))
    reference = standardised(reference, everyone(4)).float()
    alone, second = contribution([3], randn(1, 6)), contribution([0, 1, 2], randn(3, 6, seed=2))
    rows = randn(4, 6, seed=1)
    # The map is the same whether or not the reference has class 3, and whatever its row is.
    for known in (everyone(4), mask(0, 1, 2, size=4)):
        first = contribution(range(4), rows)
        got = align([first, second, alone], reference, known, iterations=1, minimum=2)
        assert torch.equal(got.present, known)
        assert got.vectors[3].any() == known[3]
    moved = contribution(range(4), rows + 9 * torch.eye(4, 6)[[3]] * torch.tensor([[0], [0], [0], [1]]))
    assert torch.equal(got.vectors, align([moved, second, alone], reference, known, iterations=1, minimum=2).vectors)


def test_what_cannot_be_decomposed_is_a_frame_error(monkeypatch):
    def fails(*_, **__):
        raise torch.linalg.LinAlgError("no convergence")

    reference = torch.randn(4, 6, generator=generator(7))
    sent = contribution(range(4), randn(4, 6))
    monkeypatch.setattr(torch.linalg, "svd", fails)
    with pytest.raises(FrameError, match=r"align: class means cannot be decomposed \(no convergence\)"):
        align([sent], reference, everyone(4))
    with pytest.raises(FrameError, match="similarity_map: class means cannot be decomposed"):
        similarity_map(sent.rows, reference, torch.ones(4))
    with pytest.raises(FrameError, match="embed: class means cannot be decomposed"):
        embed(reference @ reference.T, everyone(4), 6, onto=reference)
