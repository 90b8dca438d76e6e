"""Laws of gradient matching and of feature gradients on random problems."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoproto.geometry.class_sums import ClassSums
from isoproto.matching.feature_gradients import cross_entropy_residuals, head_gradients, linear_gradients
from isoproto.matching.hyperproto import DISTANCES, match_gradients, match_gradients_autograd

CLOSE = {"rtol": 1e-7, "atol": 1e-9}
optimizers = pytest.mark.parametrize("optimizer", ["sgd", "adam"])


def random(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


@st.composite
def problems(draw, min_classes=2):
    """Vectors, weight, bias, gradients and presence, with the generator that made them."""
    classes, per_class = draw(st.integers(min_classes, 8)), draw(st.integers(1, 4))
    width, g = draw(st.integers(1, 12)), torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    present = torch.rand(classes, generator=g) < 0.8
    vectors, weight = random(g, classes, per_class, width), random(g, classes, width)
    return (vectors, weight, random(g, classes), random(g, classes, width), present), g


def matched(problem, **options):
    return match_gradients(*problem, **{"steps": 5, **options})


def produced(vectors, weight, bias):
    """Eq. (7) as a matrix product."""
    labels = torch.arange(len(vectors)).unsqueeze(1).expand(vectors.shape[:2])
    return cross_entropy_residuals(vectors @ weight.T + bias, labels).mean(1) @ weight


@optimizers
@given(problems())
def test_h1_range(optimizer, drawn):
    problem, _ = drawn
    matching = matched(problem, optimizer=optimizer)
    for loss in (matching.before, matching.after):
        assert ((loss >= 0) & (loss <= 2)).all()
    assert torch.equal(matching.used, problem[-1])


@optimizers
@given(problems())
def test_h1_the_length_of_a_gradient_is_no_matter(optimizer, drawn):
    (vectors, weight, bias, gradients, present), g = drawn
    wanted = matched((vectors, weight, bias, gradients, present), optimizer=optimizer)
    scaled = torch.exp(3 * random(g, len(gradients), 1)) * gradients
    got = matched((vectors, weight, bias, scaled, present), optimizer=optimizer)
    torch.testing.assert_close(got.losses, wanted.losses, **CLOSE)
    torch.testing.assert_close(got.vectors, wanted.vectors, **CLOSE)


@given(problems())
def test_h1_no_loss_where_the_gradients_agree_and_two_where_they_oppose(drawn):
    (vectors, weight, bias, gradients, present), _ = drawn
    agreeing = produced(vectors, weight, bias)
    matching = matched((vectors, weight, bias, 3 * agreeing, present))
    assert matching.losses.max() < 1e-12
    torch.testing.assert_close(matching.vectors, vectors, atol=1e-6, rtol=0)
    assert matched((vectors, weight, bias, -agreeing, present)).before[present].sub(2).abs().le(1e-12).all()
    flipped = matched((vectors, weight, bias, -gradients, present)).before
    straight = matched((vectors, weight, bias, gradients, present)).before
    torch.testing.assert_close(flipped[present], 2 - straight[present])


@optimizers
@pytest.mark.parametrize("distance", DISTANCES)
@settings(max_examples=20)
@given(problems())
def test_h2_the_closed_form_is_the_derivative(distance, optimizer, drawn):
    (vectors, weight, bias, gradients, present), _ = drawn
    options = {"optimizer": optimizer, "distance": distance, "steps": 2, "learning_rate": 1e-3}
    got = match_gradients(vectors, weight, bias, gradients, present, **options)
    wanted = match_gradients_autograd(vectors, lambda z: z @ weight.T + bias, gradients, present, **options)
    torch.testing.assert_close(got.losses, wanted.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.vectors, wanted.vectors, rtol=1e-5, atol=1e-6)


@given(problems())
def test_h2_updates_are_orthogonal_to_what_the_head_does_not_see(drawn):
    (vectors, weight, *rest), _ = drawn
    moved = matched((vectors, weight, *rest), steps=30).vectors - vectors
    _, values, directions = torch.linalg.svd(weight)
    unseen = directions[(values > 1e-12).sum() :]
    assert (moved @ unseen.T).abs().sum() < 1e-9 * (1 + moved.abs().max())


@optimizers
@given(problems(), st.data())
def test_h3_a_class_moves_by_its_own_gradient_only(optimizer, drawn, data):
    (vectors, weight, bias, gradients, present), g = drawn
    c = data.draw(st.integers(0, len(gradients) - 1))
    wanted = matched((vectors, weight, bias, gradients, present), optimizer=optimizer)
    assert torch.equal(wanted.vectors[~present], vectors[~present])
    other, others = gradients.clone(), torch.arange(len(gradients)) != c
    other[c] = random(g, gradients.shape[1])
    got = matched((vectors, weight, bias, other, present), optimizer=optimizer)
    torch.testing.assert_close(got.vectors[others], wanted.vectors[others], **CLOSE)
    without = present & others
    got = matched((vectors, weight, bias, gradients, without), optimizer=optimizer)
    torch.testing.assert_close(got.vectors[others], wanted.vectors[others], **CLOSE)
    assert torch.equal(got.vectors[c], vectors[c])


@given(problems())
def test_h4_a_small_step_lowers_the_loss(drawn):
    problem, _ = drawn
    matching = matched(problem, steps=1, learning_rate=1e-4)
    assert matching.losses[1] <= matching.losses[0] + 1e-12
    slope = (matching.vectors - problem[0]).norm() / 1e-4
    if 1e-3 < slope < 10:  # a long slope means a short gradient, whose direction changes within the step
        assert matching.losses[1] < matching.losses[0]


@optimizers
@given(problems())
def test_names_of_classes_and_order_of_hyper_prototypes_are_no_matter(optimizer, drawn):
    (vectors, weight, bias, gradients, present), g = drawn
    wanted = matched((vectors, weight, bias, gradients, present), optimizer=optimizer)
    names = torch.randperm(len(vectors), generator=g)
    order = torch.randperm(vectors.shape[1], generator=g)
    renamed = [x[names] for x in (vectors[:, order], weight, bias, gradients, present)]
    got = matched(renamed, optimizer=optimizer)
    torch.testing.assert_close(got.losses, wanted.losses, **CLOSE)
    torch.testing.assert_close(got.after, wanted.after[names], **CLOSE)
    # Adam divides by the size of a gradient. Where it is nearly zero, hardly any digits are left.
    close = {"rtol": 1e-5, "atol": 1e-6} if optimizer == "adam" else CLOSE
    torch.testing.assert_close(got.vectors, wanted.vectors[names][:, order], **close)


@given(problems())
def test_what_all_classes_share_is_no_matter(drawn):
    """Adding one vector to every row of W, and one number to b, changes no probability, however long it is."""
    (vectors, weight, bias, gradients, present), g = drawn
    wanted = matched((vectors, weight, bias, gradients, present))
    shifted = weight + 1e5 * random(g, weight.shape[1]), bias + 10 * random(g, 1)
    got = matched((vectors, *shifted, gradients, present))
    torch.testing.assert_close(got.losses, wanted.losses, **CLOSE)
    torch.testing.assert_close(got.vectors, wanted.vectors, **CLOSE)


@given(problems())
def test_a_rotation_of_feature_space_rotates_the_result(drawn):
    (vectors, weight, bias, gradients, present), g = drawn
    rotation = torch.linalg.qr(random(g, weight.shape[1], weight.shape[1])).Q
    wanted = matched((vectors, weight, bias, gradients, present))
    got = matched((vectors @ rotation, weight @ rotation, bias, gradients @ rotation, present))
    torch.testing.assert_close(got.losses, wanted.losses, **CLOSE)
    torch.testing.assert_close(got.vectors, wanted.vectors @ rotation, **CLOSE)


# Feature gradients


@st.composite
def batches(draw):
    """Features, labels, weight and bias."""
    n, width, classes = draw(st.integers(0, 20)), draw(st.integers(1, 10)), draw(st.integers(2, 6))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    labels = torch.randint(0, classes, (n,), generator=g)
    return random(g, n, width), labels, random(g, classes, width), random(g, classes)


@given(batches(), st.data())
def test_h5_how_samples_are_grouped_is_no_matter(drawn, data):
    """Sums and counts give the mean over all samples, also between clients with equal heads."""
    z, y, weight, bias = drawn
    cut = data.draw(st.integers(0, len(y)))
    whole = linear_gradients(z, y, weight, bias)
    parts = linear_gradients(z[:cut], y[:cut], weight, bias) + linear_gradients(z[cut:], y[cut:], weight, bias)
    torch.testing.assert_close(parts.mean(), whole.mean())
    assert torch.equal(parts.count, whole.count)


@given(batches())
def test_h5_the_closed_form_is_the_derivative(drawn):
    z, y, weight, bias = drawn
    closed = linear_gradients(z, y, weight, bias)
    reverse = head_gradients(lambda x: x @ weight.T + bias, z, y, len(weight))
    torch.testing.assert_close(closed.total, reverse.total)
    assert torch.equal(closed.count, reverse.count)


@given(batches())
def test_h5_residuals_sum_to_zero(drawn):
    z, y, weight, bias = drawn
    residuals = cross_entropy_residuals(z @ weight.T + bias, y)
    assert residuals.sum(1).abs().le(1e-15).all()
    assert ClassSums.of(residuals, y, len(weight)).total.sum(1).abs().le(1e-13).all()
