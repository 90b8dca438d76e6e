"""The reply that a client sends after local training.

The arrays follow from the declarations of the parts (``isoproto.parts``). To add an array, add a ``Field`` to a part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import Tensor

from isoproto.common.pooled import vector_length
from isoproto.errors import MoreSamples, WireError
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import PARTS
from isoproto.parts.base import Arrays, Field
from isoproto.wire.broadcast import Broadcast, Expected, check_reply_config, reply_config
from isoproto.wire.codec import (
    ARRAYS,
    CONFIG,
    COUNT_LIMIT,
    METRICS,
    MODEL,
    array_names,
    check_names,
    integer_of,
    is_sent,
    length_of,
    number_of,
    read_field,
    record_of,
    write_array,
    write_fields,
)
from isoproto.wire.evaluation import Evaluation, evaluated_names, evaluation_metrics, read_evaluation
from isoproto.wire.rounding import FORMATS, RowFormat
from isoproto.wire.weights import read_shared

_MEANS = (
    Field(name="class-ids", shape="P", dtype=torch.int32),
    Field(name="proto", shape="P d", rounded=True),
    Field(name="count", shape="P", dtype=torch.int64),
)
UP: dict[str, Field] = {f.name: f for f in (*_MEANS, *(f for part in PARTS for f in part.up))}
"""The arrays that a client may send, in their order in a message: its class means, and what parts add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReply:
    """The content of a training reply.

    Attributes:
        means: Class means of the classes that the client holds.
        scatter: Mean squared distance of a feature from its class mean, >= 0.
        shared: The client's weights by name; empty unless the run shares weights.
        losses: Mean loss terms of the last epoch by name; the names are the run's ``reported_terms``.
        before: Accuracy before training, with the server's weights installed.
        after: Accuracy after training.
        seconds: Time the client spent on the message.
        arrays: What parts send, by the names of their fields; the axis ``P`` is that of ``means``.
    """

    means: ClassRows
    scatter: float
    losses: Mapping[str, float]
    before: Evaluation
    after: Evaluation
    seconds: float
    arrays: Arrays = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)


def write_train_reply(reply: TrainReply, broadcast: Broadcast, client: str) -> RecordDict:
    """Encode the reply of a client that has trained on ``broadcast``."""
    sent = reply.means
    arrays = {"class-ids": sent.class_ids, "proto": sent.rows, "count": sent.counts, **reply.arrays}
    content = RecordDict(
        {
            CONFIG: reply_config(broadcast, client),
            ARRAYS: write_fields(arrays, UP, broadcast.dtype),
            METRICS: MetricRecord(
                {
                    "samples": sent.samples,
                    "scatter": reply.scatter,
                    "seconds": reply.seconds,
                    **{f"loss-{name}": value for name, value in reply.losses.items()},
                    **evaluation_metrics("before", reply.before),
                    **evaluation_metrics("after", reply.after),
                }
            ),
        }
    )
    if reply.shared:
        content[MODEL] = ArrayRecord({name: write_array(t, t.dtype) for name, t in reply.shared.items()})
    return content


def payload_bytes(reply: TrainReply, dtype: str = "float32") -> int:
    """Return the payload of a reply's rows in bytes: ids, rows with their scales, and counts, without any framing."""
    form = FORMATS[dtype]
    sent = reply.means
    tensors = {"class-ids": sent.class_ids, "proto": sent.rows, "count": sent.counts, **reply.arrays}
    return sum(_bytes_of(tensor, UP[name], form) for name, tensor in tensors.items())


def _bytes_of(tensor: Tensor, declared: Field, form: RowFormat) -> int:
    if not declared.rounded:
        return tensor.numel() * declared.dtype.itemsize
    return tensor.shape[:-1].numel() * form.bytes_of_row(tensor.shape[-1])


def read_train_reply(content: RecordDict, expected: Expected) -> TrainReply:
    """Decode a training reply, and check its schema, round, arrays, finiteness, classes, counts and norms.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: If anything else in it is impossible. The text names the array or metric.
    """
    check_reply_config(content, expected)
    arrays = record_of(content, ARRAYS, ArrayRecord)
    form = FORMATS[expected.dtype]
    check_names("arrays", arrays, array_names(UP.values(), form))
    sizes = {
        "P": length_of(arrays, "class-ids", expected.num_classes),
        "C": expected.num_classes,
        "d": expected.feature_dim,
        "D": expected.frame_dim,
        "E": expected.frame_dim + 1,
        "L": vector_length(expected.num_classes, expected.frame_dim),
    }
    ids, means, counts = (read_field(arrays, declared, form, sizes) for declared in _MEANS)
    ids = ids.long()
    _check_rows(ids, means, counts, expected)
    metrics = record_of(content, METRICS, MetricRecord)
    check_names("metrics", metrics, _train_metrics(expected))
    samples = integer_of(metrics, "samples", 0)
    if int(counts.sum()) > samples:
        raise WireError(f"array 'count': {int(counts.sum())} samples in the classes, but 'samples' is {samples}")
    _check_declared(ids, counts, samples, expected.train_counts)
    shared = read_shared(content, expected.shared)
    return TrainReply(
        means=ClassRows(ids, means, counts, samples),
        scatter=number_of(metrics, "scatter", 0.0),
        losses={name: number_of(metrics, f"loss-{name}") for name in expected.terms},
        before=read_evaluation(metrics, "before", expected.predictors),
        after=read_evaluation(metrics, "after", expected.predictors),
        seconds=number_of(metrics, "seconds", 0.0),
        arrays=_read_rows(arrays, ids, shared, expected, sizes),
        shared=shared,
    )


