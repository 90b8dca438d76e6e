"""Laws of the wire schema: what is written is read, and nothing else ever raises anything but a WireError."""

import contextlib
import copy

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given, settings
from hypothesis import strategies as st

from isoproto import wire
from isoproto.errors import WireError
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import reported_terms
from isoproto.wire.rounding import FORMATS, TINY

NAMES = st.text("ab09 -_.'\"\\äλ漢٣🙂", min_size=1, max_size=20)
ODD_TEXT = st.text("a\0\x1b\n\u202e漢", max_size=30)
COUNTS = st.integers(0, 2**40)
FLOATS = st.floats(-1e6, 1e6, width=32)


def sent(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


@st.composite
def evaluations(draw: st.DrawFn, classes: int) -> wire.Evaluation:
    total = draw(st.lists(st.integers(0, 1000), min_size=classes, max_size=classes))
    correct = [draw(st.integers(0, n)) for n in total]
    prototype = draw(st.none() | st.integers(0, sum(total)))
    mistaken = draw(st.permutations([n - right for n, right in zip(total, correct, strict=True)]))
    return wire.Evaluation(
        correct=sum(correct),
        total=sum(total),
        correct_prototype=prototype,
        class_correct=tuple(correct),
        class_total=tuple(total),
        class_predicted=tuple(right + others for right, others in zip(correct, mistaken, strict=True)),
    )


@st.composite
def contributions(draw: st.DrawFn, classes: int, width: int) -> ClassRows:
    ids = sorted(draw(st.sets(st.integers(0, classes - 1))))
    rows = draw(st.lists(FLOATS, min_size=len(ids) * width, max_size=len(ids) * width))
    counts = draw(st.lists(st.integers(1, 2**40), min_size=len(ids), max_size=len(ids)))
    more = draw(st.integers(0, 100)) if sum(counts) <= 2**40 - 100 else 0
    counts = counts if sum(counts) <= 2**40 else [1] * len(ids)
    return ClassRows(
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(rows, dtype=torch.float32).view(len(ids), width),
        torch.tensor(counts, dtype=torch.int64),
        sum(counts) + more,
    )


@given(st.data(), st.integers(1, 8), st.integers(1, 5))
def test_a_training_reply_is_read_as_it_was_written(data, classes, width):
    evaluation = data.draw(evaluations(classes))
    reply = wire.TrainReply(
        means=data.draw(contributions(classes, width)),
        scatter=data.draw(st.floats(0, 1e38)),
        losses={name: data.draw(st.floats(-1e38, 1e38)) for name in reported_terms(())},
        before=wire.Evaluation(correct=0, total=evaluation.total),
        after=evaluation,
        seconds=data.draw(st.floats(0, 1e9)),
    )
    name, server_round = data.draw(NAMES), data.draw(st.integers(0, 2**31))
    broadcast = wire.Broadcast(experiment=data.draw(NAMES), server_round=server_round, settings={})
    expected = wire.Expected(
        client=name,
        experiment=broadcast.experiment,
        server_round=server_round,
        num_classes=classes,
        feature_dim=width,
    )
    read = wire.read_train_reply(sent(wire.write_train_reply(reply, broadcast, name)), expected)
    assert torch.equal(read.means.class_ids, reply.means.class_ids)
    assert torch.equal(read.means.rows, reply.means.rows)
    assert torch.equal(read.means.counts, reply.means.counts)
    assert read.means.samples == reply.means.samples
    assert (read.scatter, read.seconds, read.losses) == (reply.scatter, reply.seconds, reply.losses)
    assert (read.after.correct, read.after.total, read.after.correct_prototype) == (
        evaluation.correct,
        evaluation.total,
        evaluation.correct_prototype,
    )


@given(st.data(), st.integers(1, 8))
def test_an_evaluation_is_read_as_it_was_written(data, classes):
    evaluation = data.draw(evaluations(classes))
    broadcast = wire.Broadcast(experiment="e", server_round=1, settings={})
    expected = wire.Expected(client="0", experiment="e", server_round=1, num_classes=classes, feature_dim=1)
    content = sent(wire.write_evaluate_reply(evaluation, broadcast, "0"))
    assert wire.read_evaluate_reply(content, expected) == evaluation


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=30))
def test_predictions_that_are_counted_honestly_are_read_as_they_were_written(samples):
    """Each sample says whether the shown prediction, the one with nothing exchanged and the head are right."""
    shown, alone, head = ([sample[i] for sample in samples] for i in range(3))
    evaluation = wire.Evaluation(
        correct=sum(shown),
        total=len(samples),
        class_correct=(sum(shown),),
        class_total=(len(samples),),
        class_predicted=(len(samples),),
        predictors={"head": sum(head), "joint": sum(shown), "alone": sum(alone)},
        gained=sum(a and not b for a, b in zip(shown, alone, strict=True)),
        lost=sum(b and not a for a, b in zip(shown, alone, strict=True)),
    )
    broadcast = wire.Broadcast(experiment="e", server_round=1, settings={})
    expected = wire.Expected(
        client="0", experiment="e", server_round=1, num_classes=1, feature_dim=1, predictors=wire.PREDICTORS
    )
    content = sent(wire.write_evaluate_reply(evaluation, broadcast, "0"))
    assert wire.read_evaluate_reply(content, expected) == evaluation


