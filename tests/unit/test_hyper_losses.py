"""HPCL and HPAL: numbers worked by hand, gradients, degenerate cases."""

import pytest
import torch
from torch.nn import functional

from isoproto.losses.anchors import Anchors, client_margin, hpal, hpcl

P = [[1.5, 0.25, 0.5], [0.5, 2, 0.5], [0.5, 1, 2.5]]  # class means
S = [[[0.5, -1, 0.2], [1, 0.3, -0.4]], [[-0.2, 0.8, 1], [0.1, -0.5, 0.6]], [[0.9, 0.1, -1.2], [-0.7, 0.4, 0.3]]]
H = [[0.75, -0.35, -0.1], [-0.05, 0.15, 0.8], [0.1, 0.25, -0.45]]
Z = [[1, 0.5, 0.2]]
ZERO = torch.tensor([0])
ALL = torch.tensor([True, True, True])
WITHOUT_2 = torch.tensor([True, True, False])
FORMS = ["paper", "paper_mean", "normalised", "normalised_mean"]
PRECISIONS = [(torch.float64, 1e-6), (torch.float32, 1e-5)]
precisions = pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
NAN = float("nan")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def directions():
    return functional.normalize(f64(S), dim=2).mean(1)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(value, x):
    return torch.autograd.grad(value, x, retain_graph=True)[0]


def both(x, y, a, h, present, *, form="paper", **contrast):
    return torch.stack([hpcl(x, y, a, present, **contrast), hpal(x, y, h, present, form=form)])


# Worked numbers


@precisions
def test_margins_of_e7(dtype, tolerance):
    p = f64(P).to(dtype)
    margins = [client_margin(p, ALL), client_margin(p, WITHOUT_2), client_margin(p, WITHOUT_2, norm="present")]
    margins.append(client_margin(p, ALL, norm="present"))
    assert [m.item() for m in margins] == pytest.approx([3.305064, 1.007782, 2.015564, 2.203376], abs=tolerance)
    assert margins[0].dtype == dtype


HPCL_BY_TEMPERATURE = {
    0.05: [0.001851, 0.013595, 3.732946, 59.810010],
    0.5: [0.659052, 0.760581, 1.263009, 6.542176],
    1.0: [0.859861, 0.918753, 1.177710, 3.641200],
}


@pytest.mark.parametrize("temperature", HPCL_BY_TEMPERATURE)
@pytest.mark.parametrize("column", range(4))
@precisions
def test_contrast_of_e8(temperature, column, dtype, tolerance):
    margin = [0, 0.1, 0.5, client_margin(f64(P), ALL)][column]
    z, a, wanted = f64(Z).to(dtype), directions().to(dtype), HPCL_BY_TEMPERATURE[temperature][column]
    options = {"temperature": temperature, "margin": margin}
    anchors = Anchors.of(a, f64(H).to(dtype), ALL, **options)
    tolerance = max(tolerance, 1e-6 * wanted)  # float32 keeps six digits behind 59.8
    assert hpcl(z, ZERO, a, ALL, **options).item() == pytest.approx(wanted, abs=tolerance)
    assert anchors(z, ZERO)[0].item() == pytest.approx(wanted, abs=tolerance)


@precisions
def test_additive_margin_of_e8(dtype, tolerance):
    z, a = f64(Z).to(dtype), directions().to(dtype)
    options = {"temperature": 0.5, "margin": 0.5, "additive": True}
    assert hpcl(z, ZERO, a, ALL, **options).item() == pytest.approx(0.761589, abs=tolerance)
    assert Anchors.of(a, a, ALL, **options)(z, ZERO)[0].item() == pytest.approx(0.761589, abs=tolerance)


@pytest.mark.parametrize(("form", "wanted"), [*zip(FORMS, [0.437500, 0.145833, 0.413854, 0.137951], strict=True)])
@precisions
def test_pull_of_e9(form, wanted, dtype, tolerance):
    z, h = f64(Z).to(dtype), f64(H).to(dtype)
    assert hpal(z, ZERO, h, ALL, form=form).item() == pytest.approx(wanted, abs=tolerance)
    assert Anchors.of(h, h, ALL, form=form)(z, ZERO)[1].item() == pytest.approx(wanted, abs=tolerance)


