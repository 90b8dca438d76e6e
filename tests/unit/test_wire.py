"""Round trips, and every way in which a message can be wrong. Each refusal is a ``WireError`` that names the field."""

import dataclasses
import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from isoproto import wire
from isoproto.errors import MoreSamples, SchemaMismatch, WireError
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import PARTS, Field, Part, ServerState, reported_terms
from isoproto.parts.base import Limit, LimitOf
from isoproto.parts.gradients import GradientHead
from isoproto.wire.broadcast import DOWN
from isoproto.wire.train_reply import UP
from tests.fakes import add_part

CLASSES = ("cat", "dog", "owl", "fox")
EXPECTED = wire.Expected(client="3", experiment="e1", server_round=2, num_classes=4, feature_dim=3, max_norm=100.0)
BROADCAST = wire.Broadcast(experiment="e1", server_round=2, settings={})
EVALUATION = wire.Evaluation(
    correct=5,
    total=8,
    correct_prototype=6,
    class_correct=(2, 0, 3, 0),
    class_total=(3, 0, 5, 0),
    class_predicted=(2, 1, 5, 0),
)
INFO = wire.ClientInfo(
    client="3",
    model="cnn",
    feature_dim=3,
    classes=CLASSES,
    train_counts=(9, 0, 4, 0),
    test_counts=(3, 0, 5, 0),
    domain="scan",
    partitions=4,
    fingerprint="0123456789abcdef",
    folder="/opt/app",
    shared={"head.weight": ("float32", (4, 3)), "step": ("int64", ())},
)
MEANS = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 0.0]])


def sent(content: RecordDict) -> RecordDict:
    """Send a message's content the way Flower does."""
    return recorddict_from_proto(recorddict_to_proto(content))


def train_reply(**changes: Any) -> wire.TrainReply:
    values: dict[str, Any] = {
        "means": ClassRows(torch.tensor([0, 2]), MEANS, torch.tensor([9, 4]), samples=13),
        "scatter": 0.25,
        "losses": dict.fromkeys(reported_terms(()), 0.5),
        "before": wire.Evaluation(correct=2, total=8),
        "after": wire.Evaluation(correct=5, total=8, correct_prototype=6),
        "seconds": 0.75,
    }
    return wire.TrainReply(**{**values, **changes})


def reply_content(**changes: Any) -> RecordDict:
    return sent(wire.write_train_reply(train_reply(**changes), BROADCAST, client="3"))


def with_array(name: str, values: Any, dtype: str) -> RecordDict:
    content = reply_content()
    content["arrays"][name] = Array(np.asarray(values, dtype=dtype))
    return sent(content)


def with_rows(means: Any, ids: Any = (0, 2), counts: Any = (9, 4)) -> RecordDict:
    content = reply_content()
    content["arrays"]["class-ids"] = Array(np.asarray(ids, dtype="int32"))
    content["arrays"]["proto"] = Array(np.asarray(means, dtype="float32"))
    content["arrays"]["count"] = Array(np.asarray(counts, dtype="int64"))
    return sent(content)


def with_value(record: str, key: str, value: Any) -> RecordDict:
    content = reply_content()
    content[record][key] = value
    return sent(content)


def without(record: str, key: str) -> RecordDict:
    content = reply_content()
    del content[record][key]
    return sent(content)


def no_longer_than(longest: float) -> LimitOf:
    """Return a limit of gradients."""
    return lambda shared: Limit(longest, "but no gradient through its head is longer than {:.3g}")


def npy(header: str, data: bytes, version: tuple[int, int] = (1, 0)) -> bytes:
    """Write an npy file with a header of one's own."""
    text = header.encode() + b"\n"
    size = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text + data


def header(shape: tuple[int, ...], descr: str = "<f4", *, fortran: bool = False) -> str:
    return str({"descr": descr, "fortran_order": fortran, "shape": shape})


def read(content: RecordDict, expected: wire.Expected = EXPECTED) -> wire.TrainReply:
    return wire.read_train_reply(content, expected)


# Round trips


def test_query_arrives_as_it_was_sent():
    query = wire.Query(experiment="e1", fingerprint="abc", settings={"rounds": 3, "lambda": 0.5, "split": "merged"})
    content = sent(wire.write_query(query))
    assert wire.read_query(content) == query
    assert wire.read_settings(content) == query.settings


def test_client_info_arrives_as_it_was_sent():
    assert wire.read_client_info(sent(wire.write_client_info(INFO))) == INFO


def test_broadcast_arrives_as_it_was_sent():
    shared = {"head.weight": torch.arange(6.0).view(2, 3), "base.bn.num_batches_tracked": torch.tensor(7)}
    broadcast = wire.Broadcast(
        experiment="e1",
        server_round=2,
        settings={"seed": 1},
        arrays={"prototypes": torch.arange(12.0).view(4, 3), "present": torch.tensor([True, False, True, True])},
        shared=shared,
    )
    read = wire.read_broadcast(sent(wire.write_broadcast(broadcast)), num_classes=4, feature_dim=3)
    assert (read.experiment, read.server_round, read.settings) == ("e1", 2, {"seed": 1})
    assert read.arrays.keys() == {"prototypes", "present"}
    assert torch.equal(read.arrays["prototypes"], broadcast.arrays["prototypes"])
    assert torch.equal(read.arrays["present"], broadcast.arrays["present"])
    assert wire.tensor_spec(read.shared) == wire.tensor_spec(shared)
    assert all(torch.equal(read.shared[name], tensor) for name, tensor in shared.items())


def test_a_broadcast_of_settings_alone_holds_no_arrays():
    """Before there are prototypes, and for methods that have none."""
    content = sent(wire.write_broadcast(BROADCAST))
    assert sorted(content) == ["config", "settings"]
    read = wire.read_broadcast(content, num_classes=4, feature_dim=3)
    assert (read.arrays, read.shared) == ({}, {})


def test_train_reply_arrives_as_it_was_sent():
    reply = read(reply_content())
    assert torch.equal(reply.means.class_ids, torch.tensor([0, 2]))
    assert torch.equal(reply.means.rows, MEANS)
    assert torch.equal(reply.means.counts, torch.tensor([9, 4]))
    assert reply.means.samples == 13
    assert (reply.scatter, reply.seconds, reply.losses) == (0.25, 0.75, dict.fromkeys(reported_terms(()), 0.5))
    assert reply.before == wire.Evaluation(correct=2, total=8)
    assert reply.after == wire.Evaluation(correct=5, total=8, correct_prototype=6)
    assert reply.shared == {}


def test_whole_number_scalars_keep_their_shape():
    """BatchNorm counts its batches in a tensor without axes; NumPy's ``ascontiguousarray`` would give it one."""
    shared = {"base.bn.num_batches_tracked": torch.tensor(3), "head.bias": torch.zeros(4)}
    expected = wire.Expected(
        client="3", experiment="e1", server_round=2, num_classes=4, feature_dim=3, shared=wire.tensor_spec(shared)
    )
    reply = read(reply_content(shared=shared), expected)
    assert wire.tensor_spec(reply.shared) == wire.tensor_spec(shared)


def test_reply_without_rows_is_welcome():
    none = torch.zeros(0, dtype=torch.int64)
    reply = read(reply_content(means=ClassRows(none, torch.zeros(0, 3), none, samples=0)))
    assert reply.means.rows.shape == (0, 3)


def test_evaluation_arrives_as_it_was_sent():
    content = sent(wire.write_evaluate_reply(EVALUATION, BROADCAST, client="3"))
    assert wire.read_evaluate_reply(content, EXPECTED) == EVALUATION