@given(st.data(), st.lists(NAMES, min_size=1, max_size=8))
def test_client_info_is_read_as_it_was_written(data, classes):
    counts = st.lists(COUNTS, min_size=len(classes), max_size=len(classes)).map(tuple)
    shapes = st.lists(st.integers(0, 1000), max_size=4).map(tuple)
    info = wire.ClientInfo(
        client=data.draw(NAMES),
        model=data.draw(NAMES),
        feature_dim=data.draw(st.integers(1, 2**20)),
        classes=tuple(classes),
        train_counts=data.draw(counts),
        test_counts=data.draw(counts),
        domain=data.draw(NAMES),
        partitions=data.draw(st.integers(0, 2**20)),
        fingerprint=data.draw(NAMES),
        folder=data.draw(NAMES),
        shared=data.draw(st.dictionaries(NAMES, st.tuples(st.sampled_from(["float32", "int64"]), shapes), max_size=4)),
    )
    assert wire.read_client_info(sent(wire.write_client_info(info))) == info


# Anything a peer may put where something of ours is expected.
SCALARS = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | ODD_TEXT
    | st.booleans()
    | st.binary(max_size=10)
    | st.lists(st.integers(-5, 5), max_size=5)
    | st.lists(ODD_TEXT, max_size=5)
)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.lists(st.floats(), max_size=5)
ARRAYS = st.builds(
    Array,
    st.sampled_from(["float32", "int32", "int64", "uint8", "object", "", "<f4", "V8"]),
    st.lists(st.integers(-3, 2**31 - 1), max_size=3).map(tuple),
    st.sampled_from(["numpy.ndarray", "torch.Tensor", ""]),
    st.binary(max_size=200) | st.just(Array(np.zeros((2, 3), "float32")).data),
)


@st.composite
def mutilated(draw: st.DrawFn, content: RecordDict) -> RecordDict:
    """Draw a message in which a record or an entry is missing, replaced or added."""
    content = copy.deepcopy(content)
    name = draw(st.sampled_from(sorted(content)))
    record = content[name]
    what = draw(st.sampled_from(["drop record", "other record", "drop entry", "entry", "entry", "entry"]))
    if what == "drop record":
        del content[name]
    elif what == "other record":
        content[name] = draw(st.sampled_from([ArrayRecord(), ConfigRecord(), MetricRecord({"x": 1})]))
    else:
        key = draw(st.sampled_from([*sorted(record), "strange"]))
        if what == "drop entry":
            record.pop(key, None)
        else:
            values = {ArrayRecord: ARRAYS, ConfigRecord: SCALARS, MetricRecord: NUMBERS}[type(record)]
            record[key] = draw(values)
    return sent(content)


