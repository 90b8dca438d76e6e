"""Mixtures of predictions: a loop-written sibling, worked numbers, missing predictions."""

import math

import pytest
import torch

from isoproto.common.mixture import WEIGHTS, best_weights, mixed, mixture_errors
from tests.points import randn


def log_probs(n=6, classes=3, seed=0):
    return randn(n, classes, seed=seed).log_softmax(1)


def plain_mixed(each, weights):
    """Return the mixed probabilities of every sample, by loops."""
    there = [(p, float(w)) for p, w in zip(each, weights, strict=True) if p is not None and float(w) > 0]
    everything = sum(w for _, w in there)
    found = []
    for i in range(len(there[0][0])):
        scores = [
            math.exp(sum(w / everything * max(-30.0, float(p[i, c])) for p, w in there))
            for c in range(there[0][0].shape[1])
        ]
        found.append([s / sum(scores) for s in scores])
    return torch.tensor(found).double()


@pytest.mark.parametrize("weights", [(1.0, 0.0, 0.0), (0.2, 0.3, 0.5), (0.0, 0.1, 0.9)])
def test_it_is_what_loops_give(weights):
    each = [log_probs(seed=s) for s in (0, 1, 2)]
    found = mixed(each, torch.tensor(weights)).exp()
    torch.testing.assert_close(found, plain_mixed(each, weights))


def test_errors_are_counted_for_every_mixture():
    each, labels = [log_probs(seed=s) for s in (0, 1, 2)], torch.tensor([0, 1, 2, 0, 1, 2])
    found = mixture_errors(each, labels)
    assert len(found) == len(WEIGHTS) == 66
    for errors, weights in zip(found.tolist(), WEIGHTS, strict=True):
        assert errors == int((plain_mixed(each, weights).argmax(1) != labels).sum())


def test_a_missing_prediction_leaves_its_weight_to_the_others():
    one, other = log_probs(seed=0), log_probs(seed=1)
    found = mixed([one, None, other], torch.tensor([0.2, 0.4, 0.4]))
    torch.testing.assert_close(found, mixed([one, None, other], torch.tensor([1 / 3, 0.0, 2 / 3])))


def test_if_all_weight_is_on_what_is_missing_the_others_share_alike():
    one, other = log_probs(seed=0), log_probs(seed=1)
    found = mixed([one, other, None], torch.tensor([0.0, 0.0, 1.0]))
    torch.testing.assert_close(found, mixed([one, other, None], torch.tensor([0.5, 0.5, 0.0])))


def test_nobody_rules_a_class_out_alone():
    sure = torch.tensor([[-math.inf, 0.0]]).double()
    other = torch.tensor([[0.99, 0.01]]).double().log()
    found = mixed([sure, other, None], torch.tensor([0.1, 0.9, 0.0]))
    assert found.isfinite().all()
    assert found.argmax().item() == 0  # 0.9 * log 99 = 4.1 beats 0.1 * 30 = 3


def test_of_equal_mixtures_everybodys_classifier_wins():
    assert best_weights(torch.zeros(66), None).tolist() == [1.0, 0.0, 0.0]
    assert best_weights(torch.zeros(66), None, alone=True).tolist() == [0.0, 1.0, 0.0]


def test_the_errors_of_all_clients_count_like_a_hundred_samples():
    own = torch.where(WEIGHTS[:, 0] == 1, 1, 0)  # one own sample speaks against everybody's classifier
    weak = torch.where(WEIGHTS[:, 0] == 1, 0.0, 0.005).double()  # half a sample speaks for it
    strong = torch.where(WEIGHTS[:, 0] == 1, 0.0, 0.02).double()  # two samples do
    assert best_weights(own, weak)[0] < 1
    assert best_weights(own, strong)[0] == 1


def test_alone_never_uses_everybodys_classifier_even_if_only_it_is_right():
    errors = torch.where(WEIGHTS[:, 0] > 0, 0, 50)
    assert best_weights(errors, None, alone=True)[0] == 0