def test_rows_that_are_not_there_may_hold_anything():
    prototypes = torch.tensor([[1.0] * 3, [math.nan] * 3, [2.0] * 3, [math.inf] * 3])
    present = torch.tensor([True, False, True, False])
    broadcast = dataclasses.replace(BROADCAST, arrays={"prototypes": prototypes, "present": present})
    read = wire.read_broadcast(sent(wire.write_broadcast(broadcast)), num_classes=4, feature_dim=3)
    assert torch.equal(read.arrays["prototypes"][present], prototypes[present])


def test_a_prototype_method_sends_no_weights():
    """A5: the only arrays are the prototypes with their mask down, and ids, rows and counts up."""
    prototypes = {"prototypes": torch.zeros(4, 3), "present": torch.ones(4).bool()}
    broadcast = dataclasses.replace(BROADCAST, arrays=prototypes)
    down, up = wire.write_broadcast(broadcast), reply_content()
    assert {name for record in down.array_records.values() for name in record} == {"prototypes", "present"}
    assert {name for record in up.array_records.values() for name in record} == {"class-ids", "proto", "count"}


def test_payload_of_two_rows_of_three():
    """Two ids of 4 bytes, six numbers of 4 bytes, two counts of 8 bytes."""
    assert wire.payload_bytes(train_reply()) == 2 * 4 + 6 * 4 + 2 * 8


