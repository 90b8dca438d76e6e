"""Laws of the alignment losses on random matrices."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoproto.losses import LOSSES, alignment_terms, procrustes_split

STRUCTURAL = ["gcsa", "rcsa"]
NAMES = list(LOSSES)
EXACT = 1e-8
every_loss = pytest.mark.parametrize("name", NAMES)
structural_losses = pytest.mark.parametrize("name", STRUCTURAL)


@st.composite
def matrices(draw, count=2, min_rows=2):
    """``count`` float64 matrices of one shape, with the generator that made them."""
    n, d, seed = draw(st.integers(min_rows, 20)), draw(st.integers(1, 64)), draw(st.integers(0, 2**31))
    g = torch.Generator().manual_seed(seed)
    return *(torch.randn(n, d, generator=g, dtype=torch.float64) for _ in range(count)), g


def random(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def orthogonal(g, d):
    """A random orthogonal matrix, a reflection about half of the time."""
    return torch.linalg.qr(random(g, d, d)).Q


def positive(g, *shape):
    return torch.exp(random(g, *shape))


def loss_and_gradient(name, a, b):
    a = a.clone().requires_grad_()
    value = LOSSES[name].pair(a, b)
    return value.detach(), torch.autograd.grad(value, a)[0]


def assert_same(a, b, tolerance=EXACT):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@every_loss
@given(matrices())
def test_s1_range(name, drawn):
    a, b, _ = drawn
    high = {"gcsa": 1, "rcsa": 1, "cosine": 2, "mse": math.inf}[name]
    assert -EXACT <= LOSSES[name].pair(a, b).item() <= high + EXACT


@every_loss
@given(matrices())
def test_s2_zero_on_itself_and_symmetric(name, drawn):
    a, b, _ = drawn
    assert abs(LOSSES[name].pair(a, a).item()) < EXACT
    assert_same(LOSSES[name].pair(a, b), LOSSES[name].pair(b, a))


@given(matrices())
def test_s3_s4_gcsa_ignores_similarity_maps_of_either_argument(drawn):
    a, b, g = drawn
    moved = positive(g, 1) * a @ orthogonal(g, a.shape[1]) + random(g, a.shape[1])
    pair = LOSSES["gcsa"].pair
    assert abs(pair(a, moved).item()) < EXACT
    assert_same(pair(moved, b), pair(a, b))
    assert_same(pair(b, moved), pair(b, a))


@given(matrices())
def test_s5_rcsa_ignores_rotation_and_the_length_of_each_row(drawn):
    a, b, g = drawn
    moved = positive(g, len(a), 1) * a @ orthogonal(g, a.shape[1])
    pair = LOSSES["rcsa"].pair
    assert abs(pair(a, moved).item()) < EXACT
    assert_same(pair(moved, b), pair(a, b))
    assert_same(pair(b, moved), pair(b, a))


@given(matrices())
def test_s6_cosine_ignores_the_length_of_each_row(drawn):
    a, b, g = drawn
    assert_same(LOSSES["cosine"].pair(positive(g, len(a), 1) * a, b), LOSSES["cosine"].pair(a, b))


def test_s5_s6_what_each_loss_does_notice():
    g = torch.Generator().manual_seed(0)
    a, rotation = random(g, 6, 4), orthogonal(g, 4)
    assert LOSSES["mse"].pair(a, a @ rotation) > 0.1
    assert LOSSES["cosine"].pair(a, a @ rotation) > 0.1
    assert LOSSES["mse"].pair(a, 2 * a) > 0.1
    assert LOSSES["rcsa"].pair(a, a + random(g, 4)) > 0.01
    assert LOSSES["gcsa"].pair(a, positive(g, 6, 1) * a) > 0.01


@every_loss
@given(matrices())
def test_s7_row_order_is_no_matter(name, drawn):
    a, b, g = drawn
    order = torch.randperm(len(a), generator=g)
    value, gradient = loss_and_gradient(name, a, b)
    permuted, permuted_gradient = loss_and_gradient(name, a[order], b[order])
    assert_same(permuted, value)
    assert_same(permuted_gradient, gradient[order])


@structural_losses
@given(matrices(), st.integers(1, 30))
def test_s8_isometric_embeddings_into_more_columns_change_nothing(name, drawn, extra):
    a, b, g = drawn
    d = a.shape[1]
    embedding = orthogonal(g, d + extra)[:d]
    pair = LOSSES[name].pair
    assert_same(pair(torch.nn.functional.pad(a, (0, 1)), b), pair(a, b))
    assert_same(pair(a @ embedding, b), pair(a, b))
    assert_same(pair(a, b @ embedding), pair(a, b))


@given(matrices(min_rows=3))
def test_s9_gcsa_gradients_neither_shift_nor_scale(drawn):
    a, b, _ = drawn
    _, gradient = loss_and_gradient("gcsa", a, b)
    centred = a - a.mean(0)
    assert gradient.sum(0).abs().max() < EXACT
    assert abs((gradient * centred).sum()) < EXACT


@given(matrices(min_rows=3))
def test_s9_rcsa_gradients_are_tangential(drawn):
    a, b, _ = drawn
    _, gradient = loss_and_gradient("rcsa", a, b)
    assert (gradient * a).sum(1).abs().max() < EXACT


@given(matrices(min_rows=3))
def test_s10_gradients_vanish_at_the_optimum(drawn):
    a, _, g = drawn
    rotated = a @ orthogonal(g, a.shape[1])
    for name, b in (
        ("gcsa", positive(g, 1) * rotated + random(g, a.shape[1])),
        ("rcsa", positive(g, len(a), 1) * rotated),
    ):
        assert loss_and_gradient(name, a, b)[1].abs().max() < 1e-7


@given(matrices(min_rows=3))
def test_s11_gradient_norms_are_bounded(drawn):
    a, b, _ = drawn
    for name in STRUCTURAL:
        value, gradient = loss_and_gradient(name, a, b)
        sine = math.sqrt(max(0.0, 1 - (1 - value.item()) ** 2))
        if name == "gcsa":
            centred = a - a.mean(0)
            bound = 2 * sine / (centred @ centred.T).norm().sqrt()
        else:
            length = a.norm(dim=1)
            unit = a / length.unsqueeze(1)
            r = torch.pdist(unit).square()
            bound = 2 * math.sqrt(2) * math.sqrt(len(a)) * sine / (r.norm().clamp(min=1e-12) * length.min())
        assert gradient.norm() <= bound * (1 + 1e-6) + EXACT


@structural_losses
@given(st.integers(1, 20), st.integers(1, 64), st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_s12_no_structure_no_loss(name, n, d, seed, dtype):
    g = torch.Generator().manual_seed(seed)
    b = torch.randn(n, d, generator=g, dtype=dtype)
    two, constant = b[:2], torch.randn(1, d, generator=g, dtype=dtype).expand(n, d)
    for x, other in ((two, b[-2:]), (constant, b), (b, constant)):
        x = x.clone().requires_grad_()
        value = LOSSES[name].pair(x, other)
        assert value.item() == 0
        assert torch.equal(torch.autograd.grad(value, x)[0], torch.zeros_like(x))


@every_loss
@given(st.data())
def test_s13_the_batch_form_equals_direct_evaluation(name, data):
    labels = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=20))
    held = data.draw(st.lists(st.booleans(), min_size=6, max_size=6))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    y, present, d = torch.tensor(labels), torch.tensor(held), data.draw(st.integers(2, 12))
    z, prototypes = random(g, len(y), d), random(g, 6, d)
    loss, valid = LOSSES[name], present[y]
    target = loss.target(torch.where(present.unsqueeze(1), prototypes, math.nan), present)
    proto, inst = alignment_terms(loss, z, y, target, present)
    classes = sorted({label for label in labels if held[label]})
    if classes:
        assert_same(inst, loss.pair(z[valid], prototypes[y[valid]]))
    else:
        assert inst.item() == 0
    if len(classes) > 1:
        means = torch.stack([z[y == c].mean(0) for c in classes])
        assert_same(proto, loss.pair(means, prototypes[classes]))
    else:
        assert proto.item() == 0


@every_loss
@given(st.data())
def test_renaming_classes_and_shuffling_the_batch_changes_nothing(name, data):
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    names, n = torch.randperm(5, generator=g), data.draw(st.integers(2, 20))
    order, y = torch.randperm(n, generator=g), torch.randint(0, 5, (n,), generator=g)
    z, prototypes, present = random(g, n, 6), random(g, 5, 6), torch.rand(5, generator=g) < 0.8
    loss = LOSSES[name]
    renamed, renamed_present = torch.empty_like(prototypes), torch.empty_like(present)
    renamed[names], renamed_present[names] = prototypes, present
    wanted = alignment_terms(loss, z, y, loss.target(prototypes, present), present)
    target = loss.target(renamed, renamed_present)
    got = alignment_terms(loss, z[order], names[y[order]], target, renamed_present)
    assert_same(got, wanted)


@given(matrices(min_rows=3), st.sampled_from([1e-4, 1e-2, 1e2, 1e4]))
def test_s14_the_scale_of_float32_features_is_no_matter(drawn, scale):
    a, b, _ = drawn
    a, b = a.float(), b.float()
    valid = torch.ones(len(a), dtype=torch.bool)
    loss, target = LOSSES["gcsa"], LOSSES["gcsa"].target(b, valid)
    for form in (lambda x: loss.pair(x, b), lambda x: alignment_terms(loss, x, torch.arange(len(x)), target, valid)[1]):
        assert abs(form(scale * a) - form(a)) < 1e-5


@every_loss
@given(matrices(min_rows=3))
def test_s15_a_small_step_down_the_gradient_lowers_the_loss(name, drawn):
    a, b, _ = drawn
    value, gradient = loss_and_gradient(name, a, b)
    slope = gradient.norm()
    if slope > 1e-4:
        # A tenth of a per mille of the shortest row: small for a loss that normalises rows.
        step = 1e-4 * a.norm(dim=1).min() / slope
        assert LOSSES[name].pair(a - step * gradient, b) < value


@given(matrices())
def test_s16_shape_and_rigid_part_add_up(drawn):
    a, b, g = drawn
    shape, rigid = procrustes_split(a, b)
    assert_same(shape + rigid, 2 * len(a) * LOSSES["cosine"].pair(a, b), 1e-7)
    assert shape >= 0
    assert rigid >= 0
    rotation = orthogonal(g, a.shape[1])
    assert_same(procrustes_split(a @ rotation, b)[0], shape, 1e-7)
    assert_same(procrustes_split(a, b @ rotation)[0], shape, 1e-7)
    assert procrustes_split(a, a @ rotation)[0] < 1e-7
    assert procrustes_split(a, a)[1] < 1e-7


def test_s16_a_different_shape_is_seen():
    g = torch.Generator().manual_seed(0)
    a, b = random(g, 6, 4), random(g, 6, 4)
    assert LOSSES["rcsa"].pair(a, b) > 0.01
    assert procrustes_split(a, b)[0] > 0.1
