import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from client_app.training import (
    LocalSettings,
    Statistics,
    batches,
    extract,
    make_optimizer,
    predict,
    train,
)
from isoproto.data import ClientData, to_float
from isoproto.geometry.prototypes import ClassRows, average_prototypes
from isoproto.losses import LOSSES, alignment_terms
from isoproto.parts.alignment import AlignmentTerm
from models import FAMILIES, FeatureModel, ModelSpec, create_model

CLASSES = ("a", "b", "c", "d")
SMALL = FAMILIES["demo4"]
SPEC = ModelSpec(channels=1, height=8, width=8, feature_dim=6, num_classes=4)
SETTINGS = LocalSettings(
    epochs=1,
    batch_size=8,
    optimizer="sgd",
    learning_rate=0.05,
    momentum=0.0,
    weight_decay=0.0,
    proto_source="post-eval",
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def client(samples=24, classes=4):
    labels = torch.arange(samples) % classes
    patterns = torch.randint(0, 200, (4, 1, 8, 8), generator=generator(1))
    noise = torch.randint(0, 50, (samples, 1, 8, 8), generator=generator(2))
    pictures = (patterns[labels] + noise).to(torch.uint8)
    return ClientData(pictures, labels, pictures[:4], labels[:4], CLASSES)


def linear_model(seed=0):
    """Features are a linear map of the pixels: no BatchNorm, no surprises."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FeatureModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 6)), 6, 4)


def alignment(loss, lambda_=0.0, gamma=0.0, *, scale=1.0, present=(True, True, True, True), missing="mask"):
    prototypes = scale * torch.randn(4, 6, generator=generator(3))
    there = torch.tensor(present)
    return AlignmentTerm(
        loss=LOSSES[loss],
        target=LOSSES[loss].target(prototypes, there),
        present=there,
        lambda_=lambda_,
        gamma=gamma,
        missing=missing,
    )


def trained(model, aligned=None, data=None, seed=0, **changes):
    terms = [] if aligned is None else [aligned]
    settings = dataclasses.replace(SETTINGS, **changes)
    losses, running = train(model, data or client(), settings, terms, generator(seed))
    return model, losses, running


def same(a, b):
    return all(torch.equal(x, b.state_dict()[name]) for name, x in a.state_dict().items())


# Batches


@pytest.mark.parametrize(
    ("samples", "size", "sizes"),
    [
        (8, 4, [4, 4]),
        (9, 4, [4, 5]),
        (10, 4, [4, 4, 2]),
        (5, 4, [5]),
        (4, 4, [4]),
        (1, 4, [1]),
        (0, 4, []),
        (3, 100, [3]),
        (3, 2, [3]),
    ],
)
def test_no_batch_of_one_but_where_there_is_one_sample(samples, size, sizes):
    """BatchNorm cannot train on a single sample, so the last one joins the batch before it."""
    assert [len(batch) for batch in batches(samples, size, generator())] == sizes


@pytest.mark.parametrize(("samples", "size"), [(9, 4), (100, 7), (1, 1), (50, 50)])
def test_every_sample_is_drawn_once(samples, size):
    assert torch.cat(list(batches(samples, size, generator()))).sort().values.tolist() == list(range(samples))


def test_order_is_a_function_of_the_generator():
    first, again, other = (torch.cat(list(batches(30, 7, generator(seed)))) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("samples", "size", "used"), [(8, 4, 8), (9, 4, 8), (11, 4, 8), (3, 4, 3), (1, 4, 1), (0, 4, 0)]
)
def test_fixed_batches_are_whole_and_in_the_order_of_the_data(samples, size, used):
    """As in FedSAF's authors' code; but a client with less than a batch is not left out."""
    drawn = list(batches(samples, size, generator(), "fixed"))
    assert {len(batch) for batch in drawn} <= {min(samples, size)}
    assert [i for batch in drawn for i in batch.tolist()] == list(range(used))


def test_what_fixed_batches_leave_out_is_neither_trained_on_nor_counted():
    data, model = client(10), linear_model()
    used = dataclasses.replace(data, train_x=data.train_x[:8], train_y=data.train_y[:8])
    settings = {"batch_size": 4, "batches": "fixed", "proto_source": "last-epoch", "epochs": 2}
    (a, losses, running), (b, wanted, whole) = (
        trained(linear_model(), data=part, seed=seed, **settings) for seed, part in enumerate((data, used))
    )
    assert same(a, b)
    assert not same(a, model)
    assert losses == wanted
    assert running.sums.count.sum() == whole.sums.count.sum() == 8


# Optimisers


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimiser_is_what_was_asked_for(name, kind):
    settings = dataclasses.replace(SETTINGS, optimizer=name, learning_rate=0.3, weight_decay=0.1, momentum=0.7)
    optimizer = make_optimizer(linear_model(), settings)
    assert type(optimizer) is kind
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.3, 0.1)
    assert name != "sgd" or optimizer.defaults["momentum"] == 0.7


# Training


@pytest.mark.parametrize("name", SMALL)
def test_training_lowers_the_loss(name):
    model = create_model(name, SPEC, seed=0)
    losses = [trained(model, seed=epoch)[1]["cross-entropy"] for epoch in range(5)]
    assert losses[-1] < losses[0]


def test_one_full_batch_step_is_gradient_descent():
    """Worked by autograd alone: w - 0.05 dCE/dw, the order of the samples does not matter to a mean."""
    data, model, plain = client(), linear_model(), linear_model()
    trained(model, data=data, batch_size=24)
    functional.cross_entropy(plain(to_float(data.train_x)), data.train_y).backward()
    for wanted, got in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.allclose(got, wanted.detach() - 0.05 * wanted.grad, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SMALL)
def test_weights_zero_are_local_training_bit_for_bit(loss, name):
    """A6."""
    local = trained(create_model(name, SPEC, seed=0), epochs=2, momentum=0.9)[0]
    aligned = trained(create_model(name, SPEC, seed=0), alignment(loss), epochs=2, momentum=0.9)[0]
    assert same(local, aligned)


@pytest.mark.parametrize("loss", LOSSES)
def test_with_a_weight_the_update_is_another(loss):
    for weights in ({"lambda_": 1.0}, {"gamma": 1.0}):
        assert not same(trained(linear_model())[0], trained(linear_model(), alignment(loss, **weights))[0])


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize(("term", "weights"), [(0, {"lambda_": 1.0}), (1, {"gamma": 1.0})])
@pytest.mark.parametrize("loss", LOSSES)
def test_each_term_moves_the_features_its_own_way(loss, term, weights, scale):
    """R062: compared with local training from the same weights, the term itself is smaller afterwards."""
    data = client()
    features = {}
    for name, aligned in (("local", None), ("aligned", alignment(loss, **weights, scale=scale))):
        model = trained(linear_model(), aligned, data, batch_size=24, learning_rate=0.01, epochs=3)[0]
        features[name] = extract(model, data.train_x)
    goal = alignment(loss, scale=scale)
    values = {
        name: alignment_terms(goal.loss, z, data.train_y, goal.target, goal.present)[term].item()
        for name, z in features.items()
    }
    assert values["aligned"] < values["local"]


@pytest.mark.parametrize("loss", LOSSES)
def test_terms_are_reported_and_add_up(loss):
    losses = trained(linear_model(), alignment(loss, 0.5, 2.0))[1]
    assert losses["prototype"] > 0
    assert losses["instance"] > 0
    total = losses["cross-entropy"] + 0.5 * losses["prototype"] + 2.0 * losses["instance"]
    assert losses["total"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_bf16_is_nearly_float32(name):
    before, wide, narrow = (create_model(name, SPEC, seed=3) for _ in range(3))
    (losses, _), (rounded, _) = (
        train(model, client(), dataclasses.replace(SETTINGS, amp=amp), [alignment("gcsa", 0.5, 0.5)], generator())
        for model, amp in ((wide, "off"), (narrow, "bf16"))
    )
    assert rounded != losses
    assert rounded == pytest.approx(losses, rel=0.05, abs=0.02)
    assert {t.dtype for t in narrow.parameters()} == {torch.float32}
    moved = [(b - a).norm() for a, b in zip(before.parameters(), wide.parameters(), strict=True)]
    apart = [(b - a).norm() for a, b in zip(wide.parameters(), narrow.parameters(), strict=True)]
    assert sum(apart) < 0.5 * sum(moved)


def test_under_bf16_the_model_is_narrow_and_what_is_made_of_it_is_not():
    model, seen = linear_model(), []
    model.head.register_forward_hook(lambda head, inputs, logits: seen.append(logits.dtype))
    settings = dataclasses.replace(SETTINGS, amp="bf16", proto_source="last-epoch")
    _, running = train(model, client(), settings, [], generator())
    assert set(seen) == {torch.bfloat16}
    assert running.sums.total.dtype == torch.float32


def test_without_alignment_the_loss_is_the_cross_entropy():
    losses = trained(linear_model())[1]
    assert list(losses) == ["cross-entropy", "total"]
    assert losses["total"] == losses["cross-entropy"] > 0


def test_losses_are_means_over_samples_of_the_last_epoch():
    """With learning rate zero every batch sees the same model: the mean over all samples, whatever the batches."""
    data, model = client(10), linear_model()
    losses = trained(model, data=data, learning_rate=0.0, batch_size=4, epochs=3)[1]
    wanted = functional.cross_entropy(model(to_float(data.train_x)), data.train_y).item()
    assert losses["cross-entropy"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_classes_without_a_prototype_have_no_term(loss):
    """R053: nothing is there to align to, so training is local training."""
    nothing = alignment(loss, 1.0, 1.0, present=(False,) * 4)
    model, losses, _ = trained(linear_model(), nothing)
    assert (losses["prototype"], losses["instance"]) == (0.0, 0.0)
    assert same(model, trained(linear_model())[0])


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_that_are_absent_are_never_read(loss):
    """A2: fill them with NaN, and nothing changes."""
    present = torch.tensor([True, True, True, False])
    clean = torch.randn(4, 6, generator=generator(3))
    dirty = torch.where(present.unsqueeze(1), clean, math.nan)
    models = []
    for prototypes in (clean, dirty):
        goal = AlignmentTerm(
            loss=LOSSES[loss],
            target=LOSSES[loss].target(prototypes, present),
            present=present,
            lambda_=1.0,
            gamma=1.0,
        )
        models.append(trained(linear_model(), goal)[0])
    assert same(*models)
    assert all(torch.isfinite(p).all() for p in models[0].parameters())


# Small clients


@pytest.mark.parametrize("loss", [None, *LOSSES])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("samples", "classes"), [(1, 1), (2, 1), (2, 2), (9, 1), (9, 2)])
def test_small_clients_train_and_stay_finite(name, loss, samples, classes):
    """One sample, one class, and a last batch of one, under BatchNorm."""
    aligned = alignment(loss, 0.5, 0.5) if loss else None
    model, losses, _ = trained(create_model(name, SPEC, seed=0), aligned, client(samples, classes))
    assert all(math.isfinite(value) for value in losses.values())
    assert all(torch.isfinite(t).all() for t in model.state_dict().values())


def test_a_single_sample_leaves_the_running_statistics_alone():
    """It has no batch statistics of its own: the running ones are used, and the weights still learn."""
    model = create_model("cnn", SPEC, seed=0)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    trained(model, data=client(1))
    after = model.state_dict()
    assert all(torch.equal(after[n], before[n]) for n in before if "running" in n)
    assert not torch.equal(after["head.weight"], before["head.weight"])


# Statistics


def test_running_means_are_of_what_was_seen():
    """With learning rate zero and no BatchNorm, the last epoch's running means are the class means."""
    data, model = client(10), linear_model()
    for source in ("last-epoch", "all-epochs"):
        running = trained(model, data=data, learning_rate=0.0, epochs=3, proto_source=source)[2]
        exact = Statistics.of(extract(model, data.train_x), data.train_y, 4)
        assert torch.allclose(running.sums.mean(), exact.sums.mean(), atol=1e-5)
        assert running.sums.count.tolist() == (exact.sums.count * (3 if source == "all-epochs" else 1)).tolist()
    assert trained(model, data=data, learning_rate=0.0, proto_source="last-epoch")[2].scatter() == pytest.approx(
        exact.scatter(), rel=1e-4
    )


def test_post_eval_has_no_running_means():
    assert trained(linear_model())[2] is None


def test_scatter_of_four_points():
    """(0, 2) and (10, 14): means 1 and 12, squared distances 1, 1, 4, 4, over 4 - 2 = 2: 5."""
    statistics = Statistics.of(torch.tensor([[0.0], [2.0], [10.0], [14.0]]), torch.tensor([0, 0, 3, 3]), 4)
    assert statistics.scatter() == 5.0


@pytest.mark.parametrize("labels", [[0], [0, 1, 2]])
def test_one_sample_a_class_scatters_nothing(labels):
    features = torch.randn(len(labels), 5, generator=generator())
    assert Statistics.of(features, torch.tensor(labels), 4).scatter() == pytest.approx(0.0, abs=1e-6)


def test_scatter_far_from_the_origin_is_still_right():
    """Sums of squares cancel: the rounding of float32 sums at distance 50 must not drown a scatter of 4."""
    features = 50 + torch.randn(1000, 4, generator=generator(), dtype=torch.float64)
    labels = torch.arange(1000) % 2
    wanted = sum((features[labels == c] - features[labels == c].mean(0)).square().sum().item() for c in (0, 1)) / (
        1000 - 2
    )
    assert Statistics.of(features.float(), labels, 2).scatter() == pytest.approx(wanted, rel=0.02)


def test_statistics_add_up():
    x, y = torch.randint(-8, 8, (12, 3), generator=generator()).float(), torch.arange(12) % 4
    pooled, parts = Statistics.of(x, y, 4), Statistics.of(x[:5], y[:5], 4) + Statistics.of(x[5:], y[5:], 4)
    assert torch.equal(pooled.sums.total, parts.sums.total)
    assert torch.equal(pooled.sums.count, parts.sums.count)
    assert pooled.scatter() == parts.scatter()


def test_one_client_alone_aligns_to_its_own_means():
    data, model = client(), linear_model()
    sums = Statistics.of(extract(model, data.train_x), data.train_y, 4).sums
    sent = ClassRows(torch.arange(4), sums.mean(), sums.count, len(data.train_y))
    assert torch.equal(average_prototypes([sent], 4, 6).vectors, sums.mean())


# Evaluation


def test_features_are_taken_in_eval_mode_and_in_order():
    model, data = create_model("cnn", SPEC, seed=0), client(600)
    model.train()
    together = extract(model, data.train_x)
    assert not model.training
    assert torch.equal(together, extract(model, data.train_x))
    assert torch.allclose(together[500:501], extract(model, data.train_x[500:501]), atol=1e-5)
    assert not together.requires_grad


@pytest.mark.parametrize("name", SMALL)
def test_a_client_without_test_data_has_no_features(name):
    assert extract(create_model(name, SPEC, seed=0), client().train_x[:0]).shape == (0, 6)


def test_head_and_nearest_prototype_are_counted():
    """Features (0,0), (1,0), (0,3). The head says 0, 0, 1. Nearest of (1,0) and (0,2), class 1 and 3: 1, 1, 3."""
    model = FeatureModel(nn.Flatten(), 2, 4)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
        model.head.bias.copy_(torch.tensor([0.5, 0.0, 0.0, 0.0]))
    features, labels = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1, 3])
    prototypes = torch.tensor([[math.nan, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    present = torch.tensor([False, True, False, True])
    predicted, nearest = predict(model, features, labels, prototypes, present)
    assert predicted.tolist() == [0, 0, 1]
    assert nearest == 2


def test_without_prototypes_nothing_is_nearest():
    model, features, labels = linear_model(), torch.zeros(3, 6), torch.tensor([0, 1, 2])
    assert predict(model, features, labels, None, None)[1] is None
    assert predict(model, features, labels, torch.zeros(4, 6), torch.zeros(4, dtype=torch.bool))[1] is None


def test_counting_nothing_is_zero():
    predicted, nearest = predict(
        linear_model(), torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64), torch.zeros(4, 6), torch.ones(4).bool()
    )
    assert (predicted.numel(), nearest) == (0, 0)


def dropping_model():
    model = linear_model()
    model.base.append(nn.Dropout(0.5))
    return model


def test_dropout_is_a_function_of_the_generators_seed():
    first = trained(dropping_model(), seed=5)[0]
    torch.rand(3)  # moves the global generator, as another client of the process would
    assert same(trained(dropping_model(), seed=5)[0], first)
    assert not torch.equal(first.head.weight, trained(linear_model(), seed=5)[0].head.weight), "nothing was dropped"


@pytest.mark.parametrize("make", [lambda: create_model("cnn", SPEC, seed=3), dropping_model])
def test_training_leaves_the_global_generators_alone(make):
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    trained(make(), alignment("gcsa", 1.0, 1.0))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
