"""Alignment losses: numbers worked by hand, closed-form gradients, degenerate cases.

The numbers were computed in float64 by matrix form and by loops, and are printed to six digits.
"""

import dataclasses
import math

import pytest
import torch

from isoproto.losses import LOSSES, AlignmentLoss, alignment_terms, batch_targets, procrustes_split

P = [[1, 0, 2], [0, 1, 1], [2, 1, 0], [1, 3, 1]]
Q = [[2, 1, 0], [0, 2, 1], [1, 0, 3], [1, 1, 1]]
Z = [[1, 0.5, 0], [0, 2, 1], [2, 0, 1], [1, 1, 3], [1, 2, 0], [0, 1, 2]]
Y = torch.tensor([0, 1, 0, 2, 1, 2])
PG = [[2, 0, 1], [1, 3, 0], [0, 1, 2]]
ROTATION = torch.tensor(
    [[math.cos(0.7), -math.sin(0.7), 0], [math.sin(0.7), math.cos(0.7), 0], [0, 0, -1]], dtype=torch.float64
)
SHIFT = torch.tensor([1, -2, 0.5], dtype=torch.float64)
ALL = torch.tensor([True, True, True])
WITHOUT_2 = torch.tensor([True, True, False])
STRUCTURAL = ["gcsa", "rcsa"]
COORDINATE = ["mse", "cosine"]
NAN = float("nan")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def terms(name, z, y, prototypes, present, **options):
    loss = LOSSES[name]
    return alignment_terms(loss, z, y, loss.target(prototypes, present), present, **options)


def gradient(value, x):
    return torch.autograd.grad(value, x, retain_graph=True)[0]


def assert_silent(value, *inputs):
    """Assert that value and gradients are exactly zero."""
    assert value.item() == 0
    for x in inputs:
        assert torch.equal(gradient(value, x), torch.zeros_like(x))


# Worked numbers


@pytest.mark.parametrize(
    ("name", "expected"), [("gcsa", 0.437810), ("rcsa", 0.079629), ("mse", 1.833333), ("cosine", 0.374521)]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-6), (torch.float32, 1e-5)])
def test_pair_losses_of_e1(name, expected, dtype, tolerance):
    p, q = f64(P).to(dtype), f64(Q).to(dtype)
    loss = LOSSES[name]
    assert loss.pair(p, q).item() == pytest.approx(expected, abs=tolerance)
    rows, valid = torch.arange(4), torch.ones(4, dtype=torch.bool)
    _, inst = alignment_terms(loss, p, rows, loss.target(q, valid), valid)
    assert inst.item() == pytest.approx(expected, abs=tolerance)
    assert inst.dtype == dtype


def test_gcsa_of_orthogonal_structures_is_one():
    a = f64([[1, 0], [-1, 0], [0, 0], [0, 0]])
    b = f64([[0, 0], [0, 0], [1, 0], [-1, 0]])
    valid = torch.ones(4, dtype=torch.bool)
    assert LOSSES["gcsa"].pair(a, b).item() == 1
    _, inst = alignment_terms(LOSSES["gcsa"], a, torch.arange(4), LOSSES["gcsa"].target(b, valid), valid)
    assert inst.item() == pytest.approx(1, abs=1e-12)


