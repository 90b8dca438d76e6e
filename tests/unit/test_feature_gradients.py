"""Feature gradients: numbers worked by hand, closed form against autograd, certain classes, degenerate heads."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from isoproto.matching.feature_gradients import (
    cross_entropy_residuals,
    head_gradients,
    linear_gradients,
    prototype_head,
    squared_radius,
)

Z = [[1, 0.5, 0], [0, 2, 1], [2, 0, 1], [1, 1, 3], [1, 2, 0], [0, 1, 2]]
Y = torch.tensor([0, 1, 0, 2, 1, 2])
W = [[0.2, -0.1, 0.3], [-0.3, 0.4, 0.1], [0.1, 0.2, -0.2]]
B = [0.05, -0.05, 0]
RESIDUALS = [[-0.528586, 0.208365, 0.320221], [0.246149, -0.568591, 0.322442], [0.487002, 0.343646, -0.830648]]
GRADIENTS = [[-0.136205, 0.200249, -0.201783], [0.252051, -0.187563, -0.047503], [-0.088758, -0.077371, 0.346595]]
NAN = float("nan")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(n, classes, seed=0):
    return torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(seed))


def by_autograd(head, z, y, classes):
    """Eq. (5), times the counts: the summed cross-entropy of each class, differentiated."""
    total = torch.zeros(classes, z.shape[1], dtype=z.dtype)
    for c in range(classes):
        x = z[y == c].clone().requires_grad_()
        loss = functional.cross_entropy(head(x), y[y == c], reduction="sum")
        total[c] = torch.autograd.grad(loss, x)[0].sum(0)
    return total


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-6), (torch.float32, 1e-5)])
def test_worked_numbers_of_e5(dtype, tolerance):
    z, w, b = f64(Z).to(dtype), f64(W).to(dtype), f64(B).to(dtype)
    residuals = cross_entropy_residuals(z @ w.T + b, Y)
    means = torch.stack([residuals[c == Y].mean(0) for c in range(3)])
    torch.testing.assert_close(means, f64(RESIDUALS).to(dtype), atol=tolerance, rtol=0)
    closed = linear_gradients(z, Y, w, b)
    reverse = head_gradients(lambda x: x @ w.T + b, z, Y, 3)
    for sums in (closed, reverse):
        torch.testing.assert_close(sums.mean(), f64(GRADIENTS).to(dtype), atol=tolerance, rtol=0)
        assert sums.count.tolist() == [2, 2, 2]
        assert sums.total.dtype == dtype


def test_residuals_are_the_derivative_of_the_cross_entropy():
    logits, y = randn(7, 5).requires_grad_(), labels(7, 5)
    (wanted,) = torch.autograd.grad(functional.cross_entropy(logits, y, reduction="sum"), logits)
    torch.testing.assert_close(cross_entropy_residuals(logits, y), wanted)
    assert torch.autograd.gradcheck(lambda x: cross_entropy_residuals(x, y), (logits,))


def test_residuals_of_a_certain_class_keep_their_digits():
    """With logits (t, 0, 0) they are (-2, 1, 1) e^-t up to terms in e^-2t; 1 - p would be 0 beyond t = 17."""
    for dtype, t in ((torch.float32, 60.0), (torch.float64, 500.0)):
        logits = torch.tensor([t, 0, 0], dtype=dtype)
        wanted = torch.tensor([-2, 1, 1], dtype=dtype) * torch.exp(torch.tensor(-t, dtype=dtype))
        torch.testing.assert_close(cross_entropy_residuals(logits, torch.tensor(0)), wanted, atol=0, rtol=1e-5)


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (5, 3), (7, 64)])
def test_closed_form_equals_autograd(classes, width):
    z, y = randn(40, width), labels(40, classes)
    w, b = randn(classes, width, seed=1), randn(classes, seed=2)
    wanted = by_autograd(lambda x: x @ w.T + b, z, y, classes)
    torch.testing.assert_close(linear_gradients(z, y, w, b).total, wanted)
    torch.testing.assert_close(head_gradients(lambda x: x @ w.T + b, z, y, classes).total, wanted)


def test_any_head_equals_autograd():
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    z, y = randn(30, 6), labels(30, 4)
    sums = head_gradients(head, z, y, 4)
    torch.testing.assert_close(sums.total, by_autograd(head, z, y, 4))
    assert torch.equal(sums.count, torch.bincount(y, minlength=4))


def test_float32_is_enough_for_certain_classes():
    """Features far on the right side have gradients of 1e-8, which ``softmax - 1`` in float32 would round to zero."""
    w, b, y = randn(6, 32, dtype=torch.float32), torch.zeros(6), labels(50, 6)
    z = 0.6 * w[y] + 0.1 * randn(50, 32, seed=3, dtype=torch.float32)
    exact = linear_gradients(z.double(), y, w, b).mean()
    assert 1e-12 < exact.norm(dim=1).min() < 1e-7
    error = (linear_gradients(z, y, w, b).mean() - exact).norm(dim=1) / exact.norm(dim=1)
    assert error.max() < 2e-6
    error = (head_gradients(lambda x: x @ w.T + b, z, y, 6).mean() - exact).norm(dim=1) / exact.norm(dim=1)
    assert error.max() < 2e-6


def test_batches_add_up_and_absent_classes_are_zero():
    z, y = randn(20, 3), labels(20, 3)  # of four classes
    w, b = randn(4, 3, seed=1), randn(4, seed=2)
    whole = linear_gradients(z, y, w, b)
    parts = linear_gradients(z[:7], y[:7], w, b) + linear_gradients(z[7:], y[7:], w, b)
    torch.testing.assert_close(parts.total, whole.total)
    assert torch.equal(parts.count, whole.count)
    assert whole.present.tolist() == [True, True, True, False]
    assert whole.total[3].eq(0).all()
    empty = linear_gradients(z[:0], y[:0], w, b)
    assert empty.total.eq(0).all()
    assert not empty.present.any()


def test_nothing_is_left_on_the_graph():
    head = nn.Linear(3, 4).double()
    z = randn(5, 3).requires_grad_()
    with torch.no_grad():
        sums = head_gradients(head, z, labels(5, 4), 4)
    assert not sums.total.requires_grad
    assert not linear_gradients(z, labels(5, 4), head.weight, head.bias).total.requires_grad
    assert z.grad is None
    assert all(p.grad is None for p in head.parameters())


def test_autocast_changes_nothing():
    z, y = randn(9, 8, dtype=torch.float32), labels(9, 4)
    head = nn.Linear(8, 4)
    wanted = linear_gradients(z, y, head.weight, head.bias).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear_gradients(z, y, head.weight, head.bias).total, wanted)
        torch.testing.assert_close(head_gradients(head, z, y, 4).total, wanted)
    half = linear_gradients(z.bfloat16(), y, head.weight, head.bias)
    assert half.total.dtype == torch.float32


# The head made of prototypes


def test_prototype_head_is_the_softmax_of_squared_distances():
    p, z = randn(5, 4), randn(9, 4, seed=1)
    present = torch.tensor([True, False, True, True, True])
    p[1] = NAN
    held = p[present]
    square = (held - held.mean(0)).square().sum(1).mean()
    torch.testing.assert_close(squared_radius(p, present), square)
    weight, bias = prototype_head(p, present, sharpness=3.0)
    got = (z @ weight.T + bias).softmax(1)
    assert got[:, 1].eq(0).all()
    wanted = (-3.0 * torch.cdist(z, held).square() / (2 * square)).softmax(1)
    torch.testing.assert_close(got[:, present], wanted)


def test_absent_classes_have_exactly_no_residual():
    p, present = randn(4, 3, dtype=torch.float32), torch.tensor([True, True, False, True])
    weight, bias = prototype_head(p, present)
    residuals = cross_entropy_residuals(randn(6, 3, seed=1, dtype=torch.float32) @ weight.T + bias, labels(6, 2))
    assert residuals.isfinite().all()
    assert residuals[:, 2].eq(0).all()


def test_sharpness_is_ten_and_the_scale_of_the_frame_is_no_matter():
    p, z, present = randn(4, 3), randn(5, 3, seed=1), torch.ones(4, dtype=torch.bool)
    weight, bias = prototype_head(p, present)
    torch.testing.assert_close(weight, 10 * p / squared_radius(p, present))
    scaled = prototype_head(100 * p, present)
    torch.testing.assert_close(100 * z @ scaled[0].T + scaled[1], z @ weight.T + bias)


@pytest.mark.parametrize("length", [1e-8, 1e-14, 1e-18, 1e-20, 1e-23])
def test_prototypes_of_any_length_make_a_finite_head(length):
    weight, bias = prototype_head(length * randn(4, 3, dtype=torch.float32), torch.ones(4, dtype=torch.bool))
    assert weight.isfinite().all()
    assert bias.isfinite().all()


@pytest.mark.parametrize("held", [[], [1], [0, 1, 2]])
def test_prototypes_that_are_one_point_favour_none(held):
    p, present = torch.full((3, 2), 0.1), torch.zeros(3, dtype=torch.bool)
    present[held] = True
    assert squared_radius(p, present) == 0
    weight, bias = prototype_head(p, present)
    assert weight.eq(0).all()
    assert bias[present].eq(0).all()
    assert bias[~present].eq(-1e30).all()
