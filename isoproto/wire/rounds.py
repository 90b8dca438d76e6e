"""A round: what the server sends to train and to evaluate, and what clients send back.

The arrays follow from the declarations of the parts (``isoproto.parts``): a new array is a new ``Field`` there.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from isoproto.errors import MoreSamples, WireError
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import PARTS, reported_terms
from isoproto.parts.base import Arrays, Field, LimitOf
from isoproto.settings.rules import Scalar
from isoproto.wire.codec import (
    ARRAYS,
    CONFIG,
    COUNT_LIMIT,
    METRICS,
    MODEL,
    SCHEMA_VERSION,
    SETTINGS,
    Spec,
    array_names,
    check_finite,
    check_names,
    check_schema,
    integer_of,
    integers_of,
    is_there,
    length_of,
    number_of,
    read_field,
    read_tensor,
    record_of,
    row_dtype_of,
    settings_of,
    shown,
    text_of,
    write_array,
    write_fields,
)
from isoproto.wire.rounding import FORMATS, RowFormat

# Root mean square of a weight tensor, of running means, and of deviations in running variances. Networks' are about 1;
# far above, the average makes the others' training diverge.
_WEIGHT_LIMIT = 100.0

DOWN: dict[str, Field] = {f.name: f for part in PARTS for f in part.down}
"""Arrays that the server may send, in order."""

_MEANS = (
    Field(name="class-ids", shape="P", dtype=torch.int32),
    Field(name="proto", shape="P d", rounded=True),
    Field(name="count", shape="P", dtype=torch.int64),
)
UP: dict[str, Field] = {f.name: f for f in (*_MEANS, *(f for part in PARTS for f in part.up))}
"""Arrays that a client may send, in order: its class means, and what parts add."""

_EVALUATED = ("correct", "total", "correct-prototype")
_EVALUATE_METRICS = (*(f"after-{name}" for name in _EVALUATED), "class-correct", "class-total", "class-predicted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """What a client needs to train or to be evaluated.

    Attributes:
        experiment: As in the query.
        server_round: The round, >= 1 for training; for evaluation the last round that is over.
        settings: As in the query.
        arrays: What parts send, by the names of their fields, in float32; masks are bool.
        shared: Averaged weights by name; empty unless the strategy shares some.
    """

    experiment: str
    server_round: int
    settings: Mapping[str, Scalar]
    arrays: Arrays = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """How rows travel, here and in the reply: `wire.dtype` of the settings."""
        return row_dtype_of(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Own-model accuracy on a client's test part.

    Attributes:
        correct: Samples that the client's own model gets right by its head.
        total: Test samples.
        correct_prototype: Samples right by the nearest global prototype; ``None`` without prototypes.
        class_correct: ``correct`` by class, ``[C]``.
        class_total: ``total`` by class, ``[C]``.
        class_predicted: Test samples by the class that the head gives them, ``[C]``.
    """

    correct: int
    total: int
    correct_prototype: int | None = None
    class_correct: tuple[int, ...] = ()
    class_total: tuple[int, ...] = ()
    class_predicted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReply:
    """What a client sends after local training.

    Attributes:
        contribution: Class means of the classes it holds.
        scatter: Mean squared distance of a feature from its class mean, >= 0.
        shared: Its weights by name, if the strategy shares some.
        losses: Mean loss terms of the last epoch by name; the names are the run's ``reported_terms``.
        before: Accuracy before training, with what the server sent installed.
        after: Accuracy after training.
        seconds: Time the client spent on the message.
        arrays: Rows that parts send, by the names of their fields; the first axis is that of ``contribution``.
    """

    contribution: ClassRows
    scatter: float
    losses: Mapping[str, float]
    before: Evaluation
    after: Evaluation
    seconds: float
    arrays: Arrays = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the server holds a reply against.

    Attributes:
        client: Name of the client that was asked.
        experiment: As sent.
        server_round: As sent.
        num_classes: C.
        feature_dim: d.
        max_norm: Largest norm of a prototype row.
        shared: Names, dtypes and shapes of shared weights; empty if none may come.
        limits: For each array that a part may send in this round, how long its rows may be; ``None`` for ``max_norm``.
        terms: Names of the loss terms that the reply reports.
        dtype: How rows travel, `wire.dtype`.
        train_counts: Training samples of each class that the client told of; empty if not known.
    """

    client: str
    experiment: str
    server_round: int
    num_classes: int
    feature_dim: int
    max_norm: float = math.inf
    limits: Mapping[str, LimitOf | None] = field(default_factory=dict)
    terms: tuple[str, ...] = reported_terms(())
    dtype: str = "float32"
    shared: Spec = field(default_factory=dict)
    train_counts: tuple[int, ...] = ()


def write_broadcast(broadcast: Broadcast) -> RecordDict:
    """Encode a train or evaluate message."""
    config = ConfigRecord(
        {"schema": SCHEMA_VERSION, "experiment": broadcast.experiment, "round": broadcast.server_round}
    )
    content = RecordDict({CONFIG: config, SETTINGS: ConfigRecord(dict(broadcast.settings))})
    if broadcast.arrays:
        content[ARRAYS] = write_fields(broadcast.arrays, DOWN, broadcast.dtype)
    if broadcast.shared:
        content[MODEL] = ArrayRecord({name: write_array(t, t.dtype) for name, t in broadcast.shared.items()})
    return content


def write_train_reply(reply: TrainReply, broadcast: Broadcast, client: str) -> RecordDict:
    """Encode what a client sends after training on ``broadcast``."""
    sent = reply.contribution
    arrays = {"class-ids": sent.class_ids, "proto": sent.rows, "count": sent.counts, **reply.arrays}
    content = RecordDict(
        {
            CONFIG: _reply_config(broadcast, client),
            ARRAYS: write_fields(arrays, UP, broadcast.dtype),
            METRICS: MetricRecord(
                {
                    "samples": sent.samples,
                    "scatter": reply.scatter,
                    "seconds": reply.seconds,
                    **{f"loss-{name}": value for name, value in reply.losses.items()},
                    **_evaluation_metrics("before", reply.before),
                    **_evaluation_metrics("after", reply.after),
                }
            ),
        }
    )
    if reply.shared:
        content[MODEL] = ArrayRecord({name: write_array(t, t.dtype) for name, t in reply.shared.items()})
    return content


def write_evaluate_reply(evaluation: Evaluation, broadcast: Broadcast, client: str) -> RecordDict:
    """Encode a client's accuracy."""
    metrics = MetricRecord(
        {
            **_evaluation_metrics("after", evaluation),
            "class-correct": list(evaluation.class_correct),
            "class-total": list(evaluation.class_total),
            "class-predicted": list(evaluation.class_predicted),
        }
    )
    return RecordDict({CONFIG: _reply_config(broadcast, client), METRICS: metrics})