def test_targets_of_e1():
    k_q = f64([[2.5625, -0.6875, -2.1875, 0.3125], [-0.6875, 2.0625, -1.4375, 0.0625],
               [-2.1875, -1.4375, 4.0625, -0.4375], [0.3125, 0.0625, -0.4375, 0.0625]])  # fmt: skip
    r_q = f64([1.2, 1.434315, 0.450807, 1.151472, 0.450807, 0.539407])
    valid = torch.ones(4, dtype=torch.bool)
    centre = torch.eye(4, dtype=torch.float64) - 0.25
    torch.testing.assert_close(centre @ LOSSES["gcsa"].target(f64(Q), valid) @ centre, k_q)
    upper = torch.triu_indices(4, 4, 1)
    torch.testing.assert_close(LOSSES["rcsa"].target(f64(Q), valid)[upper[0], upper[1]], r_q, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("scales", "rotated", "shifted", "expected"),
    [
        ([1, 1, 1, 1], True, False, (0, 0, 2.666280, 0.848842, 0, 6.790733)),
        ([2.5, 2.5, 2.5, 2.5], True, True, (0, 0.036207, 14.138942, 0.959734, 0.121441, 7.556427)),
        ([0.5, 2, 3, 1], True, False, (0.384189, 0, 4.681973, 0.848842, 0, 6.790733)),
        ([1, 1, 1, 1], False, True, (0, 0.184914, 1.75, 0.393231, None, None)),
    ],
)
def test_invariances_of_e2(scales, rotated, shifted, expected):
    p = f64(P)
    b = f64(scales).unsqueeze(1) * p
    b = (b @ ROTATION if rotated else b) + (SHIFT if shifted else 0)
    got = [LOSSES[name].pair(p, b).item() for name in ("gcsa", "rcsa", "mse", "cosine")]
    got += [part.item() for part in procrustes_split(p, b)]
    for value, wanted in zip(got, expected, strict=True):
        assert wanted is None or value == pytest.approx(wanted, abs=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_procrustes_split_of_e1(dtype):
    shape, rigid = procrustes_split(f64(P).to(dtype), f64(Q).to(dtype))
    assert shape.item() == pytest.approx(0.354570, abs=2e-6)
    assert rigid.item() == pytest.approx(2.641602, abs=2e-6)


GRADIENTS = {
    "gcsa": [[0.045686, -0.124658, -0.141961], [0.117444, -0.080999, 0.001556],
             [-0.189203, -0.074540, 0.236445], [0.026073, 0.280198, -0.096039]],
    "rcsa": [[0.004237, -0.003396, -0.002119], [0.056770, -0.050685, 0.050685],
             [0.010775, -0.021550, 0.039242], [-0.030091, 0.023768, -0.041212]],
    "mse": [[-1 / 6, -1 / 6, 1 / 3], [0, -1 / 6, 0], [1 / 6, 1 / 6, -1 / 2], [0, 1 / 3, 0]],
    "cosine": [[-0.08, -0.05, 0.04], [0, -0.039528, 0.039528],
               [-0.007071, 0.014142, -0.106066], [-0.023738, 0.015825, -0.023738]],
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_e3(name):
    p, loss = f64(P).requires_grad_(), LOSSES[name]
    valid = torch.ones(4, dtype=torch.bool)
    for value in (
        loss.pair(p, f64(Q)),
        alignment_terms(loss, p, torch.arange(4), loss.target(f64(Q), valid), valid)[1],
    ):
        torch.testing.assert_close(gradient(value, p), f64(GRADIENTS[name]), atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "proto", "inst", "masked_proto", "masked_inst", "filled_inst"),
    [
        ("gcsa", 0.121090, 0.286426, 0, 0.158113, 0.268914),
        ("rcsa", 0.001915, 0.075217, 0, 0.095806, 0.085268),
        ("mse", 0.284722, 0.458333, 0.343750, 0.520833, 0.347222),
        ("cosine", 0.024480, 0.069607, 0.026617, 0.090381, 0.060254),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-6), (torch.float32, 1e-5)])
def test_batch_of_e4(name, proto, inst, masked_proto, masked_inst, filled_inst, dtype, tolerance):
    z, pg = f64(Z).to(dtype), f64(PG).to(dtype)
    got = terms(name, z, Y, pg, ALL)
    assert [value.item() for value in got] == pytest.approx([proto, inst], abs=tolerance)
    masked = terms(name, z, Y, pg, WITHOUT_2)
    assert [value.item() for value in masked] == pytest.approx([masked_proto, masked_inst], abs=tolerance)
    # With `self`, the target of a missing class is the sample itself. Handing that to `pair` gives the same.
    filled = LOSSES[name].pair(z, torch.where(WITHOUT_2[Y].unsqueeze(1), pg[Y], z))
    assert filled.item() == pytest.approx(filled_inst, abs=tolerance)
    if name in COORDINATE:
        fedproto = terms(name, z, Y, pg, WITHOUT_2, missing="self")
        assert [v.item() for v in fedproto] == pytest.approx([masked_proto, filled_inst], abs=tolerance)