EXPECTED = wire.Expected(client="0", experiment="e", server_round=1, num_classes=4, feature_dim=3)
BROADCAST = wire.Broadcast(
    experiment="e",
    server_round=1,
    settings={"rounds": 3},
    arrays={"prototypes": torch.ones(4, 3), "present": torch.ones(4, dtype=torch.bool)},
    shared={"head.bias": torch.zeros(4), "base.count": torch.tensor(3)},
)
REPLY = wire.TrainReply(
    means=ClassRows(torch.tensor([0, 2]), torch.ones(2, 3), torch.tensor([5, 6]), 11),
    scatter=0.0,
    losses=dict.fromkeys(reported_terms(()), 0.0),
    before=wire.Evaluation(correct=1, total=2),
    after=wire.Evaluation(correct=1, total=2),
    seconds=0.0,
)
EVALUATION = wire.Evaluation(
    correct=1, total=2, class_correct=(1, 0, 0, 0), class_total=(1, 0, 1, 0), class_predicted=(1, 1, 0, 0)
)
INFO = wire.ClientInfo(
    client="0", model="cnn", feature_dim=3, classes=("a", "b"), train_counts=(1, 2), test_counts=(0, 1)
)


@settings(max_examples=300)
@given(st.data())
def test_a_mutilated_message_raises_a_wire_error_or_is_fine(data):
    """The server drops a client on a WireError; any other exception would end the federation."""
    content, read = data.draw(
        st.sampled_from(
            [
                (wire.write_train_reply(REPLY, BROADCAST, "0"), lambda c: wire.read_train_reply(c, EXPECTED)),
                (
                    wire.write_evaluate_reply(EVALUATION, BROADCAST, "0"),
                    lambda c: wire.read_evaluate_reply(c, EXPECTED),
                ),
                (wire.write_client_info(INFO), wire.read_client_info),
                (wire.write_broadcast(BROADCAST), lambda c: wire.read_broadcast(c, num_classes=4, feature_dim=3)),
                (wire.write_query(wire.Query(experiment="e", fingerprint="f", settings={"a": 1})), wire.read_query),
            ]
        )
    )
    with contextlib.suppress(WireError):
        read(data.draw(mutilated(content)))


@given(st.binary(max_size=300))
def test_bytes_of_an_array_raise_a_wire_error_or_are_fine(tail):
    data = Array(np.zeros((2, 3), "float32")).data
    for forged in (tail, data[:10] + tail, data[:60] + tail, data[:-24] + tail):
        content = wire.write_train_reply(REPLY, BROADCAST, "0")
        content["arrays"]["proto"] = Array("float32", (2, 3), "numpy.ndarray", forged)
        with contextlib.suppress(WireError):
            wire.read_train_reply(content, EXPECTED)


@given(st.sampled_from(["float16", "int8"]), st.data(), st.integers(0, 4), st.integers(1, 40))
def test_rounded_rows_are_near_and_are_never_taken_for_forged(dtype, data, rows, width):
    exponents = data.draw(st.lists(st.integers(-40, 30), min_size=rows, max_size=rows))
    numbers = data.draw(st.lists(st.floats(-1, 1, width=32), min_size=rows * width, max_size=rows * width))
    sizes = 10.0 ** torch.tensor(exponents, dtype=torch.float64).view(-1, 1)
    x = (torch.tensor(numbers, dtype=torch.float64).view(rows, width) * sizes).float()
    form = FORMATS[dtype]
    stored, scales = form.round(x)
    assert not form.forged(stored, scales).any()
    came = form.restore(stored, scales)
    largest = x.abs().amax(1, keepdim=True)
    step = 0.5 / 127 if dtype == "int8" else 2**-11
    assert ((came - x).abs() <= 1.0001 * step * largest + TINY).all()
    assert (came.norm(dim=1) <= x.norm(dim=1) * (1.001 + form.stretch(width))).all()
    # Who passes a row on that came rounded adds nothing: float16 exactly, int8 but for the scale's last digit. Only a
    # row of just 1e-30 may have fallen below what is sent at all.
    again = form.restore(*form.round(came))
    torch.testing.assert_close(again, came, rtol=3e-7 if dtype == "int8" else 0, atol=TINY)
