"""Relations averaged over clients that hold turned and scaled copies of some of the points."""

import pytest
import torch

from isoproto.geometry import relations as relations_module
from isoproto.geometry.relations import (
    average_dissimilarities,
    average_relations,
    centre,
    shrink,
    shrink_dissimilarities,
)
from isoproto.losses import LOSSES
from tests.points import OVERLAPPING, contribution, copies, everyone, generator, mask, randn, squares


def wanted_relations(points, seen):
    """Return the squared distances between points, with mean 1 over the pairs seen."""
    distances = squares(points)
    return distances / distances[seen].mean()


def test_copies_with_missing_classes_have_the_relations_of_the_original(monkeypatch):
    monkeypatch.setattr(relations_module, "ALTERNATIONS", 400)
    points = randn(8, 5)
    got = average_relations(list(copies(points, OVERLAPPING)), [0.0] * 7, 8)
    assert got.present.tolist() == [True] * 7 + [False]
    held = {(i, j) for ids in OVERLAPPING for i in ids for j in ids if i != j}
    assert {tuple(pair) for pair in got.seen.nonzero().tolist()} == held
    torch.testing.assert_close(got.distances[got.seen], wanted_relations(points, got.seen)[got.seen])


def test_eight_alternations_are_enough():
    points = randn(12, 16)
    ids = [torch.randperm(12, generator=generator(k))[:6].sort().values.tolist() for k in range(20)]
    got = average_relations(list(copies(points, ids)), [0.0] * 20, 12)
    error = (got.distances - wanted_relations(points, got.seen))[got.seen]
    assert error.abs().max() < 0.01


def test_pairs_never_seen_have_the_mean_and_absent_classes_nothing():
    got = average_relations([contribution([0, 1, 3], [[0.0], [1.0], [3.0]]), contribution([4], [[1.0]])], [0, 0], 6)
    torch.testing.assert_close(got.distances[[0, 0, 1], [1, 3, 3]], torch.tensor([1.0, 9, 4]).double() * 3 / 14)
    assert (got.distances[4, [0, 1, 3]] == 1).all()
    assert not got.distances[[2, 5]].any()
    assert not got.distances.diagonal().any()
    assert torch.equal(got.distances, got.distances.T)
    assert got.present.tolist() == [True, True, False, True, True, False]
    assert got.seen.sum() == 6


@pytest.mark.parametrize(
    "sent",
    [
        [contribution([0], [[1.0]]), contribution([2], [[5.0]])],
        [contribution([0, 2], [[1.0], [1.0]])],
        [contribution([0, 2], [[1.0], [4.0]])],
    ],
    ids=["no client with two classes", "both at one point", "a single pair"],
)
def test_without_shapes_the_classes_form_a_simplex(sent):
    got = average_relations(sent, [0.0] * len(sent), 3)
    assert got.distances.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_nobody_sent_anything():
    got = average_relations([], [], 3)
    assert not got.distances.any()
    assert not got.present.any()
    assert not shrink(centre(got.distances, got.present), 0.5, got.present).any()


def test_noise_is_subtracted_by_the_counts():
    """From the squared distances 4, 9, 25 with scatter 6 go 6 (1/3 + 1/2) = 5, 6 (1/3 + 1) = 8, 6 (1/2 + 1) = 9."""
    client = contribution([0, 1, 2], [[0.0], [2.0], [-3.0]], counts=[3, 2, 1])
    got = average_relations([client], [6.0], 3).distances
    torch.testing.assert_close(got[[0, 0, 1], [1, 2, 2]], torch.tensor([0.0, 1, 16]).double() * 3 / 17)
    for options in ({"debias": False}, {"weighting": "uniform"}):
        got = average_relations([client], [6.0], 3, **options).distances
        torch.testing.assert_close(got[[0, 0, 1], [1, 2, 2]], torch.tensor([4.0, 9, 25]).double() * 3 / 38)


def test_pairs_weigh_by_the_harmonic_mean_of_their_counts():
    """Two clients differ in one pair only. Weights 2 / (1/4 + 1/4) = 4 and 12 give it (4 * 4 + 12 * 9) / 16."""
    base = [[0.0, 0], [100, 0], [0, 100]]
    one, other = (
        contribution([0, 1, 2, 3], [*base, [0, 2]], [4] * 4),
        contribution([0, 1, 2, 3], [*base, [0, 3]], [12] * 4),
    )
    for weighting, wanted in (("counts", 7.75), ("uniform", 6.5)):
        got = average_relations([one, other], [0, 0], 4, weighting=weighting).distances
        assert (got[0, 3] / got[0, 1]).item() == pytest.approx(wanted / 1e4, rel=1e-3)


def test_a_client_whose_distances_are_all_noise_is_left_out():
    clear, noisy = contribution([0, 1, 2], [[0.0], [1.0], [3.0]]), contribution([0, 1, 3], [[0.0], [1.0], [2.0]])
    got = average_relations([clear, noisy], [0.0, 1e6], 4)
    wanted = average_relations([clear], [0.0], 4)
    assert torch.equal(got.distances[:3, :3], wanted.distances[:3, :3])
    assert torch.equal(got.seen, wanted.seen)
    assert got.present[3]


def test_last_rounds_values_stay_where_nothing_was_seen():
    points = randn(5, 3)
    before = average_relations([contribution([0, 1, 2, 3], points[:4])], [0.0], 5)
    turned = 7 * points[[1, 2, 4]] @ torch.linalg.qr(randn(3, 3, seed=1)).Q
    now = average_relations([contribution([1, 2, 4], turned)], [0.0], 5, previous=before)
    assert now.present.all()
    assert (~now.seen).nonzero().tolist() == [[0, 0], [0, 4], [1, 1], [2, 2], [3, 3], [3, 4], [4, 0], [4, 3], [4, 4]]
    torch.testing.assert_close(now.distances[now.seen], wanted_relations(points, now.seen)[now.seen])
    assert now.distances[0, 4] == 1