def test_far_coordinates_of_e9_pull_with_constant_force():
    z, h = f64([[2.5, -1.5, 0.2]]).requires_grad_(), f64(H)
    value = hpal(z, ZERO, h, ALL)
    assert value.item() == pytest.approx(1.945, abs=1e-6)
    torch.testing.assert_close(gradient(value, z), f64([[1, -1, 0.3]]))


# Definition against training path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "contrast", [{}, {"margin": 0.3}, {"margin": 0.7, "additive": True}, {"additive": True}], ids=str
)
def test_anchors_give_the_definitions_and_their_gradients(form, contrast):
    y, present = torch.arange(12) % 5, torch.tensor([True, True, False, True, True])
    x, a, h = (2 * randn(12, 7)).requires_grad_(), randn(5, 7, seed=1) / 3, randn(5, 7, seed=2)
    a[2] = h[2] = NAN
    wanted = both(x, y, a, h, present, form=form, temperature=0.2, **contrast)
    got = Anchors.of(a, h, present, form=form, temperature=0.2, **contrast)(x, y)
    torch.testing.assert_close(got, wanted)
    for term in range(2):
        torch.testing.assert_close(gradient(got[term], x), gradient(wanted[term], x))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("additive", [False, True])
def test_gradcheck(form, additive):
    x, y = randn(6, 4).requires_grad_(), torch.tensor([0, 1, 2, 2, 3, 0])
    a, h, present = randn(4, 4, seed=1), randn(4, 4, seed=2), torch.tensor([True, True, True, False])
    anchors = Anchors.of(a, h, present, temperature=0.3, margin=0.2, additive=additive, form=form)
    assert torch.autograd.gradcheck(lambda x: anchors(x, y), (x,))


def test_contrast_is_a_cross_entropy_with_shifted_logits():
    x, y, a = randn(9, 6), torch.arange(9) % 4, randn(4, 6, seed=1) / 3
    cosines = functional.normalize(x, dim=1) @ a.T
    shifted = cosines + 0.4 * (1 - functional.one_hot(y, 4))
    wanted = functional.cross_entropy(shifted / 0.05, y)
    torch.testing.assert_close(hpcl(x, y, a, torch.ones(4, dtype=torch.bool), margin=0.4), wanted)


def test_paper_pull_is_smooth_l1_summed_over_coordinates():
    x, y, h = 2 * randn(9, 6), torch.arange(9) % 4, randn(4, 6, seed=1)
    wanted = functional.smooth_l1_loss(x, h[y], reduction="sum") / 9
    torch.testing.assert_close(hpal(x, y, h, torch.ones(4, dtype=torch.bool)), wanted)


def test_absent_classes_are_no_negatives_and_their_samples_do_not_count():
    x, y, a, h = randn(8, 3), torch.arange(8) % 3, randn(3, 3, seed=1), randn(3, 3, seed=2)
    kept = y < 2
    wanted = both(x[kept], y[kept], a[:2], h[:2], ALL[:2])
    torch.testing.assert_close(both(x, y, a, h, WITHOUT_2), wanted)
    torch.testing.assert_close(Anchors.of(a, h, WITHOUT_2)(x, y), wanted)


def test_clients_trained_together_get_the_gradients_they_get_alone():
    anchors = Anchors.of(randn(5, 6, seed=1), randn(5, 6, seed=2), torch.tensor([True] * 4 + [False]))
    z, y = randn(3, 9, 6), torch.arange(27).view(3, 9) % 5
    grad = torch.func.grad(lambda z, y: anchors(z, y).sum())
    together = torch.func.vmap(grad)(z, y)
    torch.testing.assert_close(together, torch.stack([grad(*client) for client in zip(z, y, strict=True)]))


# Degenerate cases


def silent(value, x):
    return value.item() == 0 and torch.equal(gradient(value, x), torch.zeros_like(x))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("present", [[False] * 3, [False, False, True]], ids=str)
