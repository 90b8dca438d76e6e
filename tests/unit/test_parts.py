"""What parts declare, and what of it the two sides make: nothing is tied to a name but the declaration."""

import dataclasses
from collections import Counter

import pytest
import torch
from torch import nn

from isoproto.common.statistics import Block
from isoproto.config import RunConfig
from isoproto.geometry.prototypes import ClassRows
from isoproto.losses import LOSSES
from isoproto.parts import PARTS, OwnMeans, PartState, Sent, ServerState, View, parts_of, reported_terms
from isoproto.parts.alignment import Alignment
from isoproto.parts.common import CommonClassifier
from isoproto.wire.codec import array_names
from isoproto.wire.rounding import FORMATS
from isoproto.wire.train_reply import UP
from strategies import STRATEGIES

C, D = 4, 6
# Written out: a message of schema 1 holds these whatever the method, and these besides.
SCHEMA_1 = ("cross-entropy", "prototype", "instance", "hpcl", "hpal")
OWN = {"feddistill": ("distillation",), "fml": ("mutual", "twin", "twin-mutual")}
FRAMES = ("shared", "procrustes", "gram")
RUNS = [
    *({"strategy": name} for name in sorted(STRATEGIES)),
    *({"strategy": "isoproto_anchors", "hyper.init": "prototypes", "frame": frame} for frame in FRAMES),
    {"strategy": "isoproto_anchors", "hyper.head": "server"},
    {"strategy": "isoproto_anchors", "prototypes": "mean", "alignment": "rcsa+hpal", "frame": "procrustes"},
    {"strategy": "fedhpro", "hyper.retrain": "creff"},
]


def resolved(**settings):
    config = RunConfig.from_mapping({"feature-dim": D, **settings})
    return STRATEGIES[config.strategy].resolve(config)


def as_a_client_gets_it(config):
    return RunConfig.from_mapping(config.changes())


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def statistics(seed):
    """What a client sends first of the common frame: here of two samples of each class."""
    block = Block.of(randn(2 * C, 1, D, seed=seed), torch.arange(C).repeat(2))
    arrays = {f"common-{name}": getattr(block, name) for name in ("counts", "sums", "factor")}
    return {
        **arrays,
        "common-ids": block.class_ids,
        "common-floor": torch.zeros(1),
        "common-block": torch.tensor([seed, 0]),
    }


def reply(parts, seed):
    """What a client that holds all classes sends, array by array as the parts declare it."""
    axes = {"P": C, "C": C, "d": D}
    fields = [field for part in parts if not isinstance(part, CommonClassifier) for field in part.sends]
    arrays = {f.name: randn(*(axes[letter] for letter in f.shape.split()), seed=seed) for f in fields}
    arrays |= statistics(seed) if any(isinstance(part, CommonClassifier) for part in parts) else {}
    shared = {"head.weight": randn(C, D, seed=seed), "head.bias": torch.zeros(C)}
    return Sent(ClassRows(torch.arange(C), randn(C, D, seed=seed), torch.full((C,), 5), 5 * C), 0.1, arrays, shared)


def view_of(config):
    """What a client that holds all classes sees after a round with replies of two."""
    start = state = ServerState.start(C, D)
    parts = parts_of(config)
    for part in parts:
        state = part.fold(start, state, [reply(parts, 2), reply(parts, 3)])
    return View(
        client="0",
        server_round=2,
        frame=config.frame,
        arrays={name: array for part in parts for name, array in part.downlink(state).items()},
        own_means=OwnMeans(randn(C, D, seed=1), torch.full((C,), 3), 0.1),
        num_classes=C,
        feature_dim=D,
        modules={part.owns: nn.Linear(D, C) for part in parts if part.owns},
    )


def repeated(names):
    return [name for name, times in Counter(names).items() if times > 1]


# Names


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_name_stands_for_one_field(way):
    """Two parts may send the same array where they exclude each other; else the later would hide the earlier."""
    declared = {id(field): field.name for part in PARTS for field in getattr(part, way)}
    assert declared
    assert repeated(declared.values()) == []


@pytest.mark.parametrize("settings", RUNS)
def test_no_two_parts_of_a_run_send_one_array(settings):
    parts = parts_of(resolved(**settings))
    assert repeated(field.name for part in parts for field in part.down) == []
    assert repeated(field.name for part in parts for field in part.sends) == []
    assert all(field in part.up for part in parts for field in part.sends)


@pytest.mark.parametrize("form", FORMATS.values())
def test_parts_send_nothing_under_the_name_of_class_means_or_of_scales(form):
    sent = [field.name for part in PARTS for field in part.up]
    assert list(UP) == ["class-ids", "proto", "count", *sent]
    assert repeated(array_names(UP.values(), form)) == []


def test_what_parts_keep_has_names_of_its_own():
    """All of it lies in one place, ``ServerState.memory``."""
    kinds = [kind for kind in PartState.__subclasses__() if kind.__module__.startswith("isoproto.parts.")]
    names = [field.name.replace("_", "-") for kind in kinds for field in dataclasses.fields(kind)]
    assert {"distances", "learned", "head-weight", "meta"} <= set(names)
    assert repeated(names) == []


def test_names_of_settings_and_of_terms_are_those_of_one_part():
    assert repeated(name for part in PARTS for name in part.makes) == []
    assert repeated([*LOSSES, *(name for part in PARTS for name in part.aligns)]) == []
    assert repeated(name for part in PARTS for name in part.reports) == []
    assert repeated(part.owns for part in PARTS if part.owns) == []


# Terms


@pytest.mark.parametrize("settings", RUNS)
def test_the_terms_of_schema_1_are_reported_by_all(settings):
    own = OWN.get(settings["strategy"], ())
    assert reported_terms(parts_of(resolved(**settings))) == (*SCHEMA_1, *own, "total")


@pytest.mark.parametrize("settings", RUNS)
def test_clients_train_with_the_terms_that_their_parts_report(settings):
    """The client's own copy of the settings says which; a name apart from that would be reported as 0."""
    config = resolved(**settings)
    view = view_of(config)
    parts = parts_of(as_a_client_gets_it(config))
    assert parts == parts_of(config)
    for part in parts:
        terms = part.terms(view)
        assert [name for term in terms for name in term.names] == list(part.reports)
        for term in terms:
            assert len(term.weights) == len(term.names)


@pytest.mark.parametrize("known", sorted(LOSSES))
def test_a_new_loss_reaches_the_client_with_its_weights(monkeypatch, known):
    monkeypatch.setitem(LOSSES, "third", dataclasses.replace(LOSSES[known], weights=(0.5, 0.25)))
    config = resolved(strategy="fedsaf", alignment="third")
    (term,) = Alignment.of(as_a_client_gets_it(config)).terms(view_of(config))
    assert term.loss is LOSSES["third"]
    assert term.weights.tolist() == [0.5, 0.25]
    (plain,) = Alignment.of(resolved(strategy="fedsaf", alignment=known)).terms(view_of(config))
    assert torch.equal(term.target, plain.target)
    assert plain.weights.tolist() == pytest.approx(LOSSES[known].weights)