def _check_rows(ids: Tensor, means: Tensor, counts: Tensor, expected: Expected) -> None:
    if not bool(torch.isfinite(means).all()):
        raise WireError(f"array 'proto' holds NaN or infinity, shape {tuple(means.shape)}; the model has diverged")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= expected.num_classes):
        raise WireError(f"array 'class-ids': expected 0..{expected.num_classes - 1}, got {ids.tolist()!r:.200}")
    if bool((ids.diff() <= 0).any()):
        raise WireError(f"array 'class-ids': expected strictly increasing ids, got {ids.tolist()!r:.200}")
    if len(counts) and (int(counts.min()) < 1 or int(counts.max()) > COUNT_LIMIT):
        raise WireError(f"array 'count': expected 1..{COUNT_LIMIT}, got {counts.tolist()!r:.200}")
    # In float32 the square of a number beyond 1e19 is infinite, so norms are computed in float64.
    norms = means.double().norm(dim=1)
    if len(norms) and float(norms.max()) > expected.max_norm:
        worst = int(norms.argmax())
        raise WireError(
            f"array 'proto': row of class {int(ids[worst])} has norm {float(norms[worst]):.3g}, "
            f"`max-norm` is {expected.max_norm:.3g}"
        )


def _check_declared(ids: Tensor, counts: Tensor, samples: int, declared: Sequence[int]) -> None:
    """Refuse more samples than the client declared in its query reply: they are its weight in averages."""
    if not declared:
        return
    if (more := counts > torch.tensor(declared)[ids]).any():
        worst = int(more.nonzero()[0])
        class_id = int(ids[worst])
        raise MoreSamples(
            f"array 'count': {int(counts[worst])} samples of class {class_id}, the client declared {declared[class_id]}"
        )
    if samples > sum(declared):
        raise MoreSamples(f"metric 'samples': {samples}, the client declared {sum(declared)}")


def _read_rows(
    arrays: ArrayRecord, ids: Tensor, shared: Mapping[str, Tensor], expected: Expected, sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Decode and check the rows that parts send. Fields of one group must come together."""
    form = FORMATS[expected.dtype]
    parts = [f for f in UP.values() if f not in _MEANS]
    came = [f for f in parts if is_sent(arrays, f)]
    groups = {f.together for f in came} - {""}
    for declared in came:
        if declared.name not in expected.limits:
            raise WireError(f"the reply carries {declared.noun or declared.name}, but this strategy uses none")
    rows = {f.name: read_field(arrays, f, form, sizes) for f in parts if f in came or f.together in groups}
    for name, tensor in rows.items():
        if not bool(torch.isfinite(tensor).all()):
            raise WireError(
                f"array '{name}' holds NaN or infinity, shape {tuple(tensor.shape)}; the model has diverged"
            )
        if UP[name].shape.startswith("P"):
            _check_lengths(UP[name], tensor, ids, shared, expected)
    for fault in expected.faults:
        if found := fault(rows, expected.train_counts):
            raise WireError(found)
    return rows


def _check_lengths(
    declared: Field, rows: Tensor, ids: Tensor, shared: Mapping[str, Tensor], expected: Expected
) -> None:
    """Refuse rows that are longer than an honest client's can be."""
    limit_of = expected.limits[declared.name]
    if limit_of is None:
        longest, reason = expected.max_norm, "`max-norm` is {:.3g}"
    else:
        longest, reason = limit_of(shared)
        if declared.rounded:
            longest *= 1 + FORMATS[expected.dtype].stretch(rows.shape[-1])
    norms = rows.double().unsqueeze(-1).flatten(1).norm(dim=1)  # a row may be a single number
    if len(norms) and float(norms.max()) > longest:
        worst = int(norms.argmax())
        raise WireError(
            f"array '{declared.name}': row of class {int(ids[worst])} has norm {float(norms[worst]):.3g}, "
            f"{reason.format(longest)}"
        )


def _train_metrics(expected: Expected) -> list[str]:
    evaluated = (name for moment in ("before", "after") for name in evaluated_names(moment, expected.predictors))
    return ["samples", "scatter", "seconds", *(f"loss-{name}" for name in expected.terms), *evaluated]
