"""Replies that no honest client can send. Each is refused by a ``WireError`` that names the array."""

import dataclasses
import math

import pytest
import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from isoproto import wire
from isoproto.common.classifier import Classifier, log_prior, solve
from isoproto.common.gradients import class_gradients
from isoproto.common.mixture import WEIGHTS
from isoproto.common.own import MOST_LOSS, Choice
from isoproto.common.samples import FrameSamples
from isoproto.common.statistics import Block, Totals
from isoproto.errors import WireError
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import ServerState
from isoproto.parts.base import Sent
from isoproto.parts.common import CommonClassifier
from isoproto.parts.common_state import CommonState, FrameRules
from isoproto.parts.view import View
from isoproto.wire.codec import ARRAYS
from tests.points import randn
from tests.unit.test_wire import EVALUATION

C, D, CLIP, HELD = 4, 5, 4.0, 3
DECLARED = (20, 0, 10, 5)
RULES = FrameRules(shrink=0.0, temperature=0.0, rounds=5, step=1.0, pull=0.0)
PART = CommonClassifier(rules=RULES, rank=3, clip=CLIP, minimum=1, holdout=0.1)
EXPECTED = wire.Expected(
    client="3",
    experiment="e1",
    server_round=2,
    num_classes=C,
    feature_dim=3,
    frame_dim=D,
    train_counts=DECLARED,
    limits=dict.fromkeys((field.name for field in PART.up), None),
    faults=(PART.fault,),
    predictors=PART.predictors,
)
BROADCAST = wire.Broadcast(experiment="e1", server_round=2, settings={})
LABELS = torch.tensor([0] * 18 + [2] * 9 + [3] * 5)


def coordinates(length=1.0):
    phi = randn(len(LABELS), 2, D)
    return length * phi / phi.norm(dim=2, keepdim=True)


def arrays(length=1.0, rank=3):
    """Return all that an honest client can send, of samples of some length."""
    phi = coordinates(length)
    block = Block.of(phi, LABELS, rank)
    (classifier,) = solve(Totals.of(phi, LABELS, C), [0.1])
    return {
        "common-block": torch.tensor([77, 0]),
        "common-ids": block.class_ids,
        "common-counts": block.counts,
        "common-sums": block.sums,
        "common-factor": block.factor,
        "common-floor": torch.tensor([block.floor]),
        "common-losses": torch.full((5, 5), 2.5),
        "common-mixed": torch.ones(len(WEIGHTS), dtype=torch.int64),
        "common-held": torch.tensor([HELD]),
        "common-gradient": class_gradients(phi, LABELS, classifier, 1.0, log_prior(torch.tensor(DECLARED))),
    }


def content(found, dtype="float32"):
    evaluation = dataclasses.replace(EVALUATION, predictors=dict.fromkeys(PART.predictors, 5))
    empty = torch.zeros(0, dtype=torch.int64)
    reply = wire.TrainReply(
        means=ClassRows(empty, torch.zeros(0, 3), empty, len(LABELS)),
        scatter=0.0,
        losses=dict.fromkeys(EXPECTED.terms, 0.0),
        before=evaluation,
        after=evaluation,
        seconds=1.0,
        arrays=found,
    )
    broadcast = dataclasses.replace(BROADCAST, settings={"wire.dtype": dtype})
    return wire.write_train_reply(reply, broadcast, "3")


def read(content, expected=EXPECTED):
    return wire.read_train_reply(recorddict_from_proto(recorddict_to_proto(content)), expected)