def payload_bytes(reply: TrainReply, dtype: str = "float32") -> int:
    """Return the payload of a reply's rows in bytes: ids, rows with their scales, and counts, without any framing."""
    form = FORMATS[dtype]
    sent = reply.contribution
    tensors = {"class-ids": sent.class_ids, "proto": sent.rows, "count": sent.counts, **reply.arrays}
    return sum(_bytes_of(tensor, UP[name], form) for name, tensor in tensors.items())


def _bytes_of(tensor: Tensor, declared: Field, form: RowFormat) -> int:
    if not declared.rounded:
        return tensor.numel() * declared.dtype.itemsize
    return tensor.shape[:-1].numel() * form.bytes_of_row(tensor.shape[-1])


def _reply_config(broadcast: Broadcast, client: str) -> ConfigRecord:
    return ConfigRecord(
        {
            "schema": SCHEMA_VERSION,
            "experiment": broadcast.experiment,
            "round": broadcast.server_round,
            "client": client,
        }
    )


def _evaluation_metrics(moment: str, evaluation: Evaluation) -> dict[str, int]:
    prototype = evaluation.correct_prototype
    return {
        f"{moment}-correct": evaluation.correct,
        f"{moment}-total": evaluation.total,
        f"{moment}-correct-prototype": -1 if prototype is None else prototype,
    }


