"""Frames on inputs whose answer is known: copies of one set of points, degenerate spectra, missing classes."""

import pytest
import torch

from isoproto.errors import FrameError, IsoprotoError
from isoproto.geometry import frames
from isoproto.geometry.frames import (
    align,
    average_dissimilarities,
    average_relations,
    centre,
    embed,
    shrink,
    shrink_dissimilarities,
    similarity_map,
)
from isoproto.geometry.prototypes import Contribution, average_prototypes
from isoproto.losses import LOSSES, alignment_terms

gcsa = LOSSES["gcsa"].pair


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
    return Contribution(torch.tensor(ids, dtype=torch.int64), torch.as_tensor(means), counts, int(counts.sum()))


def squares(points):
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()


def wanted_relations(points, seen):
    """Their squared distances, with mean 1 over the pairs seen."""
    distances = squares(points)
    return distances / distances[seen].mean()


def federation(seed, *, clients=20, classes=12, supers=3, width=16, held=6, noise=0.3):
    """True class means, and what clients with a rotation, a scale and a shift of their own send of some of them."""
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
        sent.append(Contribution(ids, (scale * measured @ rotation + shift).float(), counts, int(counts.sum())))
        scatters.append(float(scale**2 * noise**2 * width))
    return means, sent, scatters


# The stand-in for unrelated feature spaces


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


# Relations


def copies(points, classes_of_clients):
    """Clients with turned, scaled and shifted copies of some of the points."""
    d = points.shape[1]
    for k, ids in enumerate(classes_of_clients):
        rotation = torch.linalg.qr(randn(d, d, seed=k)).Q
        yield contribution(ids, (0.5 + k) * points[ids] @ rotation + randn(d, seed=100 + k))


# Scales are tied by pairs of classes that two clients share.
OVERLAPPING = [[0, 1, 2, 3], [2, 3, 4], [0, 3, 4, 5], [0, 1], [3, 5, 6], [6], []]


def test_copies_with_missing_classes_have_the_relations_of_the_original(monkeypatch):
    monkeypatch.setattr(frames, "ALTERNATIONS", 400)
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
    """Squared distances 4, 9, 25 with scatter 6: less 6 (1/3 + 1/2) = 5, 6 (1/3 + 1) = 8, 6 (1/2 + 1) = 9."""
    client = contribution([0, 1, 2], [[0.0], [2.0], [-3.0]], counts=[3, 2, 1])
    got = average_relations([client], [6.0], 3).distances
    torch.testing.assert_close(got[[0, 0, 1], [1, 2, 2]], torch.tensor([0.0, 1, 16]).double() * 3 / 17)
    for options in ({"debias": False}, {"weighting": "uniform"}):
        got = average_relations([client], [6.0], 3, **options).distances
        torch.testing.assert_close(got[[0, 0, 1], [1, 2, 2]], torch.tensor([4.0, 9, 25]).double() * 3 / 38)


def test_pairs_weigh_by_the_harmonic_mean_of_their_counts():
    """Clients of one shape but for one pair: weights 2 / (1/4 + 1/4) = 4 and 12 make it (4 * 4 + 12 * 9) / 16."""
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
    """Each of the classes 0 and 3 has three holders, their pair only one: what it says of the pair changes nothing."""

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
    if average == "dissimilarities":  # a pair alone says nothing of shapes
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
    """Squared distances 2 with weight 2 and 4 with weight 6 between classes 0 and 1."""
    one = contribution([0, 1, 2], [[3.0, 0], [0, 0.1], [0, 0]], [2, 2, 2])
    other = contribution([0, 1], [[0.0, 5], [0, -1]], [6, 6])
    got = average_dissimilarities([one, other], 4)
    assert got.distances[0, 1].item() == pytest.approx(3.5)
    assert got.distances[2].tolist() == pytest.approx([3.5, 3.5, 0, 0])  # no length, no pair: the mean of the rest
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


# Embedding


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
    """Of one to eight classes each, some of which the reference lacks; a batch takes two."""
    monkeypatch.setattr(frames, "_AT_ONCE", 2)
    g = generator()
    reference, present = torch.randn(9, 6, generator=g), torch.arange(9) != 4
    clients = []
    for number in range(20):
        ids = torch.randperm(9, generator=g)[: 1 + number % 8].sort().values
        counts = torch.randint(1, 9, (len(ids),), generator=g)
        clients.append(Contribution(ids, torch.randn(len(ids), 7, generator=g), counts, 50))
    total, weight = torch.zeros(9, 6, dtype=torch.float64), torch.zeros(9, 1, dtype=torch.float64)
    for ids, means, counts, _ in clients:
        known = present[ids]
        if there := similarity_map(means[known], reference[ids[known]], counts[known]):
            total.index_add_(0, ids, counts.unsqueeze(1) * there.forward(means.double()))
            weight.index_add_(0, ids, counts.double().unsqueeze(1))
    wanted = frames._standardised(torch.where(weight > 0, total / weight, 0), weight[:, 0] > 0)
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
    reference = frames._standardised(reference, everyone(4)).float()
    alone, second = contribution([3], randn(1, 6)), contribution([0, 1, 2], randn(3, 6, seed=2))
    rows = randn(4, 6, seed=1)
    # Where the reference has the class, and where it does not: the map is the same, whatever the row of class 3.
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
        similarity_map(sent.means, reference, torch.ones(4))
    with pytest.raises(FrameError, match="embed: class means cannot be decomposed"):
        embed(reference @ reference.T, everyone(4), 6, onto=reference)


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