# Gradients


def closed_form(name, a, b):
    """FedSAF's losses differentiated by hand: 2 G A_c for GCSA, the tangential part of -2 M A for RCSA."""
    if name == "gcsa":
        a, b = a - a.mean(0), b - b.mean(0)
        k, t = a @ a.T, b @ b.T
        cosine = (k * t).sum() / (k.norm() * t.norm())
        return 2 * -(t / t.norm() - cosine * k / k.norm()) / k.norm() @ a
    length = a.norm(dim=1, keepdim=True)
    a, b = a / length, b / b.norm(dim=1, keepdim=True)
    r, s = torch.cdist(a, a).square(), torch.cdist(b, b).square()
    r_norm, s_norm = r.norm() / math.sqrt(2), s.norm() / math.sqrt(2)  # over the pairs i < j
    cosine = (r * s).sum() / 2 / (r_norm * s_norm)
    unit = 2 * (s / s_norm - cosine * r / r_norm) / r_norm @ a
    return (unit - (unit * a).sum(1, keepdim=True) * a) / length


@pytest.mark.parametrize("name", STRUCTURAL)
@pytest.mark.parametrize(("n", "d"), [(7, 12), (12, 5)])
def test_gradient_equals_the_closed_form(name, n, d):
    a, b = randn(n, d, seed=1).requires_grad_(), randn(n, d, seed=2)
    valid = torch.ones(n, dtype=torch.bool)
    wanted = closed_form(name, a.detach(), b)
    loss = LOSSES[name]
    torch.testing.assert_close(gradient(loss.pair(a, b), a), wanted)
    proto, inst = alignment_terms(loss, a, torch.arange(n), loss.target(b, valid), valid)
    torch.testing.assert_close(gradient(proto, a), wanted)
    torch.testing.assert_close(gradient(inst, a), wanted)