def read_broadcast(content: RecordDict, *, num_classes: int, feature_dim: int) -> Broadcast:
    """Decode and check a train or evaluate message, on the client.

    Raises:
        SchemaMismatch: If the server speaks another schema version.
        WireError: If an array has another shape or dtype than this client's classes and width ask for, or
            holds NaN or infinity.
    """
    config = record_of(content, CONFIG, ConfigRecord)
    check_schema(config)
    arrays = record_of(content, ARRAYS, ArrayRecord) if ARRAYS in content else ArrayRecord()
    settings = settings_of(content)
    form = FORMATS[row_dtype_of(settings)]
    check_names("arrays", arrays, array_names(DOWN.values(), form))
    sizes = {"C": num_classes, "d": feature_dim}
    sent = {name: read_field(arrays, f, form, sizes) for name, f in DOWN.items() if is_there(arrays, f)}
    _check_together(sent)
    for name, tensor in sent.items():
        mask = sent.get(DOWN[name].mask)
        if not bool(torch.isfinite(tensor if mask is None else tensor[mask]).all()):
            raise WireError(f"array '{name}' from the server holds NaN or infinity; this client does not train on it")
    shared = {}
    if MODEL in content:
        record = record_of(content, MODEL, ArrayRecord)
        shared = {name: read_tensor(record, name, array.dtype, array.shape) for name, array in record.items()}
        check_finite(shared, "from the server")
    return Broadcast(
        experiment=text_of(config, "experiment"),
        server_round=integer_of(config, "round", 0),
        settings=settings,
        arrays=sent,
        shared=shared,
    )


def _check_together(sent: Arrays) -> None:
    """Refuse a message that holds some arrays of a group and lacks others."""
    groups = {DOWN[name].together for name in sent} - {""}
    for declared in DOWN.values():
        if declared.together in groups and declared.name not in sent:
            raise WireError(f"array '{declared.name}' is missing; arrays: {list(sent)!r:.200}")


def read_settings(content: RecordDict) -> dict[str, Scalar]:
    """Return the settings in a query, train or evaluate message: needed before its arrays can be checked."""
    return settings_of(content)


def read_train_reply(content: RecordDict, expected: Expected) -> TrainReply:
    """Decode and check a training reply: schema, round, arrays, finiteness, classes, counts, norms.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: On anything else that cannot be; the text names the array or metric.
    """
    _check_reply_config(content, expected)
    arrays = record_of(content, ARRAYS, ArrayRecord)
    form = FORMATS[expected.dtype]
    check_names("arrays", arrays, array_names(UP.values(), form))
    sizes = {
        "P": length_of(arrays, "class-ids", expected.num_classes),
        "C": expected.num_classes,
        "d": expected.feature_dim,
    }
    ids, means, counts = (read_field(arrays, declared, form, sizes) for declared in _MEANS)
    ids = ids.long()
    _check_rows(ids, means, counts, expected)
    metrics = record_of(content, METRICS, MetricRecord)
    check_names("metrics", metrics, _train_metrics(expected.terms))
    samples = integer_of(metrics, "samples", 0)
    if int(counts.sum()) > samples:
        raise WireError(f"array 'count': {int(counts.sum())} samples in the classes, but 'samples' is {samples}")
    _check_told(ids, counts, samples, expected.train_counts)
    shared = _read_shared(content, expected.shared)
    return TrainReply(
        contribution=ClassRows(ids, means, counts, samples),
        scatter=number_of(metrics, "scatter", 0.0),
        losses={name: number_of(metrics, f"loss-{name}") for name in expected.terms},
        before=_read_evaluation(metrics, "before"),
        after=_read_evaluation(metrics, "after"),
        seconds=number_of(metrics, "seconds", 0.0),
        arrays=_read_rows(arrays, ids, shared, expected, sizes),
        shared=shared,
    )


