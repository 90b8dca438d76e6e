"""Clients trained as one program against ``train``, client by client."""

import dataclasses

import pytest
import torch
from torch import nn

from client_app import batched, stacked
from client_app.batched import FASTER_TOGETHER, Member, train_together, trains_faster_together
from client_app.stacked import stackable
from client_app.training import LocalSettings, train
from isoproto.data import ClientData
from isoproto.losses import LOSSES
from isoproto.losses.anchors import Anchors
from isoproto.parts.alignment import AlignmentTerm
from isoproto.parts.anchors import AnchorTerm
from models import MODELS, FeatureModel, ModelSpec, create_model

SPEC = ModelSpec(channels=1, height=16, width=20, feature_dim=12, num_classes=4)
SETTINGS = LocalSettings(
    epochs=2,
    batch_size=5,
    optimizer="sgd",
    learning_rate=0.05,
    momentum=0.9,
    weight_decay=0.001,
    proto_source="post-eval",
)
# Batches of 5, 4, 6 (5 and 1 together), 1 and 2 samples; one to five batches an epoch.
SIZES = (10, 9, 16, 1, 25, 2, 7)
# One with so much more that the others' weights are left behind on the way, twice.
UNEVEN = (70, 6, 4, 30, 5, 3)
# Every layer in ``LAYERS``; `cnn` has max-pools and paddings.
NAMES = ("cnn", *FASTER_TOGETHER)
CPU = torch.device("cpu")


def generator(seed):
    return torch.Generator().manual_seed(seed)