@pytest.mark.parametrize("sent", [[], [contribution([0, 1], [[0.0], [9.0]])], [contribution([2], [[1.0]])]])
def test_a_round_without_shapes_changes_no_relation(sent):
    before = average_relations([contribution([0, 1, 2], [[0.0], [1.0], [3.0]])], [0.0], 4)
    now = average_relations(sent, [0.0] * len(sent), 4, previous=before)
    torch.testing.assert_close(now, before)


@pytest.mark.parametrize("average", ["relations", "dissimilarities"])
def test_a_pair_that_too_few_hold_together_is_not_seen(average):
    """Classes 0 and 3 have three holders each, but only one client holds both. Its distance must change nothing."""

    def averaged(moved, minimum):
        sent = [
            contribution([0, 1, 2], randn(3, 4)),
            contribution([0, 1, 2], randn(3, 4, seed=1)),
            contribution([1, 2, 3], randn(3, 4, seed=2)),
            contribution([1, 2, 3], randn(3, 4, seed=3)),
            contribution([0, 3], moved * randn(2, 4, seed=4)),
        ]
        if average == "relations":
            return average_relations(sent, [0.0] * 5, 4, minimum=minimum)
        return average_dissimilarities(sent, 4, minimum=minimum)

    turned = torch.tensor([[1.0], [-1.0]])
    one, other = averaged(1.0, 2), averaged(turned, 2)
    assert torch.equal(one.distances, other.distances)
    assert not one.seen[0, 3]
    assert one.seen.sum() == 2 * 5
    assert one.present.all()
    assert averaged(1.0, 1).seen.sum() == 2 * 6
    if average == "dissimilarities":  # without a scale to fit, a single pair counts
        assert not torch.equal(averaged(1.0, 1).distances, averaged(turned, 1).distances)


def test_a_thin_pair_keeps_its_last_value():
    sent = [contribution([0, 1, 2], randn(3, 4, seed=i)) for i in range(2)]
    before = average_relations(sent, [0.0] * 2, 3, minimum=2)
    after = average_relations([sent[0]], [0.0], 3, minimum=2, previous=before)
    torch.testing.assert_close(after.distances, before.distances)
    assert torch.equal(after.seen, before.seen)


def test_one_scatter_for_each_client():
    with pytest.raises(ValueError, match=r"one scatter for each of the 1 contributions, got 2; send 0.0"):
        average_relations([contribution([0, 1], [[0.0], [1.0]])], [0.0, 0.0], 2)


def test_dissimilarities_are_those_of_rcsa():
    points = randn(5, 4)
    got = average_dissimilarities([contribution([0, 1, 2, 3, 4], points)], 5)
    torch.testing.assert_close(got.distances, LOSSES["rcsa"].target(points, everyone(5)))
    assert got.seen.sum() == 20


def test_dissimilarities_average_over_holders_without_lengths():
    """Classes 0 and 1 have the squared distances 2 with weight 2, and 4 with weight 6."""
    one = contribution([0, 1, 2], [[3.0, 0], [0, 0.1], [0, 0]], [2, 2, 2])
    other = contribution([0, 1], [[0.0, 5], [0, -1]], [6, 6])
    got = average_dissimilarities([one, other], 4)
    assert got.distances[0, 1].item() == pytest.approx(3.5)
    assert got.distances[2].tolist() == pytest.approx(
        [3.5, 3.5, 0, 0]
    )  # class 2 has no length and so no pair: the mean of the other pairs
    assert got.present.tolist() == [True, True, True, False]
    kept = average_dissimilarities([], 4, previous=got)
    torch.testing.assert_close(kept, got)
    uniform = average_dissimilarities([one, other], 4, weighting="uniform")
    assert uniform.distances[0, 1].item() == pytest.approx(3)


# Gram matrices


def test_centre_gives_the_gram_matrix_of_centred_points_and_reads_no_absent_row():
    points, present = randn(5, 3), mask(0, 1, 3, size=5)
    distances = squares(points)
    distances[2] = distances[:, 4] = torch.nan
    centred = torch.where(present.unsqueeze(1), points - points[present].mean(0), 0)
    torch.testing.assert_close(centre(distances, present), centred @ centred.T)


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_shrink_mixes_matrices_of_trace_one(beta):
    points, present = randn(5, 3), mask(0, 1, 2, 4, size=5)
    gram = centre(squares(points), present)
    got = shrink(gram, beta, present)
    simplex = centre(2.0 * (1 - torch.eye(5)), present) / 3
    torch.testing.assert_close(got, (1 - beta) * gram / gram.trace() + beta * simplex)
    assert got.trace().item() == pytest.approx(1)


def test_relations_without_spread_shrink_to_the_simplex():
    present = everyone(3)
    torch.testing.assert_close(shrink(torch.zeros(3, 3), 0.0, present), shrink(torch.eye(3), 1.0, present))


def test_shrunk_dissimilarities_keep_their_mean():
    distances, present = squares(randn(4, 3)), mask(0, 1, 3, size=4)
    pairs = present.unsqueeze(1) & present & ~torch.eye(4, dtype=torch.bool)
    constant = shrink_dissimilarities(distances, 1.0, present)
    torch.testing.assert_close(constant[pairs], distances[pairs].mean().expand(6))
    assert not constant[~pairs].any()
    torch.testing.assert_close(shrink_dissimilarities(distances, 0.0, present)[pairs], distances[pairs])