def read_evaluate_reply(content: RecordDict, expected: Expected) -> Evaluation:
    """Decode and check an evaluation reply.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: On anything else that cannot be.
    """
    _check_reply_config(content, expected)
    metrics = record_of(content, METRICS, MetricRecord)
    check_names("metrics", metrics, _EVALUATE_METRICS)
    evaluation = _read_evaluation(metrics, "after")
    correct = integers_of(metrics, "class-correct", expected.num_classes)
    total = integers_of(metrics, "class-total", expected.num_classes)
    predicted = integers_of(metrics, "class-predicted", expected.num_classes)
    for class_id, (right, samples, given) in enumerate(zip(correct, total, predicted, strict=True)):
        if right > samples:
            raise WireError(f"metric 'class-correct', class {class_id}: {right} right of {samples} samples")
        if right > given:
            raise WireError(f"metric 'class-predicted', class {class_id}: {right} right of {given} predictions")
    if (sum(correct), sum(total)) != (evaluation.correct, evaluation.total):
        raise WireError(
            f"metric 'class-correct': the classes add up to {sum(correct)} right of {sum(total)}, "
            f"'after-correct' and 'after-total' say {evaluation.correct} of {evaluation.total}"
        )
    if sum(predicted) != evaluation.total:
        raise WireError(
            f"metric 'class-predicted': {sum(predicted)} predictions of {evaluation.total} samples ('after-total')"
        )
    return dataclasses.replace(evaluation, class_correct=correct, class_total=total, class_predicted=predicted)


def _check_reply_config(content: RecordDict, expected: Expected) -> None:
    config = record_of(content, CONFIG, ConfigRecord)
    check_schema(config)
    check_names("records", content, (CONFIG, ARRAYS, MODEL, METRICS))
    check_names("config", config, ("schema", "experiment", "round", "client"))
    for key, wanted in (
        ("experiment", expected.experiment),
        ("round", expected.server_round),
        ("client", expected.client),
    ):
        if config.get(key) != wanted:
            raise WireError(f"config '{key}': expected {wanted!r}, got {shown(config.get(key))}")


def _check_rows(ids: Tensor, means: Tensor, counts: Tensor, expected: Expected) -> None:
    if not bool(torch.isfinite(means).all()):
        raise WireError(f"array 'proto' holds NaN or infinity, shape {tuple(means.shape)}; the model has diverged")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= expected.num_classes):
        raise WireError(f"array 'class-ids': expected 0..{expected.num_classes - 1}, got {ids.tolist()!r:.200}")
    if bool((ids.diff() <= 0).any()):
        raise WireError(f"array 'class-ids': expected strictly increasing ids, got {ids.tolist()!r:.200}")
    if len(counts) and (int(counts.min()) < 1 or int(counts.max()) > COUNT_LIMIT):
        raise WireError(f"array 'count': expected 1..{COUNT_LIMIT}, got {counts.tolist()!r:.200}")
    # In float64: the square of a float32 beyond 1e19 is infinite.
    norms = means.double().norm(dim=1)
    if len(norms) and float(norms.max()) > expected.max_norm:
        worst = int(norms.argmax())
        raise WireError(
            f"array 'proto': row of class {int(ids[worst])} has norm {float(norms[worst]):.3g}, "
            f"`max-norm` is {expected.max_norm:.3g}"
        )


def _check_told(ids: Tensor, counts: Tensor, samples: int, told: Sequence[int]) -> None:
    """Refuse more samples than the client told of when it was asked who it is: they are its weight in averages."""
    if not told:
        return
    if (more := counts > torch.tensor(told)[ids]).any():
        worst = int(more.nonzero()[0])
        class_id = int(ids[worst])
        raise MoreSamples(
            f"array 'count': {int(counts[worst])} samples of class {class_id}, told were {told[class_id]}"
        )
    if samples > sum(told):
        raise MoreSamples(f"metric 'samples': {samples}, told were {sum(told)}")


