"""What a client makes of its own samples: cross-validation against a loop-written sibling, and few samples."""

import itertools
import math

import pytest
import torch

from isoproto.common.classifier import Classifier, log_prior
from isoproto.common.own import (
    MOST_LOSS,
    SHRINKAGES,
    TEMPERATURES,
    Choice,
    chosen,
    held_out_losses,
    loss_of,
    own_classifier,
)
from tests import plain_common as plain
from tests.points import randn
from tests.unit.common.test_statistics import samples


def plain_folds(labels):
    """Deal the samples to five folds, class by class in their order."""
    order = [i for c in sorted(set(labels.tolist())) for i in range(len(labels)) if labels[i] == c]
    fold = [0] * len(labels)
    for place, i in enumerate(order):
        fold[i] = place % 5
    return fold


def plain_choice(phi, labels, num_classes):
    fold, best = plain_folds(labels), (math.inf, None)
    for shrinkage, temperature in itertools.product(SHRINKAGES, TEMPERATURES):
        loss = 0.0
        for number in range(5):
            kept = [i for i in range(len(labels)) if fold[i] != number]
            out = [i for i in range(len(labels)) if fold[i] == number]
            counts, sums, scatter = plain.pooled([(phi[kept], labels[kept])], num_classes, phi.shape[2])
            rows = plain.solved(counts, sums, scatter, shrinkage)
            prior = log_prior(counts)
            loss += plain.loss(rows, (counts > 0).tolist(), phi[out], labels[out], temperature, prior)
        if loss < best[0] - 1e-9:
            best = (loss, Choice(shrinkage, temperature))
    return best[1]


@pytest.mark.parametrize(("seed", "apart"), [(0, 1.0), (1, 0.3), (2, 4.0)])
def test_the_choice_is_that_of_loops_over_folds(seed, apart):
    phi, labels = samples(n=23, width=5, seed=seed)
    phi = phi + apart * torch.eye(5).double()[labels].unsqueeze(1)
    assert chosen(phi, labels, 4) == plain_choice(phi, labels, 4)


@pytest.mark.parametrize("n", [0, 1, 9])
def test_few_samples_choose_nothing(n):
    phi, labels = samples(n=n)
    assert chosen(phi, labels, 3) == (0.3, 0.5)


def test_a_class_of_one_sample_is_ruled_out_while_it_is_held_out_and_costs_no_more_than_20():
    phi, labels = samples(n=12, classes=1)
    labels[5] = 1
    assert chosen(phi, labels, 2).shrinkage in SHRINKAGES


def test_samples_that_are_all_the_same_can_be_chosen_by():
    phi = torch.ones(12, 1, 3).double()
    assert chosen(phi, torch.arange(12) % 2, 2).temperature in TEMPERATURES


@pytest.mark.parametrize("width", [2, 300])
@pytest.mark.parametrize("groups", [1, 2])
def test_pictures_of_one_colour_can_be_chosen_by_in_the_precision_of_features(width, groups):
    """Their scatter is the rounding of large sums, which may be negative."""
    kinds = torch.randn(groups, 1, width, generator=torch.Generator().manual_seed(0))
    phi = kinds[torch.arange(80) % groups].expand(80, 5, width)
    choice = chosen(phi, torch.arange(80) % 5, 5)
    found = own_classifier(phi, torch.arange(80) % 5, 5, choice)
    assert choice.temperature in TEMPERATURES
    assert found.rows.isfinite().all()


def test_a_client_without_samples_predicts_nothing():
    nothing = own_classifier(torch.zeros(0, 2, 3), torch.zeros(0, dtype=torch.int64), 4, Choice(0.3, 0.5))
    assert not nothing.present.any()
    assert nothing.logits(randn(2, 3)).eq(0).all()


def test_held_out_losses_are_loops_over_samples():
    phi, labels = samples(n=8)
    classifiers = [Classifier(randn(3, 5, seed=s), torch.tensor([True, True, False])) for s in (1, 2)]
    prior = log_prior(torch.tensor([3, 3, 2]))
    found = held_out_losses(classifiers, phi[:, 0], labels, (0.5, 2.0), prior)
    for (i, classifier), (j, t) in itertools.product(enumerate(classifiers), enumerate((0.5, 2.0))):
        wanted = plain.loss(classifier.rows, classifier.present.tolist(), phi, labels, t, prior)
        assert found[i, j].item() == pytest.approx(wanted)


def test_a_loss_by_hand():
    """1/4 + 1/4, and 2 for what was ruled out."""
    log_probs = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).log()
    assert loss_of(log_probs, torch.tensor([0, 0])).item() == pytest.approx(0.5 + MOST_LOSS)
