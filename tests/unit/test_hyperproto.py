"""Gradient matching: numbers worked by hand, closed form against autograd, classes without a gradient, starts."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from isoproto.errors import ConfigError
from isoproto.matching.feature_gradients import linear_gradients, prototype_head
from isoproto.matching.hyperproto import (
    DISTANCES,
    anchor_cosines,
    draw_spread,
    initial_vectors,
    match_gradients,
    match_gradients_autograd,
    movement,
    spread_about,
    summaries,
)

Z = [[1, 0.5, 0], [0, 2, 1], [2, 0, 1], [1, 1, 3], [1, 2, 0], [0, 1, 2]]
Y = torch.tensor([0, 1, 0, 2, 1, 2])
W = [[0.2, -0.1, 0.3], [-0.3, 0.4, 0.1], [0.1, 0.2, -0.2]]
B = [0.05, -0.05, 0]
S = [[[0.5, -1, 0.2], [1, 0.3, -0.4]], [[-0.2, 0.8, 1], [0.1, -0.5, 0.6]], [[0.9, 0.1, -1.2], [-0.7, 0.4, 0.3]]]
STEP = [[[0.000220, -0.000115, -0.000155], [0.000267, -0.000130, -0.000207]],
        [[0.001189, -0.004318, 0.007674], [0.002047, -0.005645, 0.009094]],
        [[-0.016232, 0.017464, -0.009326], [-0.023524, 0.022791, -0.007723]]]  # fmt: skip
S_30 = [[[0.499345, -0.999659, 0.200461], [0.999207, 0.300387, -0.399384]],
        [[-0.203542, 0.812853, 0.977169], [0.093907, -0.483191, 0.572914]],
        [[0.945371, 0.051231, -1.174038], [-0.633982, 0.336012, 0.321737]]]  # fmt: skip
ALL = torch.tensor([True, True, True])
NAN, INF = float("nan"), float("inf")
settings = pytest.mark.parametrize(
    ("optimizer", "distance"), [(o, d) for o in ("sgd", "adam") for d in ("cosine", "coordinate_sign")]
)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def problem(classes=5, per_class=3, width=8, seed=0):
    """Return vectors, weight, bias, gradients, present. One class is absent and its gradient must not be read."""
    present = torch.ones(classes, dtype=torch.bool)
    present[classes // 2] = classes < 3
    gradients = torch.where(present.unsqueeze(1), randn(classes, width, seed=seed + 3), NAN)
    vectors = randn(classes, per_class, width, seed=seed)
    return vectors, randn(classes, width, seed=seed + 1), randn(classes, seed=seed + 2), gradients, present


def linear(weight, bias):
    return lambda z: z @ weight.T + bias


def e5():
    return linear_gradients(f64(Z), Y, f64(W), f64(B)).mean()


def assert_equal_matchings(one, other, **tolerance):
    for name in ("vectors", "losses", "before", "after"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), **tolerance)
    assert torch.equal(one.used, other.used)


# Worked numbers


def by_closed_form(vectors, **options):
    return match_gradients(vectors, f64(W), f64(B), e5(), ALL, **options)


def by_autograd(vectors, **options):
    return match_gradients_autograd(vectors.double(), linear(f64(W), f64(B)), e5(), ALL, **options)


@pytest.mark.parametrize("match", [by_closed_form, by_autograd])
def test_worked_numbers_of_e6(match):
    first, last = match(f64(S), steps=1), match(f64(S))
    assert first.before.tolist() == pytest.approx([0.000017, 0.012678, 0.018441], abs=2e-6)
    assert first.losses.tolist() == pytest.approx([0.031136, 0.030937], abs=2e-6)
    assert first.after.tolist() == pytest.approx([0.000017, 0.012659, 0.018262], abs=2e-6)
    torch.testing.assert_close((f64(S) - first.vectors) / 0.1, f64(STEP), atol=2e-6, rtol=0)
    assert last.after.tolist() == pytest.approx([0.000016, 0.012094, 0.013765], abs=2e-6)
    assert last.losses.shape == (31,)
    assert last.losses[-1].item() == pytest.approx(0.025875, abs=2e-6)
    torch.testing.assert_close(last.vectors, f64(S_30), atol=2e-6, rtol=0)
    assert last.used.all()


def test_float32_comes_back_as_float32():
    matching = match_gradients(f64(S).float(), f64(W).float(), f64(B).float(), e5().float(), ALL)
    torch.testing.assert_close(matching.vectors, f64(S_30).float(), atol=1e-5, rtol=0)
    assert matching.losses[-1].item() == pytest.approx(0.025875, abs=1e-5)


@pytest.mark.parametrize("match", [by_closed_form, by_autograd])
def test_coordinate_signs_of_e6(match):
    before = match(f64(S), steps=0, distance="coordinate_sign").before
    assert before.tolist() == pytest.approx([9.53e-5, 1.950084, 7.08e-4], abs=2e-6)


# The closed form


@settings
@pytest.mark.parametrize(("classes", "per_class", "width"), [(2, 1, 1), (2, 3, 4), (5, 1, 3), (6, 4, 20), (12, 2, 5)])
def test_closed_form_equals_autograd_step_by_step(optimizer, distance, classes, per_class, width):
    vectors, weight, bias, gradients, present = problem(classes, per_class, width)
    options = {"steps": 30, "learning_rate": 0.1, "optimizer": optimizer, "distance": distance}
    closed = match_gradients(vectors, weight, bias, gradients, present, **options)
    oracle = match_gradients_autograd(vectors, linear(weight, bias), gradients, present, **options)
    # Signs of coordinates have slopes of up to 1e6 at zero, which let rounding grow.
    assert_equal_matchings(closed, oracle, rtol=1e-7, atol=1e-9 if distance == "cosine" else 1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_autograd_equals_one_class_at_a_time(optimizer):
    """Eqs. (7) to (9) as printed, with torch's cross-entropy and cosine."""
    vectors, weight, bias, gradients, present = problem(4, 3, 6)
    wanted = vectors.clone()
    for c in present.nonzero().flatten():
        s, y = vectors[c].clone().requires_grad_(), c.repeat(3)
        steps = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]([s], lr=0.1)
        for _ in range(20):
            loss = functional.cross_entropy(functional.linear(s, weight, bias), y, reduction="sum")
            produced = torch.autograd.grad(loss, s, create_graph=True)[0].mean(0)
            steps.zero_grad()
            (1 - functional.cosine_similarity(produced, gradients[c], dim=0)).backward()
            steps.step()
        wanted[c] = s.detach()
    options = {"steps": 20, "optimizer": optimizer}
    closed = match_gradients(vectors, weight, bias, gradients, present, **options)
    torch.testing.assert_close(closed.vectors, wanted)
    oracle = match_gradients_autograd(vectors, linear(weight, bias), gradients, present, **options)
    torch.testing.assert_close(oracle.vectors, wanted)