@pytest.mark.parametrize("name", LOSSES)
def test_gradcheck(name):
    y = torch.tensor([3, 0, 1, 1, 2, 0, 4])
    present = torch.tensor([True, True, True, True, False])
    loss, prototypes = LOSSES[name], randn(5, 4, seed=1)
    target = loss.target(prototypes, present)
    z = randn(7, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: alignment_terms(loss, z, y, target, present), (z,))
    b = randn(7, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(loss.pair, (z, b))
    tall = randn(9, 3, seed=3).requires_grad_(), randn(9, 3, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(loss.pair, tall)


@pytest.mark.parametrize("name", LOSSES)
def test_clients_trained_together_get_the_gradients_they_get_alone(name):
    loss, present = LOSSES[name], torch.tensor([True, True, True, False, True])
    target = loss.target(randn(5, 6, seed=1), present)
    z, y = randn(3, 9, 6), torch.randint(0, 5, (3, 9), generator=generator())
    grad = torch.func.grad(lambda z, y: sum(alignment_terms(loss, z, y, target, present)))
    together = torch.func.vmap(grad)(z, y)
    torch.testing.assert_close(together, torch.stack([grad(*client) for client in zip(z, y, strict=True)]))


# The batch form against the definition


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(5))
def test_terms_equal_the_definition(name, seed):
    classes, loss = 6, LOSSES[name]
    z, prototypes = randn(17, 8, seed=seed).requires_grad_(), randn(classes, 8, seed=seed + 100)
    y = torch.randint(0, classes, (17,), generator=generator(seed))
    present = torch.rand(classes, generator=generator(seed)) < 0.8
    held = [c for c in range(classes) if present[c] and (y == c).any()]
    means = torch.stack([z[y == c].mean(0) for c in held])
    valid = present[y]
    wanted = loss.pair(means, prototypes[held]), loss.pair(z[valid], prototypes[y[valid]])
    got = terms(name, z, y, prototypes, present)
    for value, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(value, other)
        torch.testing.assert_close(gradient(value, z), gradient(other, z))


@pytest.mark.parametrize("name", STRUCTURAL)
def test_relations_from_elsewhere_serve_as_target(name):
    loss, prototypes, present = LOSSES[name], randn(5, 7, seed=1), torch.tensor([True] * 4 + [False])
    if name == "gcsa":
        matrix = prototypes @ prototypes.T
    else:
        unit = prototypes / prototypes.norm(dim=1, keepdim=True)
        matrix = torch.cdist(unit, unit).square()
    matrix[4] = matrix[:, 4] = NAN
    z, y = randn(11, 6, seed=3), torch.arange(11) % 5
    got = alignment_terms(loss, z, y, loss.relations(matrix, present), present)
    wanted = alignment_terms(loss, z, y, loss.target(prototypes, present), present)
    torch.testing.assert_close(got, wanted)
    assert all(value > 0 for value in got)


def test_only_relational_losses_have_relations():
    assert [name for name, loss in LOSSES.items() if loss.relations] == STRUCTURAL
    assert [name for name, loss in LOSSES.items() if loss.kind != "coordinates"] == STRUCTURAL


@pytest.mark.parametrize(("name", "kind", "text"), [("mse", "gram", "needs"), ("rcsa", "coordinates", "takes no")])
def test_a_kind_that_does_not_fit_the_relations_is_refused(name, kind, text):
    with pytest.raises(ValueError, match=rf"kind = '{kind}' {text} `relations`"):
        dataclasses.replace(LOSSES[name], kind=kind)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("missing", ["mask", "self"])
def test_an_epoch_prepared_at_once_equals_one_batch_at_a_time(name, missing):
    loss, present = LOSSES[name], torch.tensor([True, True, False, True, True])
    missing = missing if name in COORDINATE else "mask"
    target = loss.target(randn(5, 6, seed=1), present)
    labels = torch.randint(0, 5, (643,), generator=generator()).split(64)  # more batches than are prepared at once
    z = randn(643, 6).split(64)
    prepared = batch_targets(loss, labels, target, present, missing=missing, dtype=torch.float64)
    for batch, x, y in zip(prepared, z, labels, strict=True):
        wanted = alignment_terms(loss, x, y, target, present, missing=missing)
        torch.testing.assert_close(batch(x), torch.stack(wanted), atol=1e-12, rtol=1e-9)


def test_an_epoch_is_prepared_in_float32_unless_asked():
    (batch,) = batch_targets(LOSSES["gcsa"], [Y], LOSSES["gcsa"].target(f64(PG), ALL), ALL)
    terms = batch(f64(Z))
    assert terms.dtype == torch.float32
    assert terms.tolist() == pytest.approx([0.121090, 0.286426], abs=1e-5)


# Degenerate cases, row by row


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_label_of_the_batch_has_a_prototype(name, dtype):
    z = randn(6, 3, dtype=dtype).requires_grad_()
    for value in terms(name, z, Y, torch.full((3, 3), NAN, dtype=dtype), torch.zeros(3, dtype=torch.bool)):
        assert_silent(value, z)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1, 2, 7, 31, 100])
def test_single_class_batch(name, dtype, size):
    z, y = randn(size, 16, dtype=dtype).requires_grad_(), torch.ones(size, dtype=torch.int64)
    prototypes = randn(3, 16, seed=1, dtype=dtype)
    proto, inst = terms(name, z, y, prototypes, ALL)
    assert_silent(proto, z)
    if name in STRUCTURAL:
        assert_silent(inst, z)
    else:
        torch.testing.assert_close(inst, LOSSES[name].pair(z, prototypes[y]))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_classes_have_one_shape_but_structure_within(name, dtype):
    z, y = randn(9, 5, dtype=dtype).requires_grad_(), torch.arange(9) % 2
    proto, inst = terms(name, z, y, randn(3, 5, seed=1, dtype=dtype), ALL)
    if name in STRUCTURAL:
        assert_silent(proto, z)
    else:
        assert proto > 0
    assert inst > 0
    assert gradient(inst, z).norm() > 0


@pytest.mark.parametrize("name", STRUCTURAL)
@pytest.mark.parametrize("valid", [1, 2])
def test_one_or_two_valid_samples_have_no_structure(name, valid):
    z = randn(6, 3).requires_grad_()
    y = torch.tensor([0, 1] + [2] * 4)[2 - valid : 6]
    for value in terms(name, z[: len(y)], y, f64(PG), WITHOUT_2):
        assert_silent(value, z)