def test_class_digest_depends_on_names_and_order():
    digests = {wire.class_digest(names) for names in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", ""])}
    assert len(digests) == 4


# Refusals of a training reply


@pytest.mark.parametrize(
    ("record", "key", "value", "told"),
    [
        ("config", "experiment", "e2", r"config 'experiment': expected 'e1', got 'e2'"),
        ("config", "round", 1, r"config 'round': expected 2, got 1"),
        ("config", "round", "2", r"config 'round': expected 2, got '2'"),
        ("config", "client", "4", r"config 'client': expected '3', got '4'"),
        ("config", "client", "x" * 10**6, r"config 'client': expected '3', got 'x{70,80}$"),
        ("config", "client", "\x1b[2J\n", r"got '\\x1b\[2J\\n'$"),
        ("metrics", "samples", 12, r"array 'count': 13 samples in the classes, but 'samples' is 12"),
        ("metrics", "samples", -1, r"'samples': expected a whole number"),
        ("metrics", "samples", 2**60, r"'samples': expected a whole number"),
        ("metrics", "samples", 13.0, r"'samples': expected a whole number"),
        ("metrics", "scatter", math.nan, r"metric 'scatter': expected a finite number >= 0, got nan"),
        ("metrics", "scatter", -0.5, r"metric 'scatter': expected a finite number >= 0, got -0.5"),
        ("metrics", "scatter", [0.5], r"metric 'scatter': expected a finite number >= 0, got \[0.5\]"),
        ("metrics", "seconds", math.inf, r"metric 'seconds': expected a finite number"),
        ("metrics", "loss-total", math.nan, r"metric 'loss-total': expected a finite number, got nan"),
        (
            "metrics",
            "loss-total",
            1.7e308,
            r"metric 'loss-total': expected a finite number, got 1\.7e\+308; at most 3\.4e",
        ),
        ("metrics", "loss-total", -4e38, r"metric 'loss-total': expected a finite number, got -4e\+38"),
        ("metrics", "scatter", 1e300, r"metric 'scatter': expected a finite number >= 0, got 1e\+300"),
        ("metrics", "loss-instance", -math.inf, r"metric 'loss-instance': expected a finite number"),
        ("metrics", "after-correct", 9, r"metric 'after-correct': 9 right of 8 samples"),
        ("metrics", "after-correct", -1, r"'after-correct': expected a whole number"),
        ("metrics", "before-correct-prototype", 9, r"metric 'before-correct': 9 right of 8 samples"),
        ("metrics", "before-correct-prototype", -2, r"'before-correct-prototype': expected a whole number from -1"),
        ("metrics", "after-total", math.nan, r"'after-total': expected a whole number"),
    ],
)
def test_wrong_value_is_refused(record, key, value, told):
    with pytest.raises(WireError, match=told):
        read(with_value(record, key, value))


@pytest.mark.parametrize(
    ("counts", "samples", "told"),
    [
        ((10, 4), 14, r"array 'count': 10 samples of class 0, the client declared 9"),
        ((9, 2**39), 2**40, r"array 'count': 549755813888 samples of class 2, the client declared 4"),
        ((9, 4), 16, r"metric 'samples': 16, the client declared 15"),
    ],
)
def test_more_samples_than_the_client_told_of_are_refused(counts, samples, told):
    """Its counts are its weight in the averages. Fewer are fine: what is of small classes is not sent."""
    expected = dataclasses.replace(EXPECTED, train_counts=(9, 2, 4, 0))
    assert read(reply_content(), expected).means.samples == 13
    contribution = ClassRows(torch.tensor([0, 2]), MEANS, torch.tensor(counts), samples)
    with pytest.raises(MoreSamples, match=told):
        read(reply_content(means=contribution), expected)


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_other_schema_is_refused(schema):
    content = without("config", "schema") if schema is None else with_value("config", "schema", schema)
    with pytest.raises(SchemaMismatch, match=rf"wire schema {schema!r}, this side speaks 1; update the older side"):
        read(content)


@pytest.mark.parametrize(
    "key", ["samples", "scatter", "seconds", "loss-total", "before-correct", "after-total", "after-correct-prototype"]
)
def test_missing_metric_is_refused(key):
    with pytest.raises(WireError, match=rf"'{key}': expected .*, got None"):
        read(without("metrics", key))


@pytest.mark.parametrize("name", ["config", "arrays", "metrics"])
def test_missing_record_is_refused(name):
    content = reply_content()
    del content[name]
    with pytest.raises(WireError, match=rf"no \w+Record '{name}' in the message: it is none of isoproto's"):
        read(content)


@pytest.mark.parametrize(("record", "value"), [("metrics", 1.0), ("config", "x" * 10**6)])
def test_extra_value_is_refused(record, value):
    with pytest.raises(WireError, match=rf"unexpected {record} \['note'\]"):
        read(with_value(record, "note", value))


def test_record_of_another_kind_is_refused():
    content = reply_content()
    content["arrays"] = MetricRecord({"proto": 1.0})
    with pytest.raises(WireError, match="no ArrayRecord 'arrays'"):
        read(content)


def test_extra_array_is_refused():
    content = reply_content()
    content["arrays"]["mean"] = Array(np.zeros((2, 3), "float32"))
    with pytest.raises(WireError, match=r"unexpected arrays \['mean'\]"):
        read(content)


@pytest.mark.parametrize(
    "extra",
    [
        ArrayRecord({"x": Array(np.zeros(3, "float32"))}),
        ConfigRecord({"note": "x" * 10**6}),
        MetricRecord({"x": [0.0] * 10**5}),
    ],
)
def test_extra_record_is_refused(extra):
    content = reply_content()
    content["extra"] = extra
    with pytest.raises(WireError, match=r"unexpected records \['extra'\]"):
        read(sent(content))


@pytest.mark.parametrize("name", ["class-ids", "proto", "count"])
def test_missing_array_is_refused(name):
    with pytest.raises(WireError, match=f"array '{name}'"):
        read(without("arrays", name))


@pytest.mark.parametrize(
    ("name", "values", "dtype", "told"),
    [
        ("proto", [[1, 2, 3]], "float32", r"expected float32 \(2, 3\), got 'float32' \(1, 3\)"),
        ("proto", [[1, 2], [3, 4]], "float32", r"expected float32 \(2, 3\), got 'float32' \(2, 2\)"),
        ("proto", [1, 2, 3, 4, 5, 6], "float32", r"expected float32 \(2, 3\), got 'float32' \(6,\)"),
        ("proto", np.zeros((2, 3)), "float64", r"expected float32 \(2, 3\), got 'float64'"),
        ("proto", np.zeros((2, 3)), "float16", r"expected float32 \(2, 3\), got 'float16'"),
        ("class-ids", [0, 2], "int64", r"expected int32 \(2,\), got 'int64'"),
        ("class-ids", [[0, 2]], "int32", r"expected at most 4 entries, got shape \(1, 2\)"),
        ("class-ids", [0, 1, 2, 3, 3], "int32", r"expected at most 4 entries, got shape \(5,\)"),
        ("class-ids", 0, "int32", r"expected at most 4 entries, got shape \(\)"),
        ("count", [9.0, 4.0], "float64", r"expected int64 \(2,\), got 'float64'"),
        ("count", [9], "int64", r"expected int64 \(2,\), got 'int64' \(1,\)"),
    ],
)
def test_wrong_shape_or_dtype_is_refused(name, values, dtype, told):
    with pytest.raises(WireError, match=f"array '{name}': {told}"):
        read(with_array(name, values, dtype))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_number_that_is_not_finite_is_refused(bad):
    with pytest.raises(WireError, match=r"array 'proto' holds NaN or infinity, shape \(2, 3\)"):
        read(with_rows([[1, 2, 3], [4, bad, 6]]))


@pytest.mark.parametrize("ids", [(0, 4), (-1, 2), (0, 2**31 - 1)])
def test_class_outside_the_list_is_refused(ids):
    with pytest.raises(WireError, match=r"array 'class-ids': expected 0..3, got"):
        read(with_rows(MEANS, ids=ids))


@pytest.mark.parametrize("ids", [(2, 2), (2, 0)])
def test_repeated_or_descending_classes_are_refused(ids):
    with pytest.raises(WireError, match=r"array 'class-ids': expected strictly increasing ids, got"):
        read(with_rows(MEANS, ids=ids))


@pytest.mark.parametrize("counts", [(0, 13), (-1, 4), (9, 2**62), (-(2**63), 4), (2**63 - 1, 2**63 - 1)])
def test_count_out_of_range_is_refused(counts):
    with pytest.raises(WireError, match=r"array 'count': expected 1\.\.\d+, got"):
        read(with_rows(MEANS, counts=counts))


def test_row_that_is_too_long_is_refused():
    with pytest.raises(WireError, match=r"row of class 2 has norm 173, `max-norm` is 100"):
        read(with_rows([[1, 2, 3], [100, 100, 100]]))


def test_norm_is_not_fooled_by_overflow():
    with pytest.raises(WireError, match=r"row of class 0 has norm 3\.4e\+38"):
        read(with_rows([[3.4e38, 0, 0], [1, 1, 1]]))


def test_row_at_the_limit_is_welcome():
    assert read(with_rows([[100, 0, 0], [0, 0, -100]])).means.rows[0, 0] == 100


def test_values_at_their_limits_are_welcome():
    counts = torch.tensor([1, 2**40 - 1])
    reply = read(
        reply_content(
            means=ClassRows(torch.tensor([0, 3]), MEANS, counts, samples=2**40),
            scatter=0.0,
            seconds=0.0,
            before=wire.Evaluation(correct=0, total=0, correct_prototype=0),
            after=wire.Evaluation(correct=8, total=8, correct_prototype=8),
        )
    )
    assert torch.equal(reply.means.counts, counts)
    assert (reply.before.correct_prototype, reply.after.correct_prototype) == (0, 8)
    one = dataclasses.replace(
        INFO, classes=("x" * 4096,), train_counts=(0,), test_counts=(0,), shared={"w": ("float32", (0, 3))}
    )
    assert wire.read_client_info(sent(wire.write_client_info(one))) == one


def test_order_of_storage_is_no_matter_to_an_array_with_one_axis():
    content = reply_content()
    data = npy(header((2,), "<i8", fortran=True), np.array([9, 4], "<i8").tobytes())
    content["arrays"]["count"] = Array("int64", (2,), "numpy.ndarray", data)
    assert read(sent(content)).means.counts.tolist() == [9, 4]


# Refusals of forged arrays: declared shape, header and length must agree before anything is decoded.


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (npy(header((10**6, 10**4)), b"\0" * 24), r"declared float32 \(2, 3\), but its header says float32"),
        (npy(header((3, 2)), b"\0" * 24), r"declared float32 \(2, 3\), but its header says float32 \(3, 2\)"),
        (npy(header((2, 3), fortran=True), b"\0" * 24), r"declared float32 \(2, 3\), but its header says"),
        (npy(header((2, 3), ">f4"), b"\0" * 24), r"declared float32 \(2, 3\), but its header says >f4"),
        (npy(header((2, 3), "<f8"), b"\0" * 48), r"declared float32 \(2, 3\), but its header says float64"),
        (npy(header((2, 3), "|O"), b"\0" * 48), r"declared float32 \(2, 3\), but its header says object"),
        (npy(header((2, 3)), b"\0" * 24, (2, 0)), r"its header cannot be read \(ValueError\)"),
        (npy(header((2, 3)), b"\0" * 23), r"expected 24 bytes of data, got 23"),
        (npy(header((2, 3)), b"\0" * 10**6), r"expected 24 bytes of data, got 1000000"),
        (npy(header((2, 3)), b"\0" * 24)[:40], r"its header cannot be read"),
        (npy("{'descr': '<f4'}", b"\0" * 24), r"its header cannot be read \(ValueError\)"),
        (npy("[" * 5000, b"\0" * 24), r"its header cannot be read"),
        (b"", r"its header cannot be read \(ValueError\)"),
        (b"\x93NUMPY", r"its header cannot be read \(ValueError\)"),
        (b"PK\x03\x04" + b"\0" * 100, r"its header cannot be read \(ValueError\)"),
    ],
)
def test_forged_header_is_refused(data, told):
    content = reply_content()
    content["arrays"]["proto"] = Array("float32", (2, 3), "numpy.ndarray", data)
    with pytest.raises(WireError, match=f"array 'proto': {told}"):
        read(sent(content))


def test_array_stored_in_another_way_is_refused():
    stream = io.BytesIO()
    torch.save(MEANS, stream)
    content = reply_content()
    content["arrays"]["proto"] = Array("float32", (2, 3), "torch.Tensor", stream.getvalue())
    with pytest.raises(WireError, match="array 'proto': expected float32"):
        read(sent(content))


def test_declared_shape_that_differs_from_the_header_is_refused():
    stream = io.BytesIO()
    np.save(stream, np.zeros((4, 3), "float32"))
    content = reply_content()
    content["arrays"]["proto"] = Array("float32", (2, 3), "numpy.ndarray", stream.getvalue())
    with pytest.raises(WireError, match=r"declared float32 \(2, 3\), but its header says float32 \(4, 3\)"):
        read(sent(content))


# Rows that travel rounded

ROUNDED = ("float16", "int8")


def rounded(dtype: str, **changes: Any) -> RecordDict:
    broadcast = dataclasses.replace(BROADCAST, settings={"wire.dtype": dtype})
    return sent(wire.write_train_reply(train_reply(**changes), broadcast, client="3"))


def rounding(dtype: str, **changes: Any) -> wire.Expected:
    return dataclasses.replace(EXPECTED, dtype=dtype, **changes)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0), ("float16", 2**-10), ("int8", 0.5 / 127)])