@pytest.mark.parametrize(("classes", "width"), [(6, 20), (9, 4)])
def test_steps_on_logits_equal_steps_on_features(classes, width):
    """The same derivative in feature space, where every step goes through W."""
    vectors, weight, bias, gradients, present = problem(classes, 3, width)
    s, eye = vectors.clone(), torch.eye(classes, dtype=torch.float64)
    g = torch.where(present.unsqueeze(1), gradients, 1.0)
    losses = []
    for _ in range(31):
        p = (s @ weight.T + bias).softmax(-1)
        produced = (p - eye.unsqueeze(1)).mean(1) @ weight
        n, m = produced.norm(dim=1, keepdim=True), g.norm(dim=1, keepdim=True)
        cosine = (produced * g).sum(1, keepdim=True) / (n * m)
        losses.append((1 - cosine.squeeze(1))[present].sum())
        v = (-(g / m - cosine * produced / n) / n @ weight.T).unsqueeze(1)
        push = p * (v - (p * v).sum(-1, keepdim=True))
        before, s = s, s - 0.1 * present.view(-1, 1, 1) * (push @ weight) / 3
    matching = match_gradients(vectors, weight, bias, gradients, present)
    torch.testing.assert_close(matching.losses, torch.stack(losses))
    torch.testing.assert_close(matching.vectors, before)


