"""Hyper-prototypes, frames and relations in whole federations."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

import client_app.local_round
from isoproto.errors import ConfigError
from tests import fakes
from tests.fakes import When, altered

FLAGSHIP = {"strategy": "isoproto_anchors"}
DUMP = Path(__file__).parent / "flagship_messages.json"


def gradients_of(change):
    """Change the gradients in a reply."""

    def edit(content):
        if "grad" in content["arrays"]:
            content["arrays"]["grad"] = Array(change(content["arrays"]["grad"].numpy()))

    return altered(edit)


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def described(content):
    """What a message holds, without what differs from run to run."""
    return {
        name: {key: [array.dtype, list(array.shape)] for key, array in record.items()}
        if isinstance(record, ArrayRecord)
        else sorted(record)
        for name, record in content.items()
    }


@pytest.fixture(scope="module")
def flagship(tmp_path_factory, pictures):
    from isoproto.engines.in_process import task_identity
    from tests.conftest import Federation

    with task_identity():
        yield Federation(tmp_path_factory.mktemp("flagship"), pictures).run(settings=FLAGSHIP)


def test_nothing_but_prototypes_gradients_and_counts_travels(federation):
    """The dump of one train message and its reply lies beside this file, for people to read."""
    messages = []

    def look(grid, message, honest):
        reply = honest()
        messages[:] = [described(message.content), described(reply.content)]
        return [reply]

    federation.run(federation.grid((look, When("train", [3], [0]))), FLAGSHIP)
    found = dict(zip(("train message", "reply"), messages, strict=True))
    assert found == json.loads(DUMP.read_text())
    assert all("model" not in message for message in messages)


def test_gradients_travel_from_round_2_on_and_only_if_something_is_learned(federation, flagship):
    rows = [line["bytes"]["up_rows"] for line in flagship.of("round")]
    frozen = federation.run(settings={**FLAGSHIP, "hyper.learning-rate": 0})
    alone = [line["bytes"]["up_rows"] for line in frozen.of("round")]
    assert rows[0] == alone[0] == alone[1]  # before there is a frame there is nothing to take gradients in
    assert rows[1] == rows[2] == alone[1] + 14 * 8 * 4  # a row for each of the 14 classes that the four clients hold
    matching = [line["hyper"].get("matching") for line in flagship.of("round")]
    assert matching[0] is None
    assert all(len(losses) == 31 and losses[-1] < losses[0] for losses in matching[1:])


@pytest.mark.parametrize(
    "settings",
    [
        {"frame": "gram"},
        {"frame": "shared"},
        {"anchors": "own"},
        {"anchors": "own", "alignment": "rcsa+hpcl+hpal"},
        {"anchors": "private", "relation.shrink": 1.0},
        {"hyper.head": "server"},
        {"heads": "mixed"},
        {"heads": "htc4", "hyper.head": "server"},
        {"strategy": "fedhpro", "share": "none", "heads": "mixed"},
        {"alignment": "rcsa+hpcl+hpal"},
        {"alignment": "mse+hpal"},
        {"strategy": "fedsaf", "frame": "gram"},
        {"strategy": "fedproto", "prototypes": "hyper"},
        {"strategy": "fedsaf", "alignment": "hpcl+hpal"},
        {"strategy": "fedhpro", "share": "head"},
        {
            "strategy": "fedhpro",
            "models": "cnn",
            "hyper.grad-point": "before-training",
            "hyper.grad-samples": 2,
            "hyper.margin": "additive",
            "hyper.form": "normalised_mean",
            "hyper.distance": "coordinate_sign",
            "hyper.retrain": "creff",
        },
    ],
    ids=lambda settings: ", ".join(f"{k}={v}" for k, v in settings.items()),
)
def test_every_axis_is_a_setting(federation, settings):
    run = federation.run(settings={**FLAGSHIP, **settings, "rounds": 3})
    assert run.failures() == {}
    losses = run.of("round")[-1]["loss"]
    terms = run.summary["settings"]["alignment"].split("+")
    assert losses["total"] > losses["cross_entropy"]
    assert all(losses[term] > 0 for term in ("hpcl", "hpal") if term in terms)
    assert all(torch.isfinite(tensor).all() for tensor in run.server().values() if tensor.is_floating_point())


def test_settings_that_contradict_each_other_are_refused(federation):
    with pytest.raises(ConfigError, match=r"`hyper\.head = shared` .* averages none; set share = 'head'"):
        federation.run(settings={**FLAGSHIP, "hyper.head": "shared"})
    with pytest.raises(ConfigError, match=r"`share = head` averages heads.* `heads = mixed`.*share = 'none'"):
        federation.run(settings={**FLAGSHIP, "share": "head", "heads": "mixed"})
    with pytest.raises(ConfigError, match=r"unknown heads 'mixd'; `heads` must be one of .*did you mean 'mixed'"):
        federation.run(settings={"heads": "mixd"})
    with pytest.raises(ConfigError, match=r"`hyper\.init = normal` is noise in coordinates"):
        federation.run(settings={**FLAGSHIP, "frame": "gram", "hyper.init": "normal"})
    with pytest.raises(ConfigError, match=r"`alignment` is one of mse, cosine, gcsa, rcsa at most"):
        federation.run(settings={"alignment": "gcsa+mse"})
    with pytest.raises(ConfigError, match=r"unknown alignment 'hpcll'.*did you mean 'hpcl'"):
        federation.run(settings={"alignment": "gcsa+hpcll"})
    for alone in ("auto", "none"):
        with pytest.raises(ConfigError, match=f"`{alone}` stands alone in `alignment`, got '{alone}\\+hpcl'"):
            federation.run(settings={**FLAGSHIP, "alignment": f"{alone}+hpcl"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda g: g * math.nan, "array 'grad' holds NaN or infinity"),
        (lambda g: g * 1e12 + 1e9, "but no gradient through its head is longer than"),
        (lambda g: np.zeros((len(g) + 1, g.shape[1]), "float32"), "array 'grad': expected float32"),
    ],
    ids=["nan", "huge", "another class"],
)
def test_a_hostile_gradient_changes_nothing_but_its_clients_standing(federation, change, reason):
    """The server's state is the same as if this client had failed in any other way."""
    hostile = federation.run(federation.grid((gradients_of(change), When("train", [2, 3], [1]))), FLAGSHIP)
    absent = federation.run(
        federation.grid((fakes.lost, When("train", [2, 3], [1]))), {**FLAGSHIP, "round-timeout": 3.0}
    )
    assert set(hostile.failures()) == {(2, "1"), (3, "1")}
    assert all(reason in told for told in hostile.failures().values())
    assert equal(hostile.server(), absent.server())