def test_rows_arrive_within_half_a_step(dtype, error):
    weight = torch.tensor([1e-3, 1.0, 1e3, 0.0]).view(1, 4, 1) * torch.tensor([[[1.0, -0.3, 0.2]], [[0.1, 0.2, 0.9]]])
    bias = torch.full((2, 4), 0.1)
    content = rounded(dtype, arrays={"grad": 1e-5 * MEANS, "grad-weight": weight, "grad-bias": bias})
    limits = {"grad": no_longer_than(1.0), "grad-weight": None, "grad-bias": None}
    reply = read(content, rounding(dtype, limits=limits, max_norm=1e5))
    for sent_rows, came in (
        (MEANS, reply.means.rows),
        (1e-5 * MEANS, reply.arrays["grad"]),
        (weight, reply.arrays["grad-weight"]),
    ):
        assert came.dtype == torch.float32
        assert ((came - sent_rows).abs() <= 1.0001 * error * sent_rows.abs().amax(-1, keepdim=True)).all()
    assert torch.equal(reply.arrays["grad-bias"], bias)
    assert torch.equal(reply.means.counts, torch.tensor([9, 4]))
    stored = {name: array.dtype for name, array in content["arrays"].items()}
    assert (stored["proto"], stored["grad"], stored["grad-weight"], stored["grad-bias"]) == (*[dtype] * 3, "float32")


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2**-10), ("int8", 0.5 / 127)])
def test_a_broadcast_rounds_rows_and_no_weights(dtype, error):
    shared = {"base.w": torch.tensor([[1e-6, 1.0]])}
    rows = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-5.0, 0.1, 0.2], [1e5, 7.0, 1.0]])
    relations = rows @ rows.T
    broadcast = wire.Broadcast(
        experiment="e1",
        server_round=2,
        settings={"wire.dtype": dtype},
        arrays={
            "prototypes": rows,
            "present": torch.tensor([True, False, True, True]),
            "relations": relations,
            "anchor-dir": rows,
            "anchor-mean": -rows,
            "hyper": torch.stack([rows, 2 * rows], 1),
            "head-weight": rows / 3,
            "head-bias": rows[:, 0] / 3,
        },
        shared=shared,
    )
    content = sent(wire.write_broadcast(broadcast))
    came = wire.read_broadcast(content, num_classes=4, feature_dim=3)
    for name in ("prototypes", "anchor-dir", "anchor-mean", "hyper"):
        wanted = broadcast.arrays[name]
        assert ((came.arrays[name] - wanted).abs() <= 1.0001 * error * wanted.abs().amax(-1, keepdim=True)).all()
    found = came.arrays["relations"]
    assert torch.equal(found, found.T)
    assert ((found - relations).abs() <= 1.0001 * error * relations.abs().max()).all()
    assert not found[1].any()  # an absent class stays absent
    assert torch.equal(came.arrays["head-weight"], rows / 3)
    assert torch.equal(came.shared["base.w"], shared["base.w"])
    assert {n for n in content["arrays"] if n.endswith("-scale")} == {
        *("prototypes-scale", "relations-scale", "anchor-dir-scale", "anchor-mean-scale", "hyper-scale")
    }


@pytest.mark.parametrize("dtype", ROUNDED)
def test_rounding_is_the_same_every_time(dtype):
    assert rounded(dtype)["arrays"]["proto"].data == rounded(dtype)["arrays"]["proto"].data


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_rounded_row_that_is_not_finite_is_refused(dtype, bad):
    means = torch.tensor([[1.0, 2.0, 3.0], [4.0, bad, 6.0]])
    held = ClassRows(torch.tensor([0, 2]), means, torch.tensor([9, 4]), samples=13)
    with pytest.raises(WireError, match=r"array 'proto' holds NaN or infinity, shape \(2, 3\)"):
        read(rounded(dtype, means=held), rounding(dtype))


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize(
    ("scales", "told"),
    [
        ([math.nan, 1.0], "array 'proto' holds NaN or infinity"),
        ([math.inf, 1.0], "array 'proto' holds NaN or infinity"),
        ([-1.0, 1.0], r"array 'proto-scale': the scale -1 of row 0 is not that of its numbers"),
        ([0.0, 1.0], r"array 'proto-scale': the scale 0 of row 0 is not that of its numbers"),
        ([1.0, 1e30], r"row of class 2 has norm .*, `max-norm` is 100"),
        ([1.0], r"array 'proto-scale': expected float32 \(2,\), got 'float32' \(1,\)"),
        ([[1.0], [1.0]], r"array 'proto-scale': expected float32 \(2,\), got 'float32' \(2, 1\)"),
    ],
)
def test_forged_scale_is_refused(dtype, scales, told):
    content = rounded(dtype)
    content["arrays"]["proto-scale"] = Array(np.asarray(scales, "float32"))
    with pytest.raises(WireError, match=told):
        read(sent(content), rounding(dtype))


@pytest.mark.parametrize(
    ("dtype", "row"),
    [("int8", [1, 0, 0]), ("int8", [-128, 127, 0]), ("float16", [0.5, 0.0, 0.25]), ("float16", [3.0, 1.0, 1.0])],
)
def test_numbers_that_rounding_cannot_make_are_refused(dtype, row):
    """A scale too large for its numbers would widen what a gradient may be."""
    content = rounded(dtype)
    content["arrays"]["proto"] = Array(np.asarray([row, row], dtype))
    with pytest.raises(WireError, match=r"array 'proto-scale': the scale .* of which the largest must be"):
        read(sent(content), rounding(dtype))


@pytest.mark.parametrize("dtype", ROUNDED)
def test_a_missing_scale_is_refused(dtype):
    content = rounded(dtype)
    del content["arrays"]["proto-scale"]
    with pytest.raises(WireError, match="array 'proto-scale' is missing"):
        read(sent(content), rounding(dtype))


@pytest.mark.parametrize("dtype", ROUNDED)
def test_a_scale_without_its_rows_is_refused(dtype):
    content = rounded(dtype, arrays={"grad": MEANS})
    del content["arrays"]["grad"]
    with pytest.raises(WireError, match="array 'grad' is missing"):
        read(sent(content), rounding(dtype, limits={"grad": no_longer_than(10.0)}))


@pytest.mark.parametrize(("came", "wanted"), [("int8", "float16"), ("float32", "int8"), ("float16", "int8")])
def test_rows_in_another_type_are_refused(came, wanted):
    with pytest.raises(WireError, match=f"array 'proto': expected {wanted} .*, got '{came}'"):
        read(rounded(came), rounding(wanted))


def test_rounded_rows_nobody_asked_for_are_refused():
    with pytest.raises(WireError, match=r"unexpected arrays \['proto-scale'\]"):
        read(rounded("int8"), EXPECTED)


def test_a_gradient_at_its_limit_may_be_rounded_up():
    """511 numbers just above half a step each become one: longer than any gradient, though none was sent."""
    row = torch.full((1, 512), 0.51)
    row[0, 0] = 127.0
    held = ClassRows(torch.tensor([1]), row, torch.tensor([4]), samples=4)
    limits = {"grad": no_longer_than(float(row.norm()))}
    expected = rounding("int8", feature_dim=512, max_norm=1e3, limits=limits)
    reply = read(rounded("int8", means=held, arrays={"grad": row}), expected)
    assert float(reply.arrays["grad"].norm()) > float(row.norm())
    with pytest.raises(WireError, match="no gradient through its head is longer"):
        read(rounded("int8", means=held, arrays={"grad": 1.2 * row}), expected)