def data(samples, seed):
    labels = torch.randint(0, 4, (samples,), generator=generator(seed))
    noise = torch.randint(0, 100, (samples, 1, 16, 20), generator=generator(seed + 1))
    return ClientData((noise + 40 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels, noise[:0], labels[:0], "abcd")


def alignment(loss, missing="mask"):
    there = torch.tensor([True, True, False, True])
    prototypes = torch.randn(4, 12, generator=generator(5))
    target = LOSSES[loss].target(prototypes, there)
    return AlignmentTerm(loss=LOSSES[loss], target=target, present=there, lambda_=0.5, gamma=0.7, missing=missing)


def anchoring():
    directions, means = torch.randn(2, 4, 12, generator=generator(6)).unbind()
    present = torch.tensor([True, False, True, True])
    return AnchorTerm(anchors=Anchors.of(directions, means, present, temperature=0.5), pcl=0.3, pal=0.2)


def clients(name, sizes=SIZES):
    return [(create_model(name, SPEC, seed), data(size, 10 * seed)) for seed, size in enumerate(sizes)]


def members(found, *terms):
    return [
        Member(
            parameters=dict(model.named_parameters()),
            data=own,
            generator=generator(100 + i),
            terms=terms,
        )
        for i, (model, own) in enumerate(found)
    ]


def assert_as_one_by_one(name, *terms, sizes=SIZES, **changes):
    settings = dataclasses.replace(SETTINGS, **changes)
    found = clients(name, sizes)
    shape = create_model(name, SPEC, seed=99)
    together = train_together(shape, members(found, *terms), settings)
    assert len(together) == len(found)
    for i, ((model, own), got) in enumerate(zip(found, together, strict=True)):
        start = {key: tensor.detach().clone() for key, tensor in model.named_parameters()}
        losses, running = train(model, own, settings, terms, generator(100 + i))
        names = [name for term in terms for name in term.names]
        assert list(got.losses) == list(losses) == ["cross-entropy", *names, "total"]
        torch.testing.assert_close(got.losses, losses, rtol=1e-4, atol=1e-5)
        assert got.parameters.keys() == model.state_dict().keys()  # no state besides: nothing else is to be compared
        for key, tensor in model.named_parameters():
            torch.testing.assert_close(got.parameters[key], tensor.detach(), rtol=1e-4, atol=2e-5)
            assert len(own.train_y) < 3 or not torch.equal(start[key], got.parameters[key]), key
        if running is None:
            assert got.running is None
        else:
            torch.testing.assert_close(got.running.sums.total, running.sums.total, rtol=1e-4, atol=1e-4)
            assert torch.equal(got.running.sums.count, running.sums.count)
            torch.testing.assert_close(got.running.squares, running.squares, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_uneven_clients_become_what_they_become_alone(name):
    assert_as_one_by_one(name)


@pytest.mark.parametrize("sizes", [SIZES, UNEVEN])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_by_every_optimiser(optimizer, momentum, sizes):
    assert_as_one_by_one("mlp", sizes=sizes, optimizer=optimizer, momentum=momentum, learning_rate=0.002)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_who_has_much_more_goes_on_without_the_others(optimizer, monkeypatch):
    """Not a bit changes; what the optimiser moves in each step is what is left."""
    sizes, settings = [], dataclasses.replace(SETTINGS, optimizer=optimizer)
    narrowed = stacked.Stack.narrowed
    monkeypatch.setattr(stacked.Stack, "narrowed", lambda *words: sizes.append(words[1]) or narrowed(*words))
    found, shape = clients("mlp", UNEVEN), create_model("mlp", SPEC, 9)
    together = train_together(shape, members(found, alignment("gcsa")), settings)
    assert sizes == [2, 1]
    monkeypatch.setattr(batched, "_STEPS_LEFT", 10**9)
    for one, other in zip(together, train_together(shape, members(found, alignment("gcsa")), settings), strict=True):
        assert one.losses == other.losses
        assert all(torch.equal(one.parameters[key], other.parameters[key]) for key in one.parameters)
    assert sizes == [2, 1]


@pytest.mark.parametrize(
    ("loss", "missing"), [*((name, "mask") for name in LOSSES), ("mse", "self"), ("cosine", "self")]
)
def test_with_every_alignment(loss, missing):
    assert_as_one_by_one("mlp", alignment(loss, missing))


def test_with_anchors_and_alignment():
    assert_as_one_by_one("tiny_cnn", alignment("gcsa"), anchoring())
    assert_as_one_by_one("mlp", anchoring())


def test_a_second_alignment_term_counts_too():
    class Other(AlignmentTerm):
        names = ("other-prototype", "other-instance")

    other = Other(**{field.name: getattr(alignment("mse"), field.name) for field in dataclasses.fields(AlignmentTerm)})
    assert_as_one_by_one("mlp", alignment("gcsa"), other)


@pytest.mark.parametrize("source", ["last-epoch", "all-epochs"])
def test_running_statistics(source):
    assert_as_one_by_one("mlp", proto_source=source)


@pytest.mark.parametrize("source", ["last-epoch", "all-epochs"])
def test_fixed_batches(source):
    assert_as_one_by_one("mlp", alignment("mse"), proto_source=source, batches="fixed")


@pytest.mark.parametrize("name", FASTER_TOGETHER)
def test_one_client(name):
    assert_as_one_by_one(name, sizes=(13,))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", NAMES)
def test_who_trains_beside_whom_does_not_change_a_bit(name, optimizer, monkeypatch):
    """Which clients share a worker is a matter of time, so a run is repeatable only if that changes nothing."""
    settings, found, shape = (
        dataclasses.replace(SETTINGS, optimizer=optimizer),
        clients(name),
        create_model(name, SPEC, 9),
    )
    together = train_together(shape, members(found, alignment("gcsa"), anchoring()), settings)
    for most in (1, 3):
        monkeypatch.setattr(batched, "MOST_TOGETHER", most)
        apart = train_together(shape, members(found, alignment("gcsa"), anchoring()), settings)
        for one, other in zip(together, apart, strict=True):
            assert one.losses == other.losses
            assert all(torch.equal(one.parameters[key], other.parameters[key]) for key in one.parameters)


def test_a_client_that_diverges_takes_nobody_along():
    found = clients("mlp", (10, 10, 10))
    with torch.no_grad():
        found[1][0].head.weight.fill_(torch.inf)
    first, broken, last = train_together(found[0][0], members(found), SETTINGS)
    assert not all(bool(tensor.isfinite().all()) for tensor in broken.parameters.values())
    alone = train_together(found[0][0], members(found)[:1], SETTINGS)[0]
    assert first.losses == alone.losses
    assert all(bool(tensor.isfinite().all()) for tensor in last.parameters.values())


def test_members_are_only_read():
    found = clients("tiny_cnn", (10, 7))
    before = [{key: tensor.clone() for key, tensor in model.state_dict().items()} for model, _ in found]
    train_together(found[0][0], members(found), SETTINGS)
    for (model, _), tensors in zip(found, before, strict=True):
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in model.state_dict().items())


# Who may


@pytest.mark.parametrize("name", sorted(FASTER_TOGETHER))
@pytest.mark.parametrize("channels", [1, 3])
def test_whoever_is_in_the_table_can_be_stacked(name, channels):
    assert stackable(create_model(name, dataclasses.replace(SPEC, channels=channels), seed=0))
    assert name in MODELS


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "inception"])
def test_batchnorm_cannot(name):
    assert not stackable(create_model(name, SPEC, seed=0))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(1, 2, 3, padding="same"),
        nn.Conv2d(1, 2, 3, padding_mode="circular"),
        nn.Dropout(),
    ],
)
def test_neither_can_layers_of_another_kind(layer):
    assert not stackable(FeatureModel(nn.Sequential(layer, nn.Flatten()), 12, 4))


def test_where_it_pays():
    assert trains_faster_together("mlp", 10, 1024, CPU)
    assert not trains_faster_together("mlp", 10, 1024, torch.device("cuda"))
    assert not trains_faster_together("mlp", 32, 1024, CPU)
    assert not trains_faster_together("cnn", 10, 1024, CPU)


def test_where_patches_of_large_pictures_cost_more_than_operations():
    """At 224x224 the tiny CNN took 2.7 times as long together, at 64x64 four fifths."""
    assert trains_faster_together("tiny_cnn", 10, 64 * 64, CPU)
    assert not trains_faster_together("tiny_cnn", 16, 64 * 64, CPU)
    assert not trains_faster_together("tiny_cnn", 10, 224 * 224, CPU)
    assert trains_faster_together("mlp", 10, 224 * 224, CPU)