def without(found, *names):
    record = RecordDict(dict(content(found)))
    record[ARRAYS] = ArrayRecord({k: v for k, v in content(found)[ARRAYS].items() if k not in names})
    return record


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("length", [1.0, CLIP])
@pytest.mark.parametrize("rank", [1, 3])
def test_what_an_honest_client_sends_arrives(dtype, length, rank):
    sent = arrays(length, rank)
    found = read(content(sent, dtype), dataclasses.replace(EXPECTED, dtype=dtype)).arrays
    assert found.keys() == sent.keys()
    assert found["common-counts"].tolist() == [18, 9, 5]
    torch.testing.assert_close(found["common-sums"].double(), sent["common-sums"], rtol=0.02, atol=0.1 * length)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"common-block": [77, 2]}, "array 'common-block': expected kind 0 (training samples) or 1 (held out), got 2"),
        ({"common-block": [77, -1]}, "expected kind 0"),
        ({"common-ids": [0, 2, 4]}, "array 'common-ids': expected 0..3, got [0, 2, 4]"),
        ({"common-ids": [-1, 2, 3]}, "array 'common-ids': expected strictly increasing ids"),
        ({"common-ids": [2, 0, 3]}, "array 'common-ids': expected strictly increasing ids"),
        ({"common-ids": [0, 2, 2]}, "array 'common-ids': expected strictly increasing ids"),
        ({"common-ids": [0, 2]}, "array 'common-ids': 2 classes with 3 counts and 3 sums"),
        ({"common-counts": [18]}, "array 'common-ids': 3 classes with 1 counts and 3 sums"),
        ({"common-sums": torch.zeros(2, D)}, "array 'common-ids': 3 classes with 3 counts and 2 sums"),
        ({"common-sums": torch.zeros(1, D)}, "array 'common-ids': 3 classes with 3 counts and 1 sums"),
        (
            {"common-ids": [], "common-counts": [], "common-sums": torch.zeros(0, D)},
            "expected one of each for at least one class",
        ),
        ({"common-counts": [18, 0, 5]}, "'common-counts': [18, 0, 5] samples, the client declared (20, 0, 10, 5)"),
        ({"common-counts": [18, -9, 5]}, "array 'common-counts'"),
        ({"common-counts": [21, 9, 5]}, "array 'common-counts': [21, 9, 5] samples, the client declared"),
        ({"common-ids": [0, 1, 2]}, "array 'common-counts': [18, 9, 5] samples, the client declared"),
        ({"common-counts": [2**62] * 3}, "array 'common-counts'"),
        ({"common-block": [77, 1]}, "array 'common-counts': 32 samples held out of 35, `common.holdout = 0.1`"),
        (
            {"common-sums": torch.eye(3, D) * 40},
            "array 'common-sums': class 2 is longer than 9 samples of length 4 (`common.clip`) can be",
        ),
        ({"common-sums": torch.full((3, D), 1e30)}, "array 'common-sums'"),
        ({"common-factor": torch.full((3, D), 9.0)}, "array 'common-factor': the scatter is 1.2"),
        ({"common-factor": torch.full((3, D), 1e38)}, "array 'common-factor': the scatter is"),
        ({"common-factor": torch.zeros(4, D)}, "array 'common-factor': 4 directions, at most 3 (`common.rank`)"),
        ({"common-floor": [1e9]}, "array 'common-factor': the scatter is 5e+09"),
        ({"common-floor": [-0.5]}, "array 'common-floor': expected a number >= 0, got -0.5"),
        ({"common-held": [0]}, "array 'common-held': 0 samples held out, the client declared 35 in all"),
        ({"common-held": [5]}, "array 'common-held': 5 samples held out, the client declared 35 in all"),
        ({"common-mixed": [4] * len(WEIGHTS)}, "array 'common-mixed': 4 to 4 errors of 3 samples"),
        ({"common-mixed": [-1] * len(WEIGHTS)}, "array 'common-mixed': -1 to -1 errors of 3 samples"),
        ({"common-losses": torch.full((5, 5), -0.1)}, "'common-losses': -0.1 to -0.1, that of 3 samples is from 0"),
        ({"common-losses": torch.full((5, 5), MOST_LOSS * 4)}, "array 'common-losses': 8 to 8, that of 3 samples"),
        ({"common-losses": torch.ones(5, 3)}, "array 'common-losses': expected 5 temperatures, got 3"),
        ({"common-gradient": torch.full((C, D + 1), 99.0)}, "array 'common-gradient': norm 485, that of 35 samples is"),
    ],
)  # fmt: skip
def test_what_no_honest_client_can_send_is_refused(changes, told):
    changed = {name: value if torch.is_tensor(value) else torch.tensor(value) for name, value in changes.items()}
    with pytest.raises(WireError) as refused:
        read(content({**arrays(), **changed}))
    assert told in str(refused.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["sums", "factor", "floor", "losses", "gradient"])
def test_numbers_that_are_not_finite_are_refused(name, bad):
    found = arrays()
    found[f"common-{name}"] = torch.full_like(found[f"common-{name}"].float(), bad)
    with pytest.raises(WireError, match=f"array 'common-{name}' holds NaN or infinity"):
        read(content(found))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("sums", (3, D + 1)),
        ("factor", (3, D - 1)),
        ("gradient", (C, D)),
        ("gradient", (C + 1, D + 1)),
        ("gradient", (D + 1,)),
        ("losses", (12,)),
        ("mixed", (7,)),
        ("block", (3,)),
        ("floor", (2,)),
    ],
)
def test_arrays_of_another_shape_are_refused(name, shape):
    found = arrays()
    found[f"common-{name}"] = torch.zeros(shape, dtype=found[f"common-{name}"].dtype)
    with pytest.raises(WireError, match=f"array 'common-{name}': expected"):
        read(content(found))


def test_more_classifiers_or_directions_than_any_run_has_are_refused():
    for name, value in (("losses", torch.zeros(65, 2)), ("losses", torch.zeros(4, 65))):
        with pytest.raises(WireError, match=r"array 'common-losses': expected 1\.\.64"):
            read(content({**arrays(), f"common-{name}": value}))


