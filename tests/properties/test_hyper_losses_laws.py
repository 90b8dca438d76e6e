"""Laws of FedHPro's client losses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from isoproto.losses.anchors import Anchors, client_margin, hpal, hpcl

EXACT = 1e-8
FORMS = st.sampled_from(["paper", "paper_mean", "normalised", "normalised_mean"])


@st.composite
def batches(draw):
    """Features, labels, hyper-prototypes [C, K, d], all classes present, and the generator that made them."""
    size, classes, d = draw(st.integers(1, 12)), draw(st.integers(2, 6)), draw(st.integers(1, 16))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    y = torch.randint(0, classes, (size,), generator=g)
    present = torch.ones(classes, dtype=torch.bool)
    return random(g, size, d), y, random(g, classes, draw(st.integers(1, 4)), d), present, g


def random(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def orthogonal(g, d):
    return torch.linalg.qr(random(g, d, d)).Q


def summaries(s):
    return functional.normalize(s, dim=2).mean(1), s.mean(1)


def assert_same(a, b, tolerance=EXACT):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def value_and_gradient(loss, x):
    x = x.clone().requires_grad_()
    value = loss(x)
    return value.detach(), torch.autograd.grad(value, x)[0]


@given(batches(), st.floats(0, 3), st.floats(0.01, 3), st.sampled_from([0.2, 1.0]))
def test_h6_contrast_rises_with_the_margin(drawn, margin, more, temperature):
    x, y, s, present, _ = drawn
    a, _ = summaries(s)
    low, high = (hpcl(x, y, a, present, temperature=temperature, margin=m).item() for m in (margin, margin + more))
    assert 0 <= low < high <= low + more / temperature + EXACT


@given(batches(), st.floats(0, 2))
def test_h6_contrast_ignores_lengths(drawn, margin):
    x, y, s, present, g = drawn
    longer = torch.exp(random(g, len(x), 1)) * x
    stretched = torch.exp(random(g, *s.shape[:2], 1)) * s
    wanted = hpcl(x, y, summaries(s)[0], present, margin=margin)
    assert_same(hpcl(longer, y, summaries(stretched)[0], present, margin=margin), wanted)


@given(batches(), st.floats(0, 2), FORMS)
def test_h6_contrast_turns_features_and_does_not_stretch_them(drawn, margin, form):
    x, y, s, present, _ = drawn
    anchors = Anchors.of(*summaries(s), present, margin=margin, form=form)
    _, contrast = value_and_gradient(lambda x: anchors(x, y)[0], x)
    _, pull = value_and_gradient(lambda x: anchors(x, y)[1], x)
    assert (contrast * x).sum(1).abs().max() < EXACT
    assert form.startswith("paper") or (pull * x).sum(1).abs().max() < EXACT


@given(batches())
def test_h7_the_summaries_say_what_the_hyper_prototypes_say(drawn):
    x, y, s, present, _ = drawn
    cosines = torch.einsum("bd,ckd->bck", functional.normalize(x, dim=1), functional.normalize(s, dim=2)).mean(2)
    wanted = functional.cross_entropy(cosines / 0.05, y)
    assert_same(hpcl(x, y, summaries(s)[0], present), wanted)


@given(batches())
def test_h8_pull_is_bounded_and_ends_at_the_anchor(drawn):
    x, y, s, present, _ = drawn
    _, h = summaries(s)
    value, gradient = value_and_gradient(lambda x: hpal(3 * x, y, h, present), x)
    assert value > 0
    assert (gradient * len(x)).abs().max() <= 3 + EXACT
    for form in ("paper", "normalised"):
        at_goal, gradient = value_and_gradient(lambda x, form=form: hpal(x, y, h, present, form=form), h[y])
        assert abs(at_goal.item()) < EXACT
        assert gradient.abs().max() < EXACT


@given(batches())
def test_normalised_pull_is_one_minus_the_cosine_while_no_coordinate_is_far(drawn):
    x, y, s, present, _ = drawn
    _, h = summaries(s)
    near = h[y] + 0.1 * functional.normalize(x, dim=1) * h[y].norm(dim=1, keepdim=True)
    wanted = (1 - functional.cosine_similarity(near, h[y], eps=1e-300)).mean()
    assert_same(hpal(near, y, h, present, form="normalised"), wanted)


@given(batches(), st.booleans(), st.sampled_from(["literal", "present"]), st.floats(0.1, 10))
def test_h9_margin_ignores_motion_and_grows_with_scale(drawn, all_held, norm, scale):
    _, _, s, present, g = drawn
    _, p = summaries(s)
    present = present if all_held else torch.rand(len(p), generator=g) < 0.7
    moved = scale * p @ orthogonal(g, p.shape[1]) + random(g, p.shape[1])
    order = torch.randperm(len(p), generator=g)
    wanted = scale * client_margin(p, present, norm=norm)
    assert_same(client_margin(moved[order], present[order], norm=norm), wanted)


@given(batches(), FORMS, st.booleans())
def test_training_path_equals_the_definition(drawn, form, additive):
    x, y, s, present, g = drawn
    a, h = summaries(s)
    present = torch.rand(len(a), generator=g) < 0.7
    anchors = Anchors.of(a, h, present, margin=0.3, additive=additive, form=form)
    for term, loss in enumerate(
        (
            lambda x: hpcl(x, y, a, present, margin=0.3, additive=additive),
            lambda x: hpal(x, y, h, present, form=form),
        )
    ):
        got = value_and_gradient(lambda x, term=term: anchors(x, y)[term], x)
        for one, other in zip(got, value_and_gradient(loss, x), strict=True):
            assert_same(one, other, 1e-7)


@pytest.mark.parametrize("form", ["paper", "normalised"])
@given(batches())
def test_renaming_classes_and_shuffling_the_batch_changes_nothing(form, drawn):
    x, y, s, present, g = drawn
    names, order = torch.randperm(len(s), generator=g), torch.randperm(len(x), generator=g)
    renamed = torch.empty_like(s)
    renamed[names] = s
    wanted = Anchors.of(*summaries(s), present, form=form)(x, y)
    assert_same(Anchors.of(*summaries(renamed), present, form=form)(x[order], names[y[order]]), wanted)
