"""Gradient rounds: a loop-written sibling, automatic differentiation, worked numbers."""

import pytest
import torch

from isoproto.common.classifier import Classifier, log_prior, log_probabilities, solve
from isoproto.common.gradients import class_gradients, preconditioner, stepped
from isoproto.common.statistics import Totals
from tests import plain_common as plain
from tests.points import randn
from tests.unit.common.test_statistics import samples


@pytest.fixture
def frame():
    phi, labels = samples(n=12)
    return phi, labels, Classifier(randn(4, 5, seed=3), torch.tensor([True, True, True, False]))


def test_they_are_what_loops_over_samples_give(frame):
    phi, labels, classifier = frame
    prior = log_prior(torch.tensor([4, 4, 4, 0]))
    found = class_gradients(phi, labels, classifier, 0.5, prior)
    wanted = plain.gradients(phi, labels, classifier.rows, classifier.present.tolist(), 0.5, prior)
    torch.testing.assert_close(found, wanted)
    assert found[3].abs().max() == 0  # nobody holds it, so nothing moves its row


def test_they_are_the_derivative_of_the_loss_over_the_temperature(frame):
    phi, labels, classifier = frame
    prior = log_prior(torch.tensor([4, 4, 4, 0]))
    rows = classifier.rows.clone().requires_grad_()
    flat, repeated = phi.flatten(0, 1), labels.repeat_interleave(2)
    log_probs = log_probabilities(Classifier(rows, classifier.present).logits(flat), 0.5, prior)
    loss = -log_probs.gather(1, repeated.unsqueeze(1)).sum() / 2  # of two versions each
    (derivative,) = torch.autograd.grad(loss, rows)
    found = class_gradients(phi, labels, classifier, 0.5, prior)
    torch.testing.assert_close(found * 0.5, derivative)


def test_they_add_up_over_clients(frame):
    phi, labels, classifier = frame
    prior = torch.zeros(4)
    parts = [class_gradients(phi[i : i + 4], labels[i : i + 4], classifier, 1.0, prior) for i in (0, 4, 8)]
    torch.testing.assert_close(sum(parts), class_gradients(phi, labels, classifier, 1.0, prior))


def test_no_samples_no_gradient(frame):
    phi, labels, classifier = frame
    found = class_gradients(phi[:0], labels[:0], classifier, 1.0, torch.zeros(4))
    assert found.shape == (4, 5)
    assert found.abs().max() == 0


def test_a_step_by_hand():
    """M = 2 I: the step is 4 * 0.5 / (0.5 * 8) * g / 2 = g / 4, and the pull takes 0.5 * 0.1 of the way back."""
    rows, start, gradient = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[4.0, -8.0]])
    factor = torch.eye(2).double() * 2**0.5
    found = stepped(
        rows.double(), start.double(), gradient.double(), factor, samples=8, temperature=0.5, step=0.5, pull=0.1
    )
    torch.testing.assert_close(found, torch.tensor([[3 - 1 - 0.1, 2.0]]).double())


def test_the_preconditioner_is_the_mean_product_written_out():
    phi, labels = samples(n=12)
    totals = Totals.of(phi, labels, 3)
    moment = torch.zeros(5, 5, dtype=torch.float64)
    for i in range(12):
        for v in range(2):
            x = torch.cat([phi[i, v], torch.ones(1)])
            for j in range(5):
                for k in range(5):
                    moment[j, k] += x[j] * x[k] / (2 * 12)
    # A bias has no versions of its own: its product with a sample is that of the sample's mean.
    variance = totals.scatter.diagonal().mean() / (12 - 3)
    factor = preconditioner(totals, 0.3)
    torch.testing.assert_close(factor @ factor.T, moment + 0.3 * variance * torch.eye(5).double())


@pytest.mark.parametrize("temperature", [0.25, 1.0])
def test_full_steps_never_raise_the_training_loss(temperature):
    phi, labels = samples(n=60, width=5)
    phi = phi + torch.eye(5).double()[labels].unsqueeze(1)
    totals = Totals.of(phi, labels, 3)
    (start,) = solve(totals, [0.1])
    factor, prior = preconditioner(totals, 0.1), torch.zeros(3)
    rows, losses = start.rows, []
    for _ in range(6):
        now = Classifier(rows, start.present)
        losses.append(plain.loss(rows, start.present.tolist(), phi[:, :1], labels, temperature, prior))
        rows = stepped(
            rows,
            start.rows,
            class_gradients(phi[:, :1], labels, now, temperature, prior),
            factor,
            samples=60,
            temperature=temperature,
            step=1.0,
            pull=0.0,
        )
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
