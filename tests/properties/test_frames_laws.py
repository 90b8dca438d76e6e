"""Laws of similarity maps, relations and embeddings: they do not depend on a client's coordinates."""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from isoproto.geometry.embedding import embed
from isoproto.geometry.prototypes import ClassRows
from isoproto.geometry.relations import average_dissimilarities, average_relations, centre, shrink
from isoproto.geometry.similarity import RANK, align, similarity_map
from isoproto.losses import LOSSES

CLASSES = 6
gcsa = LOSSES["gcsa"].pair
SEEDS = st.integers(0, 2**31)


def random(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def orthogonal(g, d):
    return torch.linalg.qr(random(g, d, d)).Q


def moved(g, x):
    return torch.exp(random(g, 1)) * x @ orthogonal(g, x.shape[1]) + random(g, x.shape[1])


@st.composite
def federations(draw):
    """Draw contributions of clients with different classes, their scatters, and the generator that made them."""
    g, d = torch.Generator().manual_seed(draw(SEEDS)), draw(st.integers(1, 12))
    held = draw(st.lists(st.sets(st.integers(0, CLASSES - 1)), max_size=6))
    sent = []
    for ids in held:
        counts = torch.randint(1, 30, (len(ids),), generator=g)
        sent.append(ClassRows(torch.tensor(sorted(ids)).long(), random(g, len(ids), d), counts, int(counts.sum())))
    return sent, [0.1 * d] * len(sent), d, g


def assert_same(a, b, tolerance=1e-8):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def assume_no_thin_direction(x, weights):
    """A direction with less than RANK of the largest one's energy counts as noise, so the map leaves it out."""
    share = (weights / weights.sum()).double().unsqueeze(1)
    sizes = torch.linalg.svdvals(share.sqrt() * (x.double() - (share * x).sum(0)))[: min(len(x) - 1, x.shape[1])]
    assume(sizes[-1] ** 2 > 10 * RANK * sizes[0] ** 2)


@given(st.integers(2, 12), st.integers(1, 20), SEEDS)
def test_a_similarity_map_finds_the_motion_and_its_way_back(n, d, seed):
    g = torch.Generator().manual_seed(seed)
    a, weights = random(g, n, d), torch.rand(n, generator=g) + 0.1
    assume_no_thin_direction(a, weights)
    b = moved(g, a)
    there = similarity_map(a, b, weights)
    assert_same(there.forward(a), b)
    assert_same(there.backward(b), a)
    assert_same(there.left.T @ there.left, torch.eye(there.left.shape[1], dtype=torch.float64))
    assert_same(there.right @ there.right.T, torch.eye(len(there.right), dtype=torch.float64))


@given(st.integers(3, 10), st.integers(1, 12), st.integers(0, 10), SEEDS)
def test_a_map_keeps_the_shape_of_the_prototypes(n, d, extra, seed):
    """The target has at least as many coordinates: with fewer, the shape could not be kept."""
    g = torch.Generator().manual_seed(seed)
    a, b = random(g, n, d), random(g, n, d + extra)
    assert gcsa(similarity_map(a, b, torch.ones(n)).forward(a), a) < 1e-8


@given(st.integers(2, 10), st.integers(1, 12), SEEDS)
def test_no_motion_of_the_source_comes_closer(n, d, seed):
    g = torch.Generator().manual_seed(seed)
    a, b, weights = random(g, n, d), random(g, n, d), torch.rand(n, generator=g).double() + 0.1

    def distance(x):
        return (weights.unsqueeze(1) * (x - b).square()).sum()

    best = similarity_map(a, b, weights).forward(a)
    for _ in range(5):
        assert distance(best) <= distance(moved(g, a)) + 1e-9
        assert distance(best) <= distance(best + 0.01 * random(g, d)) + 1e-9


@given(federations())
def test_the_motions_of_clients_change_no_relation(drawn):
    sent, scatters, _, g = drawn
    own, own_scatters = [], []
    for client, scatter in zip(sent, scatters, strict=True):
        scale = torch.exp(random(g, 1))
        turned = scale * client.rows @ orthogonal(g, client.rows.shape[1]) + random(g, client.rows.shape[1])
        own.append(client._replace(rows=turned))
        own_scatters.append(scatter * float(scale**2))
    wanted = average_relations(sent, scatters, CLASSES)
    assert_same(average_relations(own, own_scatters, CLASSES).distances, wanted.distances, 1e-6)


@given(federations())
def test_relations_are_distances_of_mean_one(drawn):
    sent, scatters, _, _ = drawn
    got = average_relations(sent, scatters, CLASSES)
    assert torch.equal(got.distances, got.distances.T)
    assert (got.distances >= 0).all()
    assert got.distances.isfinite().all()
    assert not got.distances.diagonal().any()
    others = got.present.unsqueeze(1) & got.present & ~torch.eye(CLASSES, dtype=torch.bool)
    if others.any():
        assert_same(got.distances[others].mean(), torch.tensor(1.0).double())
    assert not got.distances[~others].any()


@given(federations(), st.integers(1, 12))
def test_the_order_of_clients_is_no_matter_and_a_fixed_order_gives_the_same_bits(drawn, width):
    sent, scatters, _, g = drawn
    order = torch.randperm(len(sent), generator=g).tolist()
    shuffled, shuffled_scatters = [sent[i] for i in order], [scatters[i] for i in order]
    reference, present = random(g, CLASSES, width).float(), torch.rand(CLASSES, generator=g) < 0.8
    for average in (
        lambda c, v: average_relations(c, v, CLASSES).distances,
        lambda c, _: average_dissimilarities(c, CLASSES).distances,
        lambda c, _: align(c, reference, present).vectors,
    ):
        wanted = average(sent, scatters)
        assert torch.equal(average(sent, scatters), wanted)
        assert_same(average(shuffled, shuffled_scatters), wanted, 1e-5 if wanted.dtype == torch.float32 else 1e-9)


@given(federations(), st.integers(1, 12), st.floats(0, 1))
def test_every_federation_has_a_frame(drawn, width, beta):
    sent, scatters, _, _ = drawn
    relations = average_relations(sent, scatters, CLASSES)
    gram = shrink(centre(relations.distances, relations.present), beta, relations.present)
    embedding = embed(gram, relations.present, width)
    assert 0 <= embedding.cut <= 1
    aligned = align(sent, embedding.vectors, relations.present, iterations=8)
    assert torch.equal(aligned.present, relations.present)
    for points in (embedding.vectors, aligned.vectors):
        assert points.isfinite().all()
        assert not points[~relations.present].any()
        assert_same(points.sum(0), torch.zeros(width), 1e-4)
        if relations.present.sum() > 1:
            assert_same(points[relations.present].square().sum(1).mean(), torch.tensor(1.0), 1e-4)


@given(st.integers(3, 10), st.integers(1, 12), SEEDS)
def test_embedding_points_gives_their_shape(n, d, seed):
    g = torch.Generator().manual_seed(seed)
    points, present = random(g, n, d), torch.ones(n, dtype=torch.bool)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    onto = random(g, n, d + 3).float()
    got = embed(centre(distances, present), present, d + 3, onto=onto)
    assert gcsa(got.vectors.double(), points) < 1e-6
    assert got.cut < 1e-9
    turned = got.vectors @ orthogonal(g, d + 3).float()
    assert (got.vectors - onto).norm() <= (turned - onto).norm() + 1e-4


@given(st.integers(3, 8), st.integers(4, 12), SEEDS, st.integers(1, 5))
def test_copies_align_exactly(n, d, seed, clients):
    g = torch.Generator().manual_seed(seed)
    points, present = random(g, n, d), torch.ones(n, dtype=torch.bool)
    reference = points - points.mean(0)
    reference = (reference / reference.square().sum(1).mean().sqrt()).float()
    counts = torch.randint(1, 9, (n,), generator=g)
    sent = [ClassRows(torch.arange(n), moved(g, points), counts, int(counts.sum())) for _ in range(clients)]
    assert_same(align(sent, reference, present).vectors, reference, 1e-5)