def test_a_wire_dtype_nobody_knows_is_refused():
    content = wire.write_broadcast(BROADCAST)
    content["settings"]["wire.dtype"] = "int4"
    with pytest.raises(WireError, match=r"setting 'wire\.dtype': expected one of float32, float16, int8, got 'int4'"):
        wire.read_broadcast(sent(content), num_classes=4, feature_dim=3)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4 * 3), ("float16", 2 * 3 + 4), ("int8", 3 + 4)])
def test_payload_of_rounded_rows(dtype, size):
    classifier = {"grad-weight": torch.ones(2, 4, 3), "grad-bias": torch.ones(2, 4)}
    reply = train_reply(arrays={"grad": MEANS, **classifier})
    assert wire.payload_bytes(reply, dtype) == 2 * (4 + 2 * size + 8) + 8 * size + 8 * 4


# Refusals of shared weights

SHARED = {"head.weight": torch.ones(4, 3), "head.bias": torch.zeros(4)}
SHARING = wire.Expected(
    client="3", experiment="e1", server_round=2, num_classes=4, feature_dim=3, shared=wire.tensor_spec(SHARED)
)


def test_shared_weights_arrive():
    assert torch.equal(read(reply_content(shared=SHARED), SHARING).shared["head.weight"], torch.ones(4, 3))


@pytest.mark.parametrize(
    ("shared", "told"),
    [
        ({"head.weight": torch.ones(4, 3)}, r"names differ from the federation's: \['head.bias'\]"),
        ({**SHARED, "base.0": torch.ones(1)}, r"names differ from the federation's: \['base.0'\]"),
        ({**SHARED, "head.bias": torch.zeros(5)}, r"array 'head.bias': expected float32 \(4,\), got 'float32' \(5,\)"),
        ({**SHARED, "head.bias": torch.zeros(4).double()}, r"array 'head.bias': expected float32 \(4,\), got"),
        ({**SHARED, "head.bias": torch.full((4,), math.nan)}, r"array 'head.bias' among the shared weights holds NaN"),
    ],
)
def test_wrong_shared_weights_are_refused(shared, told):
    with pytest.raises(WireError, match=told):
        read(reply_content(shared=shared), SHARING)


LIMITED = {
    "base.bn.running_mean": torch.tensor([90.0, -90.0]),
    "base.bn.running_var": torch.tensor([0.0, 9e3]),
    "base.bn.num_batches_tracked": torch.tensor(2**40),
    "base.none": torch.zeros(0),
    "base.embedding": torch.full((3000, 40), 5.0),  # a long vector of modest numbers
}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("base.embedding", 3e38, r"array 'base\.embedding' .*: root mean square 3e\+38, at most 100 is taken"),
        ("base.embedding", -101.0, r"array 'base\.embedding' .*: root mean square 101"),
        ("base.bn.running_mean", 1e6, r"array 'base\.bn\.running_mean' .*: root mean square 1e\+06"),
        ("base.bn.running_var", 2e4, r"array 'base\.bn\.running_var' .*: root mean square 2e\+04, at most 1e\+04"),
        ("base.bn.running_var", -1e-3, r"array 'base\.bn\.running_var' .*: -0\.001 is no variance"),
        ("base.bn.num_batches_tracked", 2**63 - 1, r"'base\.bn\.num_batches_tracked' .*: expected numbers up to 10995"),
        ("base.bn.num_batches_tracked", -(2**63), r"'base\.bn\.num_batches_tracked' .*: expected numbers up to 10995"),
    ],
)
def test_weights_that_would_spoil_the_average_are_refused(name, value, told):
    expected = dataclasses.replace(SHARING, shared=wire.tensor_spec(LIMITED))
    assert read(reply_content(shared=LIMITED), expected).shared.keys() == LIMITED.keys()
    with pytest.raises(WireError, match=told):
        read(reply_content(shared={**LIMITED, name: torch.full_like(LIMITED[name], value)}), expected)


def test_weights_nobody_asked_for_are_refused():
    with pytest.raises(WireError, match="carries weights, but this strategy shares none"):
        read(reply_content(shared=SHARED))


def test_missing_weights_are_refused():
    with pytest.raises(WireError, match="no ArrayRecord 'model'"):
        read(reply_content(), SHARING)


# Refusals of an evaluation


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("class-total", [3, 0, 5], r"'class-total': expected 4 whole numbers"),
        ("class-correct", [2, 0, 3, -1], r"'class-correct': expected 4 whole numbers"),
        ("class-correct", [2.0, 0.0, 3.0, 0.0], r"'class-correct': expected 4 whole numbers"),
        ("class-total", 8, r"'class-total': expected 4 whole numbers"),
        ("class-correct", [4, 0, 1, 0], r"'class-correct', class 0: 4 right of 3 samples"),
        ("class-total", [3, 0, 6, 0], r"add up to 5 right of 9, .* say 5 of 8"),
        ("class-correct", [2, 0, 4, 0], r"add up to 6 right of 8, .* say 5 of 8"),
        ("after-correct", 9, r"9 right of 8 samples"),
        ("class-predicted", [2, 1, 5], r"'class-predicted': expected 4 whole numbers"),
        ("class-predicted", [2, 4, 2, 0], r"'class-predicted', class 2: 3 right of 2 predictions"),
        ("class-predicted", [2, 1, 5, 1], r"'class-predicted': 9 predictions of 8 samples"),
    ],
)
def test_wrong_evaluation_is_refused(key, value, told):
    content = wire.write_evaluate_reply(EVALUATION, BROADCAST, client="3")
    content["metrics"][key] = value
    with pytest.raises(WireError, match=told):
        wire.read_evaluate_reply(sent(content), EXPECTED)


# What federation added

COMPARED = dataclasses.replace(
    EVALUATION, predictors={"head": 4, "common": 5, "own": 3, "joint": 5, "alone": 4}, gained=3, lost=2
)
COMPARING = dataclasses.replace(EXPECTED, predictors=wire.PREDICTORS)


def compared_content(**metrics: Any) -> RecordDict:
    content = wire.write_evaluate_reply(COMPARED, BROADCAST, client="3")
    for key, value in metrics.items():
        content["metrics"][key.replace("_", "-")] = value
    return sent(content)


def test_predictors_arrive_in_an_evaluation_and_in_a_training_reply():
    assert wire.read_evaluate_reply(compared_content(), COMPARING) == COMPARED
    before = wire.Evaluation(correct=2, total=8, predictors={"alone": 3}, gained=1, lost=2)
    after = wire.Evaluation(correct=6, total=8, predictors={"joint": 6, "head": 5})
    read = wire.read_train_reply(reply_content(before=before, after=after), COMPARING)
    assert (read.before, read.after) == (before, after)


def test_without_predictors_an_evaluation_has_no_further_metrics():
    content = wire.write_evaluate_reply(EVALUATION, BROADCAST, client="3")
    assert list(content["metrics"]) == [
        *("after-correct", "after-total", "after-correct-prototype"),
        *("class-correct", "class-total", "class-predicted"),
    ]


