"""The closed form: a loop-written sibling, worked numbers, and totals of odd kinds."""

import math

import pytest
import torch

from isoproto.common.classifier import Classifier, covariance_of, factorised, log_prior, log_probabilities, solve
from isoproto.common.statistics import Block, Totals, total
from tests import plain_common as plain
from tests.points import randn
from tests.unit.common.test_statistics import samples


def test_it_is_what_an_explicit_inverse_gives():
    phi, labels = samples(n=30)
    counts, sums, scatter = plain.pooled([(phi, labels)], 4, 4)
    for b, found in zip((0.01, 0.3, 1.0), solve(Totals.of(phi, labels, 4), (0.01, 0.3, 1.0)), strict=True):
        torch.testing.assert_close(found.rows, plain.solved(counts, sums, scatter, b))
        assert found.present.tolist() == [True, True, True, False]


def test_worked_numbers_in_two_dimensions():
    """Classes at (-1, 0) and (1, 0), each with samples one to either side in both directions.

    W = diag(4, 4), N - C = 6, so the covariance is 2/3 of the identity whatever the shrinkage; w = 1.5 m, a = -0.75.
    """
    cross = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).double()
    phi = torch.cat([cross + torch.tensor([-1.0, 0.0]), cross + torch.tensor([1.0, 0.0])]).unsqueeze(1)
    labels = torch.arange(8) // 4
    for b in (0.1, 0.9):
        (found,) = solve(Totals.of(phi, labels, 2), [b])
        torch.testing.assert_close(found.rows, torch.tensor([[-1.5, 0.0, -0.75], [1.5, 0.0, -0.75]]).double())


def test_it_tells_classes_apart():
    phi = randn(300, 1, 6) + 3 * torch.eye(6).double()[torch.arange(300) % 6].unsqueeze(1)
    labels = torch.arange(300) % 6
    (found,) = solve(Totals.of(phi, labels, 6), [0.1])
    assert (found.logits(phi[:, 0]).argmax(1) == labels).double().mean() > 0.9


def test_a_class_that_nobody_holds_has_no_logit_and_no_probability():
    phi, labels = samples(n=12)
    (found,) = solve(Totals.of(phi, labels, 5), [0.1])
    logits = found.logits(phi[:, 0])
    assert logits[:, 3:].eq(-math.inf).all()
    assert logits[:, :3].isfinite().all()
    probs = log_probabilities(logits, 1.0, log_prior(torch.tensor([1, 1, 1, 0, 0]))).exp()
    assert probs[:, 3:].eq(0).all()
    torch.testing.assert_close(probs.sum(1), torch.ones(12).double())


def test_one_class_in_all_is_certain():
    phi, _ = samples(n=5)
    (found,) = solve(Totals.of(phi, torch.full((5,), 2), 4), [0.1])
    assert found.logits(phi[:, 0]).argmax(1).tolist() == [2] * 5


def test_nobody_holds_anything():
    """All logits are zero, so that the prior decides."""
    (found,) = solve(Totals.of(torch.zeros(0, 1, 3).double(), torch.zeros(0, dtype=torch.int64), 4), [0.1])
    assert found.logits(randn(2, 3)).tolist() == [[0.0] * 4] * 2
    probs = log_probabilities(found.logits(randn(1, 3)), 1.0, log_prior(torch.tensor([7, 0, 0, 0]))).exp()
    assert probs.argmax().item() == 0


def test_one_sample_a_client_is_the_pooled_data():
    phi, labels = samples(n=20, versions=1)
    each = [Block.of(phi[i : i + 1], labels[i : i + 1]) for i in range(20)]
    assert all(block.factor.abs().max() == 0 for block in each)  # one sample does not scatter about itself
    (found,), (wanted,) = (solve(t, [0.1]) for t in (total(each, 3, 4), Totals.of(phi, labels, 3)))
    torch.testing.assert_close(found.rows, wanted.rows, rtol=0, atol=1e-9)


def test_fewer_samples_than_coordinates_is_solved():
    phi, labels = samples(n=4, versions=1, width=30, classes=2)
    (found,) = solve(Totals.of(phi, labels, 2), [0.01])
    assert found.rows.isfinite().all()
    assert found.logits(phi[:, 0]).argmax(1).tolist() == labels.tolist()


def test_one_sample_of_each_class_has_no_scatter_and_the_nearest_mean_answers():
    phi = randn(3, 1, 4)
    (found,) = solve(Totals.of(phi, torch.arange(3), 3), [0.1])
    asked = randn(50, 4, seed=1)
    assert torch.equal(found.logits(asked).argmax(1), torch.cdist(asked, phi[:, 0]).argmin(1))


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-20, 1e15])
def test_samples_that_are_all_the_same_give_finite_rows(value):
    phi = torch.full((6, 1, 3), value, dtype=torch.float64)
    (found,) = solve(Totals.of(phi, torch.arange(6) % 2, 2), [0.01])
    assert found.rows.isfinite().all()
    logits = found.logits(phi[:, 0])
    torch.testing.assert_close(logits[:, 0], logits[:, 1])  # nothing tells the two classes apart


def test_a_feature_that_never_changes_is_harmless():
    phi, labels = samples(n=30)
    phi[:, :, 1] = 5.0
    (found,) = solve(Totals.of(phi, labels, 3), [0.03])
    assert found.rows.isfinite().all()
    # It moves every class's logit alike, up to the same constant: probabilities do not change.
    rows = torch.cat([found.rows[:, :1], found.rows[:, 2:]], 1)
    without = Classifier(rows, found.present)
    shift = found.logits(phi[:, 0]) - without.logits(torch.cat([phi[:, 0, :1], phi[:, 0, 2:]], 1))
    torch.testing.assert_close(shift.softmax(1), torch.full_like(shift, 1 / 3))


@pytest.mark.parametrize("least", [-1e-17, -1e-9, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_rounding_made_negative_is_raised_and_no_more(least, dtype):
    basis = torch.linalg.qr(randn(6, 6)).Q.to(dtype)
    matrix = basis * torch.tensor([3.0, 2.0, 1.0, 1.0, 1.0, least], dtype=dtype) @ basis.T
    factor = factorised(matrix)
    assert factor.isfinite().all()
    raised = factor @ factor.T - matrix
    assert raised.diagonal().max() <= 20 * max(-least, 100 * torch.finfo(dtype).eps)


def test_a_matrix_without_fault_stays_as_it_is():
    matrix = randn(9, 5).double().T @ randn(9, 5).double()
    assert torch.equal(factorised(matrix), torch.linalg.cholesky(matrix))


def test_totals_that_are_not_numbers_are_an_error():
    phi, labels = samples()
    phi[0, 0, 0] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError):
        solve(Totals.of(phi, labels, 3), [0.1])


def test_the_variance_is_never_zero():
    totals = Totals.of(torch.zeros(4, 1, 2).double(), torch.zeros(4, dtype=torch.int64), 1)
    covariance, variance = covariance_of(totals)
    assert covariance.abs().max() == 0
    assert variance > 0


def test_the_prior_has_no_zero_and_sums_to_one():
    prior = log_prior(torch.tensor([0, 3, 0])).exp()
    torch.testing.assert_close(prior, torch.tensor([0.1, 3.1, 0.1]) / 3.3)


def test_a_temperature_sharpens():
    logits = torch.tensor([[0.0, 1.0]]).double()
    prior = torch.zeros(2)
    assert log_probabilities(logits, 2.0, prior).exp()[0, 1].item() == pytest.approx(1 / (1 + math.exp(-2)))