@pytest.mark.parametrize("distance", DISTANCES)
def test_distances_come_with_their_derivative(distance):
    produced, wanted = randn(4, 5).requires_grad_(), functional.normalize(randn(4, 5, seed=1), dim=1)
    compare = DISTANCES[distance]
    loss, slope = compare(produced, wanted)
    torch.testing.assert_close(slope, torch.autograd.grad(loss.sum(), produced)[0])
    small = (3e-4 * produced.detach()).requires_grad_()  # on the ramp of the signs
    assert torch.autograd.gradcheck(lambda x: compare(x, 3e-3 * wanted)[0], (small,), eps=1e-9, atol=1e-3, rtol=1e-3)


def test_signs_are_counted():
    produced, wanted = randn(1, 256), randn(1, 256, seed=1)
    differ = (produced.sign() != wanted.sign()).sum().item()
    assert DISTANCES["coordinate_sign"](produced, wanted)[0].item() == pytest.approx(2 * differ, rel=0.01)


def test_a_certain_class_keeps_its_digits():
    """Raising the logit of the class itself scales all small residuals by one factor, so S moves the same way."""
    vectors, weight, bias, gradients, present = problem(5, 1, 8)
    vectors, present = vectors * 0.1, torch.arange(5) == 0
    moved = []
    for t in (22.0, 24.0):
        matching = match_gradients(vectors, weight, bias + t * present, gradients, present, steps=1)
        assert matching.used[0]
        moved.append(matching.vectors[0] - vectors[0])
    assert moved[0].norm() > 1e-4
    torch.testing.assert_close(moved[0], moved[1], atol=1e-12, rtol=1e-8)


@pytest.mark.parametrize("match", ["closed", "autograd"])
def test_the_updates_stay_in_the_row_space_of_the_head(match):
    vectors, weight, bias, gradients, present = problem(4, 2, 9)
    if match == "closed":
        moved = match_gradients(vectors, weight, bias, gradients, present).vectors - vectors
    else:
        moved = match_gradients_autograd(vectors, linear(weight, bias), gradients, present).vectors - vectors
    null = torch.linalg.svd(weight - weight.mean(0)).Vh[3:]  # only C - 1 directions can change
    assert moved.norm() > 1e-3
    assert (moved @ null.T).abs().max() < 1e-12


# Classes without a gradient