def test_a_predictor_that_no_run_has_is_not_sent():
    with pytest.raises(ValueError, match=r"unknown predictors \['oracle'\]; an evaluation may count head, common"):
        wire.write_evaluate_reply(wire.Evaluation(correct=1, total=1, predictors={"oracle": 1}), BROADCAST, "3")


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"after_correct_own": 9}, "metric 'after-correct-own': 9 right of 8 samples"),
        ({"after_correct_own": -1}, "'after-correct-own': expected a whole number from 0"),
        ({"after_correct_own": 2.0}, "'after-correct-own': expected a whole number from 0"),
        ({"after_correct_alone": 9}, "metric 'after-correct-alone': 9 right of 8 samples"),
        ({"after_correct_oracle": 1}, r"unexpected metrics \['after-correct-oracle'\]"),
        ({"after_gained": -1}, "'after-gained': expected a whole number from 0"),
        ({"after_gained": 5, "after_lost": 4}, "'after-gained': 5 samples gained, but .* leaves only 4 of 8 to gain"),
        (
            {"after_correct_alone": 1, "after_gained": 6, "after_lost": 2},
            "'after-lost': 2 samples lost, but 'after-correct-alone' has only 1 to lose",
        ),
        ({"after_gained": 2}, r"2 gained and 2 lost make \+0, but 'after-correct' and .* differ by \+1"),
    ],
)
def test_impossible_counts_of_predictors_are_refused(metrics, told):
    with pytest.raises(WireError, match=told):
        wire.read_evaluate_reply(compared_content(**metrics), COMPARING)


@pytest.mark.parametrize("name", ["gained", "lost"])
def test_a_comparison_is_refused_without_both_sides(name):
    content = compared_content()
    del content["metrics"][f"after-{name}"]
    with pytest.raises(WireError, match=f"'after-{name}': expected a whole number"):
        wire.read_evaluate_reply(content, COMPARING)
    content = compared_content()
    del content["metrics"]["after-correct-alone"]
    with pytest.raises(WireError, match=r"'after-gained' compares .* but 'after-correct-alone' is missing"):
        wire.read_evaluate_reply(content, COMPARING)


def test_predictors_nobody_asked_for_are_refused():
    with pytest.raises(WireError, match=r"unexpected metrics .*'after-correct-alone'"):
        wire.read_evaluate_reply(compared_content(), EXPECTED)
    with pytest.raises(WireError, match=r"unexpected metrics .*'after-correct-common'"):
        wire.read_evaluate_reply(compared_content(), dataclasses.replace(EXPECTED, predictors=("head", "alone")))
    with pytest.raises(WireError, match=r"unexpected metrics .*'before-correct-joint'"):
        wire.read_train_reply(
            reply_content(before=wire.Evaluation(correct=1, total=2, predictors={"joint": 1})), EXPECTED
        )


# Refusals of the answer to a query


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("client", "", r"config 'client': expected a name, got an empty one"),
        ("client", "a\nb", r"config 'client': expected up to \d+ printable characters, got 'a\\nb'"),
        ("client", "x" * 10**6, r"config 'client': expected up to \d+ printable characters"),
        ("model", "\x1b[31mcnn", r"config 'model': expected up to \d+ printable characters, got '\\x1b"),
        ("model", 3, r"config 'model': expected up to \d+ printable characters, got 3"),
        ("domain", "\u202escan", r"config 'domain': expected up to \d+ printable characters"),
        ("feature-dim", 0, r"'feature-dim': expected a whole number"),
        ("feature-dim", 3.0, r"'feature-dim': expected a whole number"),
        ("partitions", -1, r"'partitions': expected a whole number"),
        ("partitions", 2**20 + 1, r"'partitions': expected a whole number from 0 to 1048576"),
        ("worker", 2**41, r"'worker': expected a whole number"),
        ("classes", [], r"config 'classes': expected a list of class names, .*, got \[\]"),
        ("classes", "cat", r"config 'classes': expected a list of class names, .*, got 'cat'"),
        ("classes", [1, 2, 3, 4], r"config 'classes': expected a list of class names, .*, got \[1, 2, 3, 4\]"),
        ("classes", ["cat", "dog", "owl", "f\nx"], r"config 'classes': expected .* printable"),
        ("classes", ["cat", "dog", "owl", "x" * 10**6], r"config 'classes': expected .* printable"),
        ("classes", ["cat", "dog", "fox", "owl"], r"config 'classes-digest' does not belong to the class list"),
        ("classes-digest", "0" * 16, r"config 'classes-digest' does not belong to the class list"),
        ("train-counts", [1, 2, 3], r"'train-counts': expected 4 whole numbers >= 0"),
        ("test-counts", [1, 2, 3, -4], r"'test-counts': expected 4 whole numbers >= 0"),
        ("test-counts", [1, 2, 3, 2**60], r"'test-counts': expected 4 whole numbers >= 0"),
        ("shared", "nonsense", r"config 'shared': expected names, dtypes and shapes as JSON"),
        ("shared", "[1]", r"config 'shared': expected names"),
        ("shared", '{"w": 5}', r"config 'shared': expected names"),
        ("shared", '{"w": ["float32", ["x"]]}', r"config 'shared': expected names"),
        ("shared", '{"w": ["float32", [Infinity]]}', r"config 'shared': expected names"),
        ("shared", '{"w": ["float32", [-3]]}', r"config 'shared': expected names"),
        ("shared", "[" * 10**5, r"config 'shared': expected names"),
        ("shared", '{"w\\u001b": ["float32", [3]]}', r"config 'shared': expected names"),
    ],
)
def test_wrong_client_info_is_refused(key, value, told):
    content = wire.write_client_info(INFO)
    content["config"][key] = value
    if key == "classes" and all(isinstance(v, str) for v in value) and sorted(value) != sorted(CLASSES):
        content["config"]["classes-digest"] = wire.class_digest(value)
    with pytest.raises(WireError, match=told):
        wire.read_client_info(sent(content))


def test_a_simulated_client_has_the_name_of_its_partition():
    info = dataclasses.replace(INFO, worker=7)
    assert wire.read_client_info(sent(wire.write_client_info(info))) == info
    with pytest.raises(WireError, match=r"config 'client': a simulation's clients are partitions, got 'evil'"):
        wire.read_client_info(sent(wire.write_client_info(dataclasses.replace(info, client="evil"))))


def test_message_of_another_app_is_refused():
    content = RecordDict({"metrics": MetricRecord({"accuracy": 0.9}), "arrays": ArrayRecord()})
    with pytest.raises(WireError, match=r"no ConfigRecord 'config' .* none of isoproto's \(records: \['metrics'"):
        wire.read_client_info(content)


# Refusals on the client


PROTOTYPES = {"prototypes": torch.ones(4, 3), "present": torch.ones(4, dtype=torch.bool)}


def broadcast_content(arrays: Mapping[str, torch.Tensor] = PROTOTYPES, **changes: Any) -> RecordDict:
    return wire.write_broadcast(dataclasses.replace(BROADCAST, arrays={**PROTOTYPES, **arrays}, **changes))


def receive(content: RecordDict) -> wire.Broadcast:
    return wire.read_broadcast(sent(content), num_classes=4, feature_dim=3)


def test_client_refuses_prototypes_of_another_width():
    with pytest.raises(WireError, match=r"array 'prototypes': expected float32 \(4, 3\), got 'float32' \(4, 5\)"):
        receive(broadcast_content({"prototypes": torch.ones(4, 5)}))


def test_client_refuses_prototypes_of_other_classes():
    with pytest.raises(WireError, match=r"array 'present': expected uint8 \(4,\), got 'uint8' \(5,\)"):
        receive(broadcast_content({"present": torch.ones(5)}))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_client_does_not_train_on_prototypes_that_are_not_finite(bad):
    with pytest.raises(WireError, match="'prototypes' from the server holds NaN or infinity; this client does not"):
        receive(broadcast_content({"prototypes": torch.full((4, 3), bad)}))


def test_client_does_not_install_weights_that_are_not_finite():
    with pytest.raises(WireError, match=r"array 'head\.bias' from the server holds NaN"):
        receive(broadcast_content(shared={"head.bias": torch.tensor([math.nan])}))