def test_a_retrained_classifier_takes_the_place_of_the_averaged_one(federation):
    settings = {"strategy": "fedhpro", "models": "cnn", "rounds": 2}
    plain = federation.run(settings=settings)
    run = federation.run(settings={**settings, "hyper.retrain": "creff"})
    assert run.failures() == {}
    assert run.server()["memory.meta"].shape == (4, 50, 8)
    assert not torch.equal(run.server()["shared.head.weight"], plain.server()["shared.head.weight"])
    extra = [
        a["bytes"]["up_rows"] - b["bytes"]["up_rows"] for a, b in zip(run.of("round"), plain.of("round"), strict=True)
    ]
    assert extra == [14 * 4 * (4 * 8 + 4)] * 2


@pytest.mark.parametrize("point", ["after-training", "before-training"])
def test_gradients_are_matched_through_the_head_that_clients_took_them_through(federation, monkeypatch, point):
    """It is never the one that was just trained anew: that one is close to nobody's."""
    matched, averaged, retrained = [], [], []

    def spied(name, seen, of):
        module, _, function = name.rpartition(".")
        original = getattr(importlib.import_module(module), function)

        def spy(*arguments, **options):
            result = original(*arguments, **options)
            seen.append(of(arguments, result))
            return result

        monkeypatch.setattr(name, spy)

    spied("isoproto.parts.hyper.match_gradients", matched, lambda arguments, _: arguments[1])
    spied("isoproto.parts.weights.average_tensors", averaged, lambda _, result: result["head.weight"])
    spied("isoproto.parts.retrain.train_classifier", retrained, lambda _, result: result[0])
    settings = {"strategy": "fedhpro", "models": "cnn", "rounds": 2, "hyper.retrain": "creff"}
    assert federation.run(settings={**settings, "hyper.grad-point": point}).failures() == {}
    wanted = averaged if point == "after-training" else [averaged[0], retrained[0]]
    assert [*map(torch.equal, matched, wanted)] == [True] * 2


@pytest.mark.parametrize("settings", [{"share": "model", "frame": "gram"}, {"share": "head"}], ids=str)
def test_a_client_sees_the_server_through_the_means_of_the_model_it_tests(federation, monkeypatch, settings):
    """Averaged weights make another model of the one whose means were saved, unless they are the head's alone."""
    test, seen = client_app.local_round.evaluate_model, []

    def spy(model, data, view):
        if view.own_means is not None:
            fresh = client_app.local_round.own_means_of(client_app.local_round.statistics_of(model, data), data)
            seen.append(torch.equal(view.own_means.means, fresh.means))
        return test(model, data, view)

    monkeypatch.setattr("client_app.local_round.evaluate_model", spy)
    asked = {**FLAGSHIP, "models": "cnn", "rounds": 2, "evaluate-every": 1, **settings}
    assert federation.run(settings=asked).failures() == {}
    assert seen == [True] * (2 * 2 * 4 + 2 * 4)  # before and after training in two rounds, and the evaluations after


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({"share": "head"}, 2 + 1),
        ({"share": "model"}, 2 + 2),
        ({"share": "model", "hyper.grad-point": "before-training"}, 2 + 2),
        ({"share": "model", "hyper.grad-point": "before-training", "proto-source": "last-epoch"}, 1 + 1),
    ],
    ids=str,
)
def test_training_data_are_passed_through_no_more_often_than_needed(federation, monkeypatch, settings, passes):
    """Before training for the margin where no means were saved or the base is another, and after it for the means."""
    extract, seen = client_app.local_round.extract, []

    def spy(model, x):
        seen.append(len(x))
        return extract(model, x)

    monkeypatch.setattr("client_app.local_round.extract", spy)
    run = federation.run(settings={"strategy": "fedhpro", "models": "cnn", "rounds": 2, **settings})
    assert run.failures() == {}
    samples = {line["samples"] for line in run.of("client")}
    assert samples.isdisjoint(line["total"] for line in run.of("client"))
    assert sum(n in samples for n in seen) == 4 * passes


def test_zero_gradients_teach_nothing(federation):
    run = federation.run(federation.grid((gradients_of(np.zeros_like), When("train"))), FLAGSHIP)
    assert run.failures() == {}
    assert not run.server()["memory.learned"].any()


def test_a_frame_that_cannot_be_made_is_that_of_the_round_before(federation, monkeypatch):
    from isoproto.errors import FrameError

    def fails(*_, **__):
        raise FrameError("no eigenvalues")

    monkeypatch.setattr("isoproto.parts.relations.embed", fails)
    run = federation.run(settings={**FLAGSHIP, "frame": "gram"})
    assert run.summary["status"] == "completed"
    assert "the frame of the round before is kept: no eigenvalues" in run.log
    assert not run.server()["present"].any()