@settings
@pytest.mark.parametrize("bad", [0.0, 1e-13, NAN, INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_class_without_a_usable_gradient_keeps_its_vectors(optimizer, distance, bad, dtype):
    vectors, weight, bias, gradients, _ = problem(4, 3, 8)
    vectors, present = vectors.to(dtype), torch.tensor([True, True, False, True])
    gradients[1] = 0
    gradients[1, 3] = bad
    options = {"optimizer": optimizer, "distance": distance, "steps": 5}
    closed = match_gradients(vectors, weight, bias, gradients, present, **options)
    head = linear(weight.to(dtype), bias.to(dtype))
    oracle = match_gradients_autograd(vectors, head, gradients, present, **options)
    for matching in (closed, oracle):
        assert matching.used.tolist() == [True, False, False, True]
        assert torch.equal(matching.vectors[1:3], vectors[1:3])
        assert not torch.equal(matching.vectors[0], vectors[0])
        assert matching.vectors.dtype == dtype
        assert matching.before[1:3].tolist() == matching.after[1:3].tolist() == [0, 0]
        torch.testing.assert_close(matching.losses[[0, -1]], torch.stack([matching.before.sum(), matching.after.sum()]))


def test_short_gradients_are_used():
    vectors, weight, bias, gradients, present = problem()
    wanted = match_gradients(vectors, weight, bias, gradients, present)
    assert_equal_matchings(match_gradients(vectors, weight, bias, 1e-10 * gradients, present), wanted)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_hyper_prototypes_without_a_gradient_stay(optimizer):
    """A probability of exactly 1 leaves nothing to compare; so does a head of equal rows."""
    vectors, weight, bias, gradients, present = problem()
    certain = bias + 1e4 * (torch.arange(5) == 1)
    matching = match_gradients(vectors, weight, certain, gradients, present, optimizer=optimizer)
    assert matching.used.tolist() == [True, False, False, True, True]
    assert torch.equal(matching.vectors[1], vectors[1])
    oracle = match_gradients_autograd(vectors, linear(weight, certain), gradients, present, optimizer=optimizer)
    assert torch.equal(oracle.used, matching.used)
    assert torch.equal(oracle.vectors[1], vectors[1])
    equal_rows = weight[:1].expand(5, -1)
    assert not match_gradients(vectors, equal_rows, bias, gradients, present, optimizer=optimizer).used.any()


def test_a_gradient_that_vanishes_on_the_way_counts_as_orthogonal():
    """Huge steps make the other classes' probabilities, 1e-11 at first, too small to tell a direction from."""
    vectors, weight, bias, gradients, _ = problem(3, 1, 4)
    present = torch.tensor([True, False, False])
    vectors, bias = vectors * 0.1, bias + 26 * present
    options = {"steps": 3, "learning_rate": 5.0, "optimizer": "adam"}
    closed = match_gradients(vectors, weight, bias, gradients, present, **options)
    oracle = match_gradients_autograd(vectors, linear(weight, bias), gradients, present, **options)
    for matching in (closed, oracle):
        assert torch.equal(matching.used, present)
        assert 1.1 < matching.losses[2] < 1.9
        assert matching.losses[3] == matching.after[0] == 1
        assert matching.vectors.isfinite().all()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_numbers_out_of_range_leave_everything_as_it_was(optimizer):
    vectors, weight, bias, gradients, present = problem()
    broken = weight.clone()
    broken[0, 0] = NAN
    oracle = match_gradients_autograd(vectors, linear(broken, bias), gradients, present, optimizer=optimizer)
    for matching in (
        match_gradients(vectors, broken, bias, gradients, present, optimizer=optimizer),
        match_gradients(vectors, weight, bias, gradients, present, optimizer=optimizer, learning_rate=1e320),
        oracle,
    ):
        assert torch.equal(matching.vectors, vectors)
        assert not matching.used.any()
        assert matching.losses.eq(0).all()


def test_vectors_beyond_float32_are_not_taken():
    """In float64, where they are computed, there is more room."""
    g = torch.Generator().manual_seed(0)
    vectors, weight, gradients = (torch.randn(shape, generator=g) for shape in ((3, 2, 4), (3, 4), (3, 4)))
    matching = match_gradients(
        vectors, weight, torch.zeros(3), gradients, torch.ones(3).bool(), learning_rate=1e42, steps=1
    )
    assert torch.equal(matching.vectors, vectors)
    assert not matching.used.any()


def test_broken_vectors_of_one_class_do_not_touch_the_others():
    vectors, weight, bias, gradients, present = problem()
    wanted = match_gradients(vectors, weight, bias, gradients, present)
    vectors[0, 0, 0] = NAN
    got = match_gradients(vectors, weight, bias, gradients, present)
    assert got.used.tolist() == [False, *wanted.used[1:].tolist()]
    torch.testing.assert_close(got.vectors[1:], wanted.vectors[1:])


def test_absent_classes_of_a_prototype_head_do_no_harm():
    prototypes, present = randn(5, 6), torch.tensor([True, True, False, True, True])
    prototypes[2] = NAN
    weight, bias = prototype_head(prototypes, present)
    vectors = spread_about(prototypes, present, draw_spread(5, 3, 6, generator()))
    for distance in DISTANCES:
        closed = match_gradients(vectors, weight, bias, randn(5, 6, seed=4), present, distance=distance, steps=5)
        oracle = match_gradients_autograd(
            vectors, linear(weight, bias), randn(5, 6, seed=4), present, distance=distance, steps=5
        )
        assert closed.used.tolist() == present.tolist()
        assert_equal_matchings(closed, oracle, rtol=1e-5, atol=1e-6)


# Options and sizes


@settings
def test_no_step_and_no_step_size_move_nothing(optimizer, distance):
    vectors, weight, bias, gradients, present = problem()
    options = {"optimizer": optimizer, "distance": distance}
    still = match_gradients(vectors, weight, bias, gradients, present, learning_rate=0.0, **options)
    none = match_gradients(vectors, weight, bias, gradients, present, steps=0, **options)
    assert torch.equal(still.vectors, vectors)
    assert torch.equal(none.vectors, vectors)
    assert still.losses.tolist() == pytest.approx([none.losses.item()] * 31)
    assert torch.equal(none.before, none.after)


@pytest.mark.parametrize(("classes", "per_class", "width"), [(2, 5, 64), (400, 1, 64), (3, 1, 1024)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_sizes(classes, per_class, width, optimizer):
    problem_ = problem(classes, per_class, width)
    rate = {"sgd": 0.1, "adam": 0.002}[optimizer]
    matching = match_gradients(*problem_, steps=5, learning_rate=rate, optimizer=optimizer)
    assert torch.equal(matching.used, problem_[-1])
    assert matching.losses[-1] <= matching.losses[0]
    assert matching.vectors.isfinite().all()


def test_every_call_starts_afresh_and_leaves_its_arguments_alone():
    arguments = problem()
    copies = [x.clone() for x in arguments]
    for optimizer in ("sgd", "adam"):
        first, second = (match_gradients(*arguments, optimizer=optimizer) for _ in range(2))
        assert torch.equal(first.vectors, second.vectors)
        autograd = (arguments[0], linear(*arguments[1:3]), *arguments[3:])
        first, second = (match_gradients_autograd(*autograd, optimizer=optimizer, steps=3) for _ in range(2))
        assert torch.equal(first.vectors, second.vectors)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(arguments, copies, strict=True))


def test_sgd_in_two_calls_is_sgd_in_one():
    vectors, *rest = problem()
    halves = match_gradients(match_gradients(vectors, *rest, steps=10).vectors, *rest, steps=20)
    torch.testing.assert_close(halves.vectors, match_gradients(vectors, *rest, steps=30).vectors)


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_head_with_a_hidden_layer_is_matched(distance):
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    vectors, present = randn(4, 2, 6), torch.tensor([True, True, True, False])
    gradients = 1e-3 * randn(4, 6, seed=1)
    with torch.no_grad():
        matching = match_gradients_autograd(vectors, head, gradients, present, learning_rate=0.01, distance=distance)
    assert matching.after[:3].sum() < matching.before[:3].sum()
    assert not matching.vectors.requires_grad
    assert torch.equal(matching.vectors[3], vectors[3])
    assert all(p.grad is None for p in head.parameters())


@pytest.mark.parametrize("option", ["optimizer", "distance"])
def test_unknown_names(option):
    vectors, weight, bias, gradients, present = problem()
    with pytest.raises(ConfigError, match=f"unknown {option} 'cosin'; `{option}` must be one of"):
        match_gradients(vectors, weight, bias, gradients, present, **{option: "cosin"})
    with pytest.raises(ConfigError, match=f"unknown {option} 'cosin'; `{option}` must be one of"):
        match_gradients_autograd(vectors, linear(weight, bias), gradients, present, **{option: "cosin"})


@pytest.mark.parametrize("wrong", range(5))
def test_shapes_that_do_not_belong_together(wrong):
    arguments = list(problem())
    arguments[wrong] = arguments[wrong][:-1]
    with pytest.raises(ValueError, match=r"gradients and weight \[C, d\].*got vectors \(\d, 3, 8\), gradients"):
        match_gradients(*arguments)


def test_vectors_need_three_axes():
    vectors, *rest = problem()
    with pytest.raises(ValueError, match=r"needs vectors \[C, I, d\].*got vectors \(5, 8\), gradients \(5, 8\)"):
        match_gradients(vectors[:, 0], *rest)
    with pytest.raises(ValueError, match=r"got vectors \(5, 8\), gradients \(5, 8\), present \(5,\)$"):
        match_gradients_autograd(vectors[:, 0], linear(*rest[:2]), *rest[2:])


# Starts and summaries


def test_starts_are_functions_of_the_seed():
    for draw, deviation in ((initial_vectors, 1.0), (draw_spread, 0.1)):
        x = draw(20, 5, 100, generator(7))
        assert x.shape == (20, 5, 100)
        assert x.dtype == torch.float32
        assert torch.equal(x, draw(20, 5, 100, generator(7)))
        assert x.std().item() == pytest.approx(deviation, rel=0.03)
        assert x.mean().item() == pytest.approx(0, abs=0.05 * deviation)


def test_the_spread_is_a_share_of_the_radius():
    """Prototypes +-3 on an axis have radius 3; offsets of length 1 at size 0.5 become 1.5."""
    prototypes = torch.tensor([[3.0, 0.0], [NAN, NAN], [-3.0, 0.0]])
    present = torch.tensor([True, False, True])
    offsets = torch.tensor([[[0.0, 1.0]], [[1.0, 1.0]], [[1.0, 0.0]]])
    got = spread_about(prototypes, present, offsets, size=0.5)
    assert got.tolist() == [[[3.0, 1.5]], [[0.0, 0.0]], [[-1.5, 0.0]]]
    drawn = draw_spread(50, 5, 64, generator())
    around = spread_about(randn(50, 64), torch.ones(50, dtype=torch.bool), drawn)
    radius = math.sqrt(randn(50, 64).var(0, correction=0).sum())
    distance = (around - randn(50, 64).unsqueeze(1)).norm(dim=2).mean().item()
    assert distance == pytest.approx(0.3 * radius, rel=0.02)
    assert around.dtype == torch.float64
    assert torch.equal(spread_about(randn(2, 3), ALL[:2], randn(2, 1, 3), size=0.0)[:, 0], randn(2, 3))


def test_anchors_stand_for_all_hyper_prototypes():
    """The feature is z = (1, .5, .2)."""
    directions, means = summaries(f64(S))
    z = functional.normalize(f64([1, 0.5, 0.2]), dim=0)
    assert (directions @ z).tolist() == pytest.approx([0.436816, 0.119084, -0.017259], abs=2e-6)
    wanted = f64([[0.75, -0.35, -0.1], [-0.05, 0.15, 0.8], [0.1, 0.25, -0.45]])
    torch.testing.assert_close(means, wanted)
    assert summaries(torch.zeros(2, 3, 4))[0].eq(0).all()


def test_movement():
    start = f64([[[3.0, 4.0]], [[0.0, 0.0]]])
    moved = f64([[[3.0, 4.0]], [[0.0, 1.0]]])
    assert movement(moved, start) == pytest.approx(0.2)
    assert movement(start, start) == 0
    assert movement(0 * start, 0 * start) == 0


def test_cosines_between_anchors():
    vectors = torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]], [[NAN, NAN]], [[-3.0, 0.0]]])
    present = torch.tensor([True, True, False, True])
    assert anchor_cosines(vectors, present) == pytest.approx((-1, -1 / 3))
    assert anchor_cosines(vectors, torch.tensor([True, False, False, False])) is None
    assert anchor_cosines(vectors, torch.zeros(4, dtype=torch.bool)) is None