@pytest.mark.parametrize("dtype", ["object", "garbage", "U4", "datetime64[s]", "V8", "complex64"])
def test_client_refuses_weights_of_a_dtype_no_model_has(dtype):
    content = broadcast_content(shared={"head.bias": torch.zeros(2)})
    content["model"]["head.bias"] = Array(dtype, (2,), "numpy.ndarray", npy(header((2,), "|O"), b"\0" * 16))
    with pytest.raises(WireError, match=r"array 'head\.bias'"):
        receive(content)


def test_client_refuses_another_schema():
    content = broadcast_content()
    content["config"]["schema"] = 7
    with pytest.raises(SchemaMismatch, match="wire schema 7, this side speaks 1"):
        receive(content)


def test_client_refuses_a_message_without_settings():
    content = broadcast_content()
    del content["settings"]
    with pytest.raises(WireError, match="no ConfigRecord 'settings'"):
        receive(content)


def test_round_of_a_broadcast_is_no_negative_number():
    content = broadcast_content()
    content["config"]["round"] = -1
    with pytest.raises(WireError, match="'round': expected a whole number"):
        receive(content)


def test_settings_are_scalars():
    content = wire.write_query(wire.Query(experiment="e1", fingerprint="", settings={"rounds": 3}))
    content["settings"]["list"] = [1, 2]
    assert wire.read_settings(sent(content)) == {"rounds": 3}


def test_spec_is_readable_json():
    content = wire.write_client_info(INFO)
    assert json.loads(content["config"]["shared"])["step"] == ["int64", []]


# What hyper-prototypes add

GRADIENTS = torch.tensor([[0.1, 0.0, -0.2], [0.0, 0.3, 0.0]])
LEARNING = dataclasses.replace(EXPECTED, limits={"grad": no_longer_than(1.0)})


def test_gradients_arrive_as_they_were_sent():
    assert torch.equal(read(reply_content(arrays={"grad": GRADIENTS}), LEARNING).arrays["grad"], GRADIENTS)
    assert read(reply_content(), LEARNING).arrays == {}
    assert wire.payload_bytes(train_reply(arrays={"grad": GRADIENTS})) == 2 * 4 + 12 * 4 + 2 * 8


@pytest.mark.parametrize(
    ("gradients", "expected", "reason"),
    [
        (GRADIENTS, EXPECTED, "carries gradients, but this strategy uses none"),
        (GRADIENTS[:1], LEARNING, r"array 'grad': expected float32 \(2, 3\), got 'float32' \(1, 3\)"),
        (GRADIENTS * math.nan, LEARNING, r"array 'grad' holds NaN or infinity, shape \(2, 3\)"),
        (GRADIENTS * 10, LEARNING, r"array 'grad': row of class 2 has norm 3, but no gradient .* longer than 1"),
    ],
)
def test_gradients_that_cannot_be_are_refused(gradients, expected, reason):
    with pytest.raises(WireError, match=reason):
        read(reply_content(arrays={"grad": gradients}), expected)


def test_gradients_are_no_longer_than_the_head_beside_them_allows():
    head = {"head.weight": torch.full((4, 3), 0.1), "head.bias": torch.zeros(4)}
    limit_of = GradientHead(kind="shared", early=False, seed=0).limit(ServerState.start(4, 3))
    expected = dataclasses.replace(EXPECTED, limits={"grad": limit_of}, shared=wire.tensor_spec(head))
    limit = 2 * math.sqrt(3) * 0.1
    assert "grad" in read(reply_content(arrays={"grad": GRADIENTS}, shared=head), expected).arrays
    with pytest.raises(WireError, match=r"no gradient through its head is longer than 0\.35"):
        read(reply_content(arrays={"grad": GRADIENTS * (1.1 * limit / 0.3)}, shared=head), expected)


SENT_ARRAYS = {
    "relations": torch.eye(4),
    "anchor-dir": torch.ones(4, 3),
    "anchor-mean": torch.zeros(4, 3),
    "hyper": torch.ones(4, 5, 3),
    "head-weight": torch.ones(4, 3),
    "head-bias": torch.zeros(4),
}


def test_all_that_a_broadcast_can_hold_arrives():
    arrived = receive(broadcast_content(SENT_ARRAYS))
    assert arrived.arrays.keys() == {*PROTOTYPES, *SENT_ARRAYS}
    assert all(torch.equal(arrived.arrays[name], tensor) for name, tensor in SENT_ARRAYS.items())


@pytest.mark.parametrize("name", ["relations", "anchor-dir", "anchor-mean", "hyper"])
def test_client_uses_nothing_that_is_not_finite_or_has_another_shape(name):
    with pytest.raises(WireError, match="from the server holds NaN or infinity; this client does not train on it"):
        receive(broadcast_content({**SENT_ARRAYS, name: SENT_ARRAYS[name] * math.inf}))
    with pytest.raises(WireError, match=r"expected float32 \(4"):
        receive(broadcast_content({**SENT_ARRAYS, name: SENT_ARRAYS[name][:3]}))


def test_client_refuses_more_hyper_prototypes_than_a_class_can_have():
    with pytest.raises(WireError, match=r"array 'hyper': expected 1\.\.64 vectors per class, got 65"):
        receive(broadcast_content({"hyper": torch.ones(4, 65, 3)}))


PAIRS = [("prototypes", "present"), ("anchor-dir", "anchor-mean"), ("head-weight", "head-bias")]


@pytest.mark.parametrize(("name", "other"), [(a, b) for pair in PAIRS for a, b in (pair, pair[::-1])])
def test_client_refuses_half_a_group(name, other):
    content = broadcast_content(SENT_ARRAYS)
    del content["arrays"][name]
    with pytest.raises(WireError, match=f"array '{name}' is missing"):
        receive(content)
    assert other in content["arrays"]


def test_client_refuses_an_array_it_does_not_know():
    content = broadcast_content(SENT_ARRAYS)
    content["arrays"]["more"] = content["arrays"]["head-bias"]
    with pytest.raises(WireError, match=r"unexpected arrays \['more'\]"):
        receive(content)


# Arrays follow from what parts declare


class Extra(Part):
    """A part that nobody has written yet: arrays of every kind that can be declared."""

    down = (
        Field(name="extra-down", shape="C d", rounded=True, together="extra", mask="extra-known"),
        Field(name="extra-known", shape="C", dtype=torch.bool, together="extra"),
    )
    up = (
        Field(name="extra-vectors", shape="P I d", rounded=True, noun="vectors of Extra", together="extra-up"),
        Field(name="extra-number", shape="P", together="extra-up"),
        Field(name="extra-seen", shape="P C", dtype=torch.int64),
    )


EXTRA_DOWN = {"extra-down": torch.arange(12.0).view(4, 3), "extra-known": torch.tensor([True, False, True, True])}
EXTRA_UP = {
    "extra-vectors": torch.arange(12.0).view(2, 2, 3),
    "extra-number": torch.tensor([0.5, -2.0]),
    "extra-seen": torch.arange(8).view(2, 4),
}


@pytest.fixture
def extra(monkeypatch):
    """What the server expects of clients once there is one more part."""
    add_part(monkeypatch, Extra)
    return dataclasses.replace(EXPECTED, limits={**dict.fromkeys(EXTRA_UP), "extra-number": no_longer_than(3.0)})


def test_every_array_that_parts_declare_is_known_to_the_messages():
    assert list(DOWN) == list(dict.fromkeys(field.name for part in PARTS for field in part.down))
    assert list(UP) == ["class-ids", "proto", "count", *(field.name for part in PARTS for field in part.up)]