def test_no_sample_has_a_class_that_is_present(form, dtype, present):
    x, y, present = randn(6, 3).to(dtype).requires_grad_(), torch.arange(6) % 2, torch.tensor(present)
    a = torch.full((3, 3), NAN, dtype=dtype)
    a[2] = 1
    for terms in (both(x, y, a, a, present, form=form), Anchors.of(a, a, present, form=form)(x, y)):
        assert terms.dtype == dtype
        assert silent(terms[0], x)
        assert silent(terms[1], x)


@pytest.mark.parametrize("form", ["normalised", "normalised_mean"])
def test_features_of_no_length_get_no_gradient(form):
    x = randn(4, 3)
    x[1] = 0
    x[2] = 1e-9
    x.requires_grad_()
    y, a, h = torch.tensor([0, 1, 2, 2]), randn(3, 3, seed=1), randn(3, 3, seed=2)
    for terms in (both(x, y, a, h, ALL, form=form), Anchors.of(a, h, ALL, form=form)(x, y)):
        assert terms.isfinite().all()
        slope = gradient(terms.sum(), x)
        assert torch.equal(slope[1:3], torch.zeros(2, 3, dtype=torch.float64))
        assert (slope[[0, 3]].norm(dim=1) > 0).all()


def test_means_of_no_length_are_no_danger():
    x = randn(4, 3).requires_grad_()
    terms = Anchors.of(torch.zeros(3, 3), torch.zeros(3, 3), ALL, form="normalised")(x, torch.tensor([0, 1, 2, 2]))
    assert terms[0].item() == pytest.approx(torch.tensor(3.0).log().item())
    assert gradient(terms.sum(), x).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_margin_of_ten_thousand_temperatures_is_finite(dtype):
    x, a, y = randn(4, 3).to(dtype).requires_grad_(), randn(3, 3, seed=1).to(dtype), torch.tensor([0, 1, 2, 2])
    for value in (hpcl(x, y, a, ALL, margin=500.0), Anchors.of(a, a, ALL, margin=500.0)(x, y)[0]):
        assert value.item() == pytest.approx(1e4, rel=0.01)
        assert gradient(value, x).isfinite().all()


@pytest.mark.parametrize("present", [[False, False], [True, False]], ids=str)
@pytest.mark.parametrize("norm", ["literal", "present"])
def test_below_two_classes_there_is_no_margin(present, norm):
    assert client_margin(f64([[1.0, 2.0], [NAN, NAN]]), torch.tensor(present), norm=norm).item() == 0
    assert client_margin(f64([[1.0, 2.0]]), torch.tensor([True]), norm=norm).item() == 0


@pytest.mark.parametrize("form", FORMS)
def test_autocast_changes_nothing(form):
    x, y = 10 * randn(16, 8).float(), torch.arange(16) % 3
    a, h = randn(3, 8, seed=1).float(), randn(3, 8, seed=2).float()
    wanted = both(x, y, a, h, ALL, form=form)
    anchors = Anchors.of(a, h, ALL, form=form)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(both(x, y, a, h, ALL, form=form), wanted)
        torch.testing.assert_close(anchors(x, y), wanted)
        half = anchors(x.bfloat16().requires_grad_(), y)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, wanted, rtol=0.05, atol=0.05)


# Mistakes


@pytest.mark.parametrize(("temperature", "margin"), [(0.0, 0.0), (-1.0, 0.0), (0.05, -0.1)])
def test_temperature_and_margin_are_checked(temperature, margin):
    with pytest.raises(
        ValueError, match=rf"temperature must be > 0 and the margin >= 0, got {temperature} and {margin}"
    ):
        Anchors.of(f64(H), f64(H), ALL, temperature=temperature, margin=margin)


def test_unknown_form():
    with pytest.raises(ValueError, match=r"unknown form 'sum'; `form` must be one of 'paper', .*'normalised_mean'"):
        hpal(f64(Z), ZERO, f64(H), ALL, form="sum")


@pytest.mark.parametrize("loss", [lambda x: hpcl(x, ZERO, f64(H), ALL), lambda x: hpal(x, ZERO, f64(H), ALL),
                                  lambda x: Anchors.of(f64(H), f64(H), ALL)(x, ZERO)])  # fmt: skip
def test_widths_must_agree(loss):
    with pytest.raises(ValueError, match=r"same width, got \(1, 5\) and \(3, 3\); give the model .* feature-dim"):
        loss(torch.zeros(1, 5))