@pytest.mark.parametrize("name", ["block", "ids", "counts", "sums", "factor", "floor", "losses", "mixed", "held"])
def test_a_group_without_one_of_its_arrays_is_refused(name):
    with pytest.raises(WireError, match=f"array 'common-{name}' is missing"):
        read(without(arrays(), f"common-{name}"))


def test_groups_come_or_stay_away_as_a_whole():
    found = arrays()
    some = {name: found[name] for name in ("common-losses", "common-mixed", "common-held")}
    assert read(content(some)).arrays.keys() == some.keys()
    assert read(content({})).arrays == {}


def test_arrays_in_a_run_without_a_frame_are_refused():
    none = dataclasses.replace(EXPECTED, limits={}, frame_dim=0, faults=(), predictors=("head",))
    with pytest.raises(WireError, match="but this strategy uses none"):
        read(content({"common-gradient": torch.zeros(C, 1)}), dataclasses.replace(none, predictors=PART.predictors))


def test_the_arrays_of_the_server_are_unknown_in_a_reply():
    record = content(arrays())
    record[ARRAYS] = ArrayRecord({**record[ARRAYS], "common-plan": record[ARRAYS]["common-floor"]})
    with pytest.raises(WireError, match="unexpected arrays"):
        read(record)


# What is possible, and still must not break the server


def fold(state, *replies):
    nobody = ClassRows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 32)
    return PART.fold(state, state, [Sent(nobody, 0.0, found, {}, str(i)) for i, found in enumerate(replies)])


def block_of(kind):
    return {name: tensor for name, tensor in {**arrays(), "common-block": torch.tensor([kind + 7, kind])}.items()
            if name.removeprefix("common-") in ("block", "ids", "counts", "sums", "factor", "floor")}  # fmt: skip


def test_held_out_samples_that_come_before_all_others_wait_for_them():
    first = fold(ServerState.start(C, 3), block_of(1))
    assert CommonState.of(first.memory).rows.numel() == 0
    then = CommonState.of(fold(first, block_of(0)).memory)
    at_once = CommonState.of(fold(fold(ServerState.start(C, 3), block_of(0)), block_of(1)).memory)
    torch.testing.assert_close(then.everything, at_once.everything)


def test_losses_of_another_number_of_classifiers_are_not_counted():
    state = fold(ServerState.start(C, 3), block_of(0))
    odd = {"common-losses": torch.zeros(9, 5), "common-held": torch.tensor([1]), "common-mixed": torch.zeros(66).long()}
    assert CommonState.of(fold(state, odd).memory).chosen_of == 0


def test_a_gradient_that_nobody_asked_for_moves_nothing():
    state = fold(ServerState.start(C, 3), block_of(0))
    after = fold(state, {"common-gradient": torch.ones(C, D + 1)})
    assert all(torch.equal(after.memory[name], tensor) for name, tensor in state.memory.items())


def test_longest_honest_gradient_is_within_the_bound():
    """All samples at the clip, and a classifier that is sure of the wrong class."""
    phi = torch.zeros(35, 1, D).double()
    phi[:, :, 0] = CLIP
    rows = torch.zeros(C, D + 1).double()
    rows[1, -1] = 50.0
    gradient = class_gradients(
        phi, torch.zeros(35, dtype=torch.int64), Classifier(rows, torch.ones(C) > 0), 1.0, torch.zeros(C)
    )
    assert read(content({"common-gradient": gradient})).arrays["common-gradient"].norm() > 100


def test_gradients_are_of_no_sample_of_a_class_with_too_few():
    """`min-class-samples`: the last class has one sample, and the gradient is that of the others."""
    rare = torch.cat([LABELS[:-5], torch.tensor([3])])
    phi = coordinates()[: len(rare)]
    (classifier,) = solve(Totals.of(phi, rare, C), [0.1])
    nothing = torch.zeros(0, 2, D).double()
    samples = FrameSamples(
        fit=phi,
        fit_labels=rare,
        held=nothing,
        held_labels=torch.zeros(0, dtype=torch.int64),
        test=nothing[:, 0],
        num_classes=C,
        digests=(1, 2),
        choice=Choice(0.1, 0.5),
        own_fit=classifier,
        own=classifier,
    )
    sent = {
        "common-known": torch.tensor([1, 2]),
        "common-rows": classifier.rows.unsqueeze(0),
        "common-classifier": classifier.rows,
        "common-present": classifier.present,
        "common-plan": torch.tensor([0.0, 0.5, 1.0]),
    }
    view = View(
        client="3",
        server_round=2,
        frame="shared",
        arrays=sent,
        samples=samples,
        own_means=None,
        num_classes=C,
        feature_dim=3,
    )
    found = dataclasses.replace(PART, minimum=2).measure_in_frame(view)["common-gradient"]
    wanted = class_gradients(phi[:-1], rare[:-1], classifier, 0.5, samples.prior)
    assert torch.equal(found, wanted)