@pytest.mark.parametrize("dtype", ["float32", *ROUNDED])
def test_a_declared_array_is_written_read_and_counted(extra, dtype):
    broadcast = dataclasses.replace(BROADCAST, settings={"wire.dtype": dtype}, arrays=EXTRA_DOWN)
    down = sent(wire.write_broadcast(broadcast))
    up = rounded(dtype, arrays=EXTRA_UP)
    for content, came, wanted in (
        (down, wire.read_broadcast(down, num_classes=4, feature_dim=3).arrays, EXTRA_DOWN),
        (up, read(up, dataclasses.replace(extra, dtype=dtype)).arrays, EXTRA_UP),
    ):
        assert came.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert came[name].dtype == tensor.dtype
            torch.testing.assert_close(came[name], tensor, rtol=0, atol=0 if dtype == "float32" else 0.05)
        scales = {name for name in content["arrays"] if name.startswith("extra") and name.endswith("-scale")}
        assert len(scales) == (dtype != "float32")
    row = {"float32": 4 * 3, "float16": 2 * 3 + 4, "int8": 3 + 4}[dtype]
    more = wire.payload_bytes(train_reply(arrays=EXTRA_UP), dtype) - wire.payload_bytes(train_reply(), dtype)
    assert more == 4 * row + 2 * 4 + 8 * 8


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"extra-vectors": torch.ones(2, 2, 4)}, r"'extra-vectors': expected float32 \(2, 2, 3\), got .* \(2, 2, 4\)"),
        ({"extra-vectors": torch.ones(2, 65, 3)}, r"'extra-vectors': expected 1\.\.64 vectors per class, got 65"),
        (
            {"extra-vectors": MEANS.view(2, 1, 3) * math.nan},
            r"'extra-vectors' holds NaN or infinity, shape \(2, 1, 3\)",
        ),
        ({"extra-vectors": torch.full((2, 2, 3), 90.0)}, r"row of class 0 has norm 220, `max-norm` is 100"),
        ({"extra-number": torch.tensor([0.0, -4.0])}, r"'extra-number': row of class 2 has norm 4, but no .* than 3"),
        ({"extra-seen": torch.ones(2, 5).long()}, r"'extra-seen': expected int64 \(2, 4\), got 'int64' \(2, 5\)"),
        ({"extra-vectors": None}, r"array 'extra-vectors' is missing"),
        ({"extra-number": None}, r"array 'extra-number' is missing"),
    ],
)
def test_a_declared_array_is_checked(extra, changes, told):
    arrays = {name: tensor for name, tensor in {**EXTRA_UP, **changes}.items() if tensor is not None}
    with pytest.raises(WireError, match=told):
        read(reply_content(arrays=arrays), extra)


def test_a_declared_row_at_its_limit_may_be_rounded_up_however_wide_it_is(monkeypatch):
    """Rows of 512 numbers where features have three: rounding makes 511 of them longer."""

    class Wide(Part):
        up = (Field(name="extra-wide", shape="P C", rounded=True),)

    add_part(monkeypatch, Wide)
    row = torch.full((1, 512), 0.51)
    row[0, 0] = 127.0
    held = ClassRows(torch.tensor([1]), torch.ones(1, 3), torch.tensor([4]), samples=4)
    expected = rounding("int8", num_classes=512, limits={"extra-wide": no_longer_than(float(row.norm()))})
    found = read(rounded("int8", means=held, arrays={"extra-wide": row}), expected).arrays["extra-wide"]
    assert float(found.norm()) > float(row.norm())


def test_a_declared_array_may_come_alone_only_if_it_stands_alone(extra):
    seen = {"extra-seen": EXTRA_UP["extra-seen"]}
    assert read(reply_content(arrays=seen), extra).arrays.keys() == seen.keys()
    content = broadcast_content(EXTRA_DOWN)
    del content["arrays"]["extra-known"]
    with pytest.raises(WireError, match="array 'extra-known' is missing"):
        receive(content)


def test_a_declared_array_nobody_asked_for_is_refused(extra):
    with pytest.raises(WireError, match="the reply carries vectors of Extra, but this strategy uses none"):
        read(reply_content(arrays=EXTRA_UP), EXPECTED)
    with pytest.raises(WireError, match="the reply carries extra-seen, but this strategy uses none"):
        read(reply_content(arrays={"extra-seen": EXTRA_UP["extra-seen"]}), EXPECTED)


def test_a_declared_mask_says_which_rows_are_read(extra):
    masked = torch.where(EXTRA_DOWN["extra-known"].unsqueeze(1), EXTRA_DOWN["extra-down"], math.nan)
    assert receive(broadcast_content({**EXTRA_DOWN, "extra-down": masked})).arrays["extra-down"][1].isnan().all()
    with pytest.raises(WireError, match="array 'extra-down' from the server holds NaN or infinity"):
        receive(broadcast_content({**EXTRA_DOWN, "extra-down": masked, "extra-known": torch.ones(4).bool()}))


def test_a_reply_without_rows_holds_declared_arrays_without_rows(extra):
    none = torch.zeros(0, dtype=torch.int64)
    arrays = {name: tensor[:0] for name, tensor in EXTRA_UP.items()}
    reply = read(reply_content(means=ClassRows(none, torch.zeros(0, 3), none, 0), arrays=arrays), extra)
    assert {name: tensor.shape for name, tensor in reply.arrays.items()} == {n: t.shape for n, t in arrays.items()}


class Rows(Part):
    """Rows of the shape that class means and gradients have too."""

    up = (Field(name="extra-rows", shape="P d", rounded=True),)


@pytest.mark.parametrize("dtype", ["float32", *ROUNDED])
def test_arrays_of_one_shape_are_told_apart_by_name(monkeypatch, dtype):
    """Whoever writes and whoever reads may declare them in another order."""
    add_part(monkeypatch, Rows)
    down = {"anchor-dir": torch.full((4, 3), 2.0), "anchor-mean": torch.full((4, 3), -5.0)}
    up = {"grad": torch.full((2, 3), 0.5), "extra-rows": torch.full((2, 3), -7.0)}
    broadcast = dataclasses.replace(BROADCAST, settings={"wire.dtype": dtype}, arrays=down)
    expected = rounding(dtype, limits=dict.fromkeys(up))

    def written():
        return sent(wire.write_broadcast(broadcast)), rounded(dtype, arrays=up)

    def check(messages):
        there = wire.read_broadcast(messages[0], num_classes=4, feature_dim=3).arrays
        back = read(messages[1], expected)
        torch.testing.assert_close({**there, **back.arrays}, {**down, **up})
        assert ((back.means.rows - MEANS).abs() < 0.02).all()

    messages = written()
    monkeypatch.setattr("isoproto.wire.broadcast.DOWN", dict(reversed(DOWN.items())))
    monkeypatch.setattr("isoproto.wire.train_reply.UP", dict(reversed(UP.items())))
    swapped = written()
    assert [list(content["arrays"]) for content in swapped] != [list(content["arrays"]) for content in messages]
    check(messages)
    check(swapped)
    monkeypatch.undo()
    add_part(monkeypatch, Rows)
    check(swapped)


def test_an_array_that_no_part_declares_is_not_dropped_silently():
    with pytest.raises(ValueError, match=r"arrays \['ghost'\] are declared by no part; add a Field"):
        wire.write_broadcast(
            wire.Broadcast(experiment="e", server_round=1, settings={}, arrays={"ghost": torch.zeros(2)})
        )
