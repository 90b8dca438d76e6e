import pytest
import torch
from torch.nn import functional

from isoproto.matching import classifier_retrain
from isoproto.matching.classifier_retrain import fit_meta_features, train_classifier
from isoproto.matching.hyperproto import initial_vectors

NAN = float("nan")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def problem(classes=4, per_class=3, width=6):
    """Return meta features, W, b, wanted gradients of W and b, present. The absent class has gradients of NaN."""
    present = torch.arange(classes) != 2
    wanted = randn(classes, classes, width, seed=3), randn(classes, classes, seed=4)
    for gradient in wanted:
        gradient[2] = NAN
    return randn(classes, per_class, width), randn(classes, width, seed=1), randn(classes, seed=2), *wanted, present


def classifier_gradients(x, labels, weight, bias):
    """Return the mean gradients of cross-entropy with respect to weight and bias, for each class."""
    of_weight, of_bias = [], []
    for c in range(len(weight)):
        w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        loss = functional.cross_entropy(functional.linear(x[labels == c], w, b), labels[labels == c])
        for kept, gradient in zip((of_weight, of_bias), torch.autograd.grad(loss, (w, b)), strict=True):
            kept.append(gradient)
    return torch.stack(of_weight), torch.stack(of_bias)


def test_client_gradients_equal_autograd():
    generator = torch.Generator().manual_seed(3)
    x, labels = torch.randn(9, 4, generator=generator), torch.tensor([0, 0, 2, 1, 2, 2, 1, 0, 1])
    weight, bias = torch.randn(3, 4, generator=generator), torch.randn(3, generator=generator)
    found = classifier_retrain.classifier_gradients(x, labels, weight, bias)
    for ours, theirs in zip(found, classifier_gradients(x, labels, weight, bias), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_steps_equal_double_differentiation_of_one_class_at_a_time():
    features, weight, bias, of_weight, of_bias, present = problem()
    wanted = features.clone()
    for c in present.nonzero().flatten():
        f = features[c].clone().requires_grad_()
        for _ in range(5):
            w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
            loss = functional.cross_entropy(functional.linear(f, w, b), c.repeat(3))
            produced = torch.autograd.grad(loss, (w, b), create_graph=True)
            distance = (1 - functional.cosine_similarity(produced[0], of_weight[c], dim=1)).sum()
            distance = distance + 1 - functional.cosine_similarity(produced[1], of_bias[c], dim=0)
            f = (f - 0.1 * torch.autograd.grad(distance, f)[0]).detach().requires_grad_()
        wanted[c] = f.detach()
    got = fit_meta_features(features, weight, bias, of_weight, of_bias, present, steps=5)
    torch.testing.assert_close(got, wanted)
    assert torch.equal(got[2], features[2])


def test_classes_without_gradients_keep_their_features():
    features, weight, bias, of_weight, of_bias, present = problem()
    of_weight[0, 1, 0] = NAN
    of_bias[1, 0] = NAN
    got = fit_meta_features(features.float(), weight, bias, of_weight, of_bias, present, steps=2)
    assert got.dtype == torch.float32
    assert torch.equal(got[:3], features[:3].float())
    assert not torch.equal(got[3], features[3].float())
    silent = fit_meta_features(
        features, weight, bias, 0 * weight.expand(4, -1, -1), 0 * of_bias[3:].expand(4, -1), present
    )
    assert torch.equal(silent, features)


def test_no_step_moves_nothing_and_arguments_are_left_alone():
    features, *rest = problem()
    copy = features.clone()
    assert torch.equal(fit_meta_features(features, *rest, steps=0), features)
    fit_meta_features(features, *rest, steps=3)
    assert torch.equal(features, copy)
    assert torch.equal(fit_meta_features(features, *rest, learning_rate=1e320), features)


def long_tail():
    """Three clusters in 8 dimensions of 200, 20 and 4 samples, and a test set of 100 each."""
    centres = 1.0 * randn(3, 8, seed=5)
    labels = torch.tensor([0] * 200 + [1] * 20 + [2] * 4)
    test = torch.arange(3).repeat_interleave(100)
    return centres[labels] + randn(224, 8, seed=6), labels, centres[test] + randn(300, 8, seed=7), test


def test_gradients_of_a_long_tail_make_a_balanced_classifier():
    """A classifier trained on the data overlooks the rare class; one trained on meta features does not."""
    x, labels, test_x, test = long_tail()
    weight, bias = torch.zeros(3, 8, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for _ in range(50):
        w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        gradients = torch.autograd.grad(functional.cross_entropy(functional.linear(x, w, b), labels), (w, b))
        weight, bias = weight - 0.1 * gradients[0], bias - 0.1 * gradients[1]
    everything = torch.tensor([True, True, True])
    features = initial_vectors(3, 20, 8, generator())
    gradients = classifier_gradients(x, labels, weight, bias)
    fitted = fit_meta_features(features, weight, bias, *gradients, everything)
    retrained = train_classifier(fitted, everything, generator=generator())

    def recall(w, b):
        hits = (test_x.float() @ w.float().T + b.float()).argmax(1) == test
        return hits.view(3, 100).float().mean(1)

    assert recall(weight, bias)[2] < 0.3
    assert recall(*retrained)[2] > recall(weight, bias)[2] + 0.3
    assert recall(*retrained).mean() > recall(weight, bias).mean()


def test_the_classifier_is_a_function_of_the_seed():
    features, known = 3 * randn(4, 10, 6).float(), torch.tensor([True, True, False, True])
    features[2] = NAN
    one, two, other = (train_classifier(features, known, generator=generator(s), epochs=3) for s in (1, 1, 2))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    assert not torch.equal(one[0], other[0])
    assert [x.shape for x in one] == [(4, 6), (4,)]
    assert all(x.isfinite().all() for x in one)


def test_training_is_sgd_on_the_cross_entropy():
    """One batch holds all samples, so their order does not matter."""
    features = randn(3, 5, 4)
    everything = torch.tensor([True, True, True])
    weight, bias = train_classifier(features, everything, generator=generator(), epochs=0)
    assert weight.abs().max() <= 0.5
    x, y = features.flatten(0, 1), torch.arange(3).repeat_interleave(5)
    for _ in range(4):
        w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        gradients = torch.autograd.grad(functional.cross_entropy(functional.linear(x, w, b), y), (w, b))
        weight, bias = weight - 0.01 * gradients[0], bias - 0.01 * gradients[1]
    got = train_classifier(features, everything, generator=generator(), epochs=4)
    torch.testing.assert_close(got, (weight, bias))


@pytest.mark.parametrize("known", [[False, False], [False, True]])
def test_few_known_classes_are_an_ordinary_case(known):
    weight, bias = train_classifier(randn(2, 3, 4), torch.tensor(known), generator=generator(), epochs=2)
    assert weight.isfinite().all()
    assert bias.isfinite().all()