def _read_rows(
    arrays: ArrayRecord, ids: Tensor, shared: Mapping[str, Tensor], expected: Expected, sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Decode and check the rows that parts send; fields of one group come together."""
    form = FORMATS[expected.dtype]
    parts = [f for f in UP.values() if f not in _MEANS]
    there = [f for f in parts if is_there(arrays, f)]
    groups = {f.together for f in there} - {""}
    for declared in there:
        if declared.name not in expected.limits:
            raise WireError(f"the reply carries {declared.noun or declared.name}, but this strategy uses none")
    rows = {f.name: read_field(arrays, f, form, sizes) for f in parts if f in there or f.together in groups}
    for name, tensor in rows.items():
        _check_lengths(UP[name], tensor, ids, shared, expected)
    return rows


def _check_lengths(
    declared: Field, rows: Tensor, ids: Tensor, shared: Mapping[str, Tensor], expected: Expected
) -> None:
    """Refuse rows that are not finite, or longer than honest ones can be."""
    if not bool(torch.isfinite(rows).all()):
        raise WireError(
            f"array '{declared.name}' holds NaN or infinity, shape {tuple(rows.shape)}; the model has diverged"
        )
    limit_of = expected.limits[declared.name]
    if limit_of is None:
        longest, reason = expected.max_norm, "`max-norm` is {:.3g}"
    else:
        longest, reason = limit_of(shared)
        if declared.rounded:
            longest *= 1 + FORMATS[expected.dtype].stretch(expected.feature_dim)
    norms = rows.double().flatten(1).norm(dim=1)
    if len(norms) and float(norms.max()) > longest:
        worst = int(norms.argmax())
        raise WireError(
            f"array '{declared.name}': row of class {int(ids[worst])} has norm {float(norms[worst]):.3g}, "
            f"{reason.format(longest)}"
        )


def _train_metrics(terms: Sequence[str]) -> list[str]:
    evaluated = (f"{moment}-{name}" for moment in ("before", "after") for name in _EVALUATED)
    return ["samples", "scatter", "seconds", *(f"loss-{name}" for name in terms), *evaluated]


def _read_shared(content: RecordDict, spec: Spec) -> dict[str, Tensor]:
    if not spec:
        if MODEL in content:
            raise WireError("the reply carries weights, but this strategy shares none")
        return {}
    record = record_of(content, MODEL, ArrayRecord)
    if set(record) != set(spec):
        differing = sorted(set(record) ^ set(spec))
        raise WireError(f"shared weights: names differ from the federation's: {differing!r:.200}")
    shared = {name: read_tensor(record, name, dtype, shape) for name, (dtype, shape) in spec.items()}
    check_finite(shared, "among the shared weights")
    for name, tensor in shared.items():
        _check_size(name, tensor)
    return shared


def _check_size(name: str, weights: Tensor) -> None:
    """Refuse what no network has and what would spoil the average for all others."""
    if not weights.is_floating_point():
        if weights.numel() and max(abs(int(weights.min())), abs(int(weights.max()))) > COUNT_LIMIT:
            raise WireError(f"array {name!r:.200} among the shared weights: expected numbers up to {COUNT_LIMIT}")
        return
    variance = name.endswith("running_var")
    if variance and bool((weights < 0).any()):
        raise WireError(f"array {name!r:.200} among the shared weights: {float(weights.min()):.3g} is no variance")
    limit = _WEIGHT_LIMIT**2 if variance else _WEIGHT_LIMIT
    size = float(weights.double().norm()) / max(1, weights.numel()) ** 0.5
    if size > limit:
        raise WireError(
            f"array {name!r:.200} among the shared weights: root mean square {size:.3g}, at most {limit:.3g} is taken; "
            "the model has diverged"
        )


def _read_evaluation(metrics: MetricRecord, moment: str) -> Evaluation:
    correct = integer_of(metrics, f"{moment}-correct", 0)
    total = integer_of(metrics, f"{moment}-total", 0)
    prototype = integer_of(metrics, f"{moment}-correct-prototype", -1)
    if max(correct, prototype) > total:
        raise WireError(f"metric '{moment}-correct': {max(correct, prototype)} right of {total} samples")
    return Evaluation(correct=correct, total=total, correct_prototype=None if prototype < 0 else prototype)