@pytest.mark.parametrize("name", LOSSES)
def test_samples_of_a_missing_class_change_nothing(name):
    z, y = f64(Z).requires_grad_(), Y
    kept = WITHOUT_2[y]
    wild = torch.where(kept.unsqueeze(1), z, 1e3 * z)
    got = terms(name, wild, y, f64(PG), WITHOUT_2)
    wanted = terms(name, z[kept], y[kept], f64(PG), WITHOUT_2)
    for value, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(value, other)
        assert torch.equal(gradient(value, z)[~kept], torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("name", LOSSES)
def test_nan_in_absent_rows_is_never_read(name):
    z, dirty = f64(Z).requires_grad_(), f64(PG)
    dirty[2] = NAN
    for value, other in zip(terms(name, z, Y, dirty, WITHOUT_2), terms(name, z, Y, f64(PG), WITHOUT_2), strict=True):
        assert torch.equal(value, other)
        assert torch.equal(gradient(value, z), gradient(other, z))


@pytest.mark.parametrize("name", STRUCTURAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
def test_equal_prototypes_ask_for_nothing(name, dtype, scale):
    z, y = randn(20, 8, dtype=dtype).requires_grad_(), torch.arange(20) % 5
    present = torch.ones(5, dtype=torch.bool)
    for value in terms(name, z, y, scale * randn(1, 8, seed=1, dtype=dtype).expand(5, 8), present):
        assert_silent(value, z)
    # Equal prototypes among others are silent too, if the batch has only their classes.
    prototypes = torch.cat([scale * randn(1, 8, seed=1, dtype=dtype).expand(5, 8), randn(3, 8, dtype=dtype)])
    for value in terms(name, z, y, prototypes, torch.ones(8, dtype=torch.bool)):
        assert_silent(value, z)


@pytest.mark.parametrize("name", STRUCTURAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [3, 7, 32, 100])
@pytest.mark.parametrize("d", [2, 64, 512])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
def test_collapsed_features_are_left_alone(name, dtype, n, d, scale):
    z = (scale * randn(1, d, dtype=dtype).abs().expand(n, d)).clone().requires_grad_()
    b = randn(n, d, seed=1, dtype=dtype).requires_grad_()
    loss, y, present = LOSSES[name], torch.arange(n), torch.ones(n, dtype=torch.bool)
    assert_silent(loss.pair(z, b), z, b)
    assert_silent(loss.pair(b, z), z, b)
    for labels in (y, y // 2, y % 3):
        for value in terms(name, z, labels, b.detach(), present):
            assert_silent(value, z)


@pytest.mark.parametrize("name", STRUCTURAL)
@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_rows_have_no_shape(name, n):
    a, b = randn(n, 5).requires_grad_(), randn(n, 5, seed=1).requires_grad_()
    assert_silent(LOSSES[name].pair(a, b), a, b)
    valid = torch.ones(n, dtype=torch.bool)
    target = LOSSES[name].target(b.detach(), valid)
    for value in alignment_terms(LOSSES[name], a, torch.arange(n), target, valid):
        assert_silent(value, a)


@pytest.mark.parametrize("name", ["rcsa", "cosine"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_of_zero_length_are_left_out(name, dtype):
    loss, kept = LOSSES[name], [0, 1, 3, 5]
    z, prototypes = randn(6, 4, dtype=dtype), randn(6, 4, seed=1, dtype=dtype)
    z[2] = 0
    prototypes[4] = 0
    z.requires_grad_()
    wanted = loss.pair(z[kept], prototypes[kept])
    y, present = torch.arange(6), torch.ones(6, dtype=torch.bool)
    for value in (loss.pair(z, prototypes), *terms(name, z, y, prototypes, present)):
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(gradient(value, z), gradient(wanted, z))


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_of_zeros_is_finite(name):
    z = torch.zeros(6, 3).requires_grad_()
    for value in terms(name, z, Y, torch.tensor(PG, dtype=torch.float32), ALL):
        assert torch.isfinite(value)
        assert torch.isfinite(gradient(value, z)).all()
        if name != "mse":
            assert_silent(value, z)


@pytest.mark.parametrize("name", ["gcsa", "rcsa", "cosine"])
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_a_far_prototype_leaves_the_other_classes_their_target(name, scale):
    """A server accepts rows of norm up to 1e6; such a row must not change batches without its class."""
    prototypes, z = scale * randn(6, 64).abs().float(), randn(10, 64, seed=1).float()
    labels, present = torch.arange(1, 6).repeat_interleave(2), torch.ones(6, dtype=torch.bool)
    wanted = terms(name, z, labels, prototypes.double(), present)
    prototypes[0] = 1e6 / 8
    found = terms(name, z, labels, prototypes, present)
    assert min(wanted) > 0.01
    assert [f.item() for f in found] == pytest.approx([w.item() for w in wanted], rel=1e-4)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("length", [1e-8, 1e-13, 1e-19, 1e-21, 1e-23, 1e-40])
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-8, 1e-13, 1e-22])
def test_tiny_prototypes_and_features_are_finite(name, length, size):
    z, prototypes = size * randn(6, 8).float(), length * randn(3, 8, seed=1).float()
    z.requires_grad_()
    for value in terms(name, z, Y, prototypes, ALL):
        assert value.isfinite()
        assert gradient(value, z).isfinite().all()
    a, b = z[:3], prototypes
    assert LOSSES[name].pair(a, b).isfinite()
    assert gradient(LOSSES[name].pair(a, b), z).isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_an_empty_batch_says_nothing(name):
    for value in terms(name, torch.zeros(0, 3), Y[:0], torch.tensor(PG, dtype=torch.float32), ALL):
        assert value.item() == 0


@pytest.mark.parametrize("name", LOSSES)
def test_features_that_are_not_numbers_are_not_hidden(name):
    z = f64(Z)
    z[1, 1] = NAN
    assert all(value.isnan() for value in terms(name, z, Y, f64(PG), ALL))


# Numerics


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1e2, 1e4])
def test_gcsa_ignores_the_scale_of_the_features_in_float32(scale):
    z, y = randn(32, 64, dtype=torch.float32), torch.arange(32) % 10
    prototypes, present = randn(10, 64, seed=1, dtype=torch.float32), torch.ones(10, dtype=torch.bool)
    for value, other in zip(
        terms("gcsa", scale * z, y, prototypes, present), terms("gcsa", z, y, prototypes, present), strict=True
    ):
        assert value.item() == pytest.approx(other.item(), abs=1e-5)


def test_gcsa_survives_a_large_common_offset_in_float32():
    z, y = randn(32, 64), torch.arange(32) % 10
    prototypes, present = randn(10, 64, seed=1), torch.ones(10, dtype=torch.bool)
    wanted = terms("gcsa", z, y, prototypes, present)
    got = terms("gcsa", (z + 100).float(), y, (prototypes + 100).float(), present)
    for value, other in zip(got, wanted, strict=True):
        assert value.item() == pytest.approx(other.item(), abs=2e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_compared_in_float32(name, dtype):
    z = (10 * randn(32, 64)).to(dtype).requires_grad_()
    y, prototypes, present = torch.arange(32) % 10, randn(10, 64, seed=1).to(dtype), torch.ones(10, dtype=torch.bool)
    wanted = terms(name, z.double(), y, prototypes.double(), present)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = terms(name, z, y, prototypes, present)
        pair = LOSSES[name].pair(z, prototypes[y])
    assert pair.item() == pytest.approx(wanted[1].item(), rel=1e-5, abs=1e-6)
    for value, other in zip(got, wanted, strict=True):
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(other.item(), rel=1e-5, abs=1e-6)
        assert torch.isfinite(gradient(value, z)).all()


@pytest.mark.parametrize("name", STRUCTURAL)
def test_collapsed_features_are_left_alone_under_autocast(name):
    z = randn(1, 16, dtype=torch.float32).expand(20, 16).clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = terms(name, z, torch.arange(20) % 5, randn(5, 16, seed=1), torch.ones(5, dtype=torch.bool))
    for value in values:
        assert_silent(value, z)


# Errors


def test_a_target_of_another_shape_is_named():
    prototypes = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"relations between classes, \[C, C\] with C = 3 .*, got \(3, 4\)"):
        alignment_terms(LOSSES["gcsa"], torch.zeros(6, 4), Y, prototypes, ALL)
    with pytest.raises(ValueError, match=r"prototypes, \[C, d\] with C = 2 as in `present`, got \(3, 4\)"):
        alignment_terms(LOSSES["mse"], torch.zeros(6, 4), Y, prototypes, ALL[:2])


@pytest.mark.parametrize("name", COORDINATE)
def test_features_of_another_width_are_named(name):
    with pytest.raises(ValueError, match=r"the same width, got \(6, 3\) and \(6, 4\) .* or use 'gcsa' or 'rcsa'"):
        alignment_terms(LOSSES[name], torch.zeros(6, 3), Y, torch.zeros(3, 4), ALL)


@pytest.mark.parametrize("name", STRUCTURAL)
def test_a_relational_loss_cannot_fill_missing_classes(name):
    with pytest.raises(ValueError, match=r"`missing` = 'self' is for coordinate losses .* takes 'mask'"):
        terms(name, f64(Z), Y, f64(PG), WITHOUT_2, missing="self")


@pytest.mark.parametrize("name", LOSSES)
def test_pairs_need_as_many_rows(name):
    with pytest.raises(ValueError, match=r"two matrices of .*, got \(4, 3\) and \(3, 3\)"):
        LOSSES[name].pair(torch.zeros(4, 3), torch.zeros(3, 3))


@pytest.mark.parametrize("name", COORDINATE)
def test_coordinates_need_the_same_width(name):
    with pytest.raises(ValueError, match=r"the same shape, got \(4, 3\) and \(4, 2\)"):
        LOSSES[name].pair(torch.zeros(4, 3), torch.zeros(4, 2))


# A loss made of its pair function


def made_of_pair(name):
    return AlignmentLoss.of_pair(LOSSES[name].pair, weights=LOSSES[name].weights)


@pytest.mark.parametrize("missing", ["mask", "self"])
@pytest.mark.parametrize("present", [ALL, WITHOUT_2, ~ALL])
@pytest.mark.parametrize("name", COORDINATE)
def test_a_loss_made_of_its_pair_function_is_the_written_one(name, present, missing):
    z, prototypes, made = f64(Z).requires_grad_(), f64(PG), made_of_pair(name)
    got = alignment_terms(made, z, Y, made.target(prototypes, present), present, missing=missing)
    wanted = terms(name, z, Y, prototypes, present, missing=missing)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(gradient(sum(got), z), gradient(sum(wanted), z))
    assert (made.kind, made.weights) == ("coordinates", LOSSES[name].weights)


def test_losses_made_of_a_pair_function_train_several_clients_together():
    made, features = made_of_pair("mse"), randn(3, len(Y), 2)
    (batch,) = batch_targets(made, [Y], f64(PG)[:, :2], ALL, dtype=torch.float64)
    together = torch.vmap(lambda x: made.compare(x, *batch.constants))(features)
    torch.testing.assert_close(together, torch.stack([batch(x) for x in features]))


def test_rows_that_do_not_count_cannot_make_a_pair_function_divide_by_zero():
    made = AlignmentLoss.of_pair(lambda a, b: (a / b).mean(), weights=(1.0, 1.0))
    z, prototypes = f64(Z).requires_grad_(), f64(PG).abs() + 1
    got = alignment_terms(made, z, Y, made.target(prototypes, WITHOUT_2), WITHOUT_2)
    assert all(value.isfinite() for value in got)
    assert gradient(sum(got), z).isfinite().all()


def test_a_pair_function_meets_features_of_its_width_only():
    made = made_of_pair("mse")
    with pytest.raises(ValueError, match=r"the same width, got \(6, 3\) and \(6, 4\)"):
        alignment_terms(made, torch.zeros(6, 3), Y, torch.zeros(3, 4), ALL)
