"""What travels between server and clients: schema 1. The only module that knows record names and keys.

See ``docs/wire-schema.md``. Decoding trusts nothing: the length of an array's bytes, its declared shape and
its own header must agree before anything is decoded, since the library compares none of them (a forged header
alone makes NumPy ask for gigabytes).
"""

import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from torch import Tensor

from isoproto.config import Scalar
from isoproto.errors import MoreSamples, SchemaMismatch, WireError
from isoproto.geometry.prototypes import Contribution
from isoproto.wire.rounding import FORMATS, RowFormat

SCHEMA_VERSION = 1

_CONFIG, _SETTINGS, _ARRAYS, _MODEL, _METRICS = "config", "settings", "arrays", "model", "metrics"
_FAILURE, _HOSTED = "failure", "hosted"
_TEXT_LIMIT = 4096  # characters of a name or reason that a peer may make us store
_COUNT_LIMIT = 2**40  # more samples than a client can hold
_PARTITION_LIMIT = 2**20
_NUMBER_LIMIT = 3.4e38  # of a loss or the like: what float32 holds, so that a sum over clients is finite too
# Root mean square of a weight tensor, of running means, and of deviations in running variances. Networks' are about 1;
# far above, the average makes the others' training diverge.
_WEIGHT_LIMIT = 100.0
_CLASS_LIMIT = 2**16
# What tensors of a model may be; NumPy knows types that run code or have no fixed size.
_DTYPES = frozenset({"float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"})

LOSSES = ("cross-entropy", "prototype", "instance", "hpcl", "hpal", "total")
# All that a reply may hold: with these names and the shapes that C and d settle, its size is bounded.
_ROWS = ("class-ids", "proto", "count", "grad", "grad-weight", "grad-bias")
_SENT = ("prototypes", "present", "relations", "anchor-dir", "anchor-mean", "hyper", "head-weight", "head-bias")
# Which of them are rows of numbers, and so travel in the run's `wire.dtype`: no weights among them.
_ROUNDED = ("proto", "grad", "grad-weight", "prototypes", "relations", "anchor-dir", "anchor-mean", "hyper")
_SCALE = "-scale"  # of the array that holds the scales of another one's rows
_HYPER_LIMIT = 64  # hyper-prototypes per class
_EVALUATED = ("correct", "total", "correct-prototype")
_TRAIN_METRICS = (
    *("samples", "scatter", "seconds"),
    *(f"loss-{name}" for name in LOSSES),
    *(f"{moment}-{name}" for moment in ("before", "after") for name in _EVALUATED),
)
_EVALUATE_METRICS = (*(f"after-{name}" for name in _EVALUATED), "class-correct", "class-total", "class-predicted")

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)
Spec = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What the server asks every node once a run.

    Attributes:
        experiment: Id that client states are filed under; made at the first start, kept by resume.
        fingerprint: Digest of the server's code.
        settings: The run configuration where it differs from the defaults.
    """

    experiment: str
    fingerprint: str
    settings: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInfo:
    """What a client says of itself.

    Attributes:
        client: Stable name: the partition id as text in simulation, else the node's own name.
        model: Architecture.
        feature_dim: Feature width d.
        classes: The class list it labels by.
        train_counts: Training samples of each class.
        test_counts: Test samples of each class.
        domain: Domain of its data, or empty.
        partitions: Number of partitions that its node was told of; 0 on a real device.
        fingerprint: Digest of the code that answered.
        folder: Where that code lies on the client.
        worker: Id of the simulation's worker that answered, which can answer for other clients too; 0 elsewhere.
        shared: Names, dtypes and shapes of the weights that it would share.
    """

    client: str
    model: str
    feature_dim: int
    classes: tuple[str, ...]
    train_counts: tuple[int, ...]
    test_counts: tuple[int, ...]
    domain: str = ""
    partitions: int = 0
    fingerprint: str = ""
    folder: str = ""
    worker: int = 0
    shared: Spec = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """What a client needs to train or to be evaluated.

    Attributes:
        experiment: As in the query.
        server_round: The round, >= 1 for training; for evaluation the last round that is over.
        settings: As in the query.
        prototypes: Global prototypes ``[C, d]``, float32, or ``None`` before there are any.
        present: Which classes have one, ``[C]``, bool; ``None`` likewise.
        relations: What a relational loss aligns to in place of the prototypes' own relations, ``[C, C]``, float32.
        directions: Mean directions of the hyper-prototypes, ``[C, d]``, in the shared frame.
        means: Their means, ``[C, d]``, likewise.
        hyper: The hyper-prototypes themselves, ``[C, I, d]``, in another frame, once they are learned.
        head: The server's own head, weight ``[C, d]`` and bias ``[C]``, that gradients are taken through.
        shared: Averaged weights by name; empty unless the strategy shares some.
    """

    experiment: str
    server_round: int
    settings: Mapping[str, Scalar]
    prototypes: Tensor | None = None
    present: Tensor | None = None
    relations: Tensor | None = None
    directions: Tensor | None = None
    means: Tensor | None = None
    hyper: Tensor | None = None
    head: tuple[Tensor, Tensor] | None = None
    shared: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """How rows travel, here and in the reply: `wire.dtype` of the settings."""
        return _row_dtype(self.settings)


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
        losses: Mean loss terms of the last epoch by name in ``LOSSES``.
        before: Accuracy before training, with what the server sent installed.
        after: Accuracy after training.
        seconds: Time the client spent on the message.
        gradients: Mean feature gradient of each class in ``contribution``, ``[P, d]``, or ``None``.
        classifier: Their mean gradients with respect to the head, ``[P, C, d]`` and ``[P, C]``, or ``None``.
    """

    contribution: Contribution
    scatter: float
    losses: Mapping[str, float]
    before: Evaluation
    after: Evaluation
    seconds: float
    gradients: Tensor | None = None
    classifier: tuple[Tensor, Tensor] | None = None
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
        classifier: Whether gradients with respect to the head may come.
        max_gradient: Largest norm of a gradient row; 0 if none may come, infinite if the head in the reply tells.
        dtype: How rows travel, `wire.dtype`.
        train_counts: Training samples of each class that the client told of; empty if not known.
    """

    client: str
    experiment: str
    server_round: int
    num_classes: int
    feature_dim: int
    max_norm: float = math.inf
    max_gradient: float = 0.0
    classifier: bool = False
    dtype: str = "float32"
    shared: Spec = field(default_factory=dict)
    train_counts: tuple[int, ...] = ()


def class_digest(classes: Sequence[str]) -> str:
    """Return 16 hex digits that stand for a class list and its order."""
    return hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()[:16]


def tensor_spec(tensors: Mapping[str, Tensor]) -> Spec:
    """Return name, dtype and shape of each tensor."""
    return {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()}


def serialised_bytes(content: RecordDict) -> int:
    """Return the size of a message's content in bytes as protobuf writes it."""
    return int(recorddict_to_proto(content).ByteSize())


# Writing


def write_query(query: Query) -> RecordDict:
    """Encode a query."""
    config = ConfigRecord({"schema": SCHEMA_VERSION, "experiment": query.experiment, "fingerprint": query.fingerprint})
    return RecordDict({_CONFIG: config, _SETTINGS: ConfigRecord(dict(query.settings))})


def write_client_info(info: ClientInfo) -> RecordDict:
    """Encode the answer to a query."""
    config = ConfigRecord(
        {
            "schema": SCHEMA_VERSION,
            "client": info.client,
            "model": info.model,
            "feature-dim": info.feature_dim,
            "classes": list(info.classes),
            "classes-digest": class_digest(info.classes),
            "train-counts": list(info.train_counts),
            "test-counts": list(info.test_counts),
            "domain": info.domain,
            "partitions": info.partitions,
            "fingerprint": info.fingerprint,
            "folder": info.folder,
            "worker": info.worker,
            "shared": json.dumps(info.shared),
        }
    )
    return RecordDict({_CONFIG: config})


def write_broadcast(broadcast: Broadcast) -> RecordDict:
    """Encode a train or evaluate message."""
    config = ConfigRecord(
        {"schema": SCHEMA_VERSION, "experiment": broadcast.experiment, "round": broadcast.server_round}
    )
    content = RecordDict({_CONFIG: config, _SETTINGS: ConfigRecord(dict(broadcast.settings))})
    weight, bias = broadcast.head or (None, None)
    tensors = (
        *(broadcast.prototypes, broadcast.present, broadcast.relations, broadcast.directions, broadcast.means),
        *(broadcast.hyper, weight, bias),
    )
    sent = {name: tensor for name, tensor in zip(_SENT, tensors, strict=True) if tensor is not None}
    if sent:
        content[_ARRAYS] = _write_arrays(sent, broadcast.dtype)
    if broadcast.shared:
        content[_MODEL] = ArrayRecord({name: _array(t, t.dtype) for name, t in broadcast.shared.items()})
    return content


def address(content: RecordDict, clients: Sequence[str]) -> RecordDict:
    """Return a train or evaluate message that a simulation's worker answers for some clients, one after the other."""
    config = ConfigRecord({**_record(content, _CONFIG, ConfigRecord), _HOSTED: [int(client) for client in clients]})
    return RecordDict({**content, _CONFIG: config})


def join(parts: Mapping[str, RecordDict]) -> RecordDict:
    """Return one reply that holds the replies of several clients, by client."""
    return RecordDict({f"{client}/{name}": r for client, part in parts.items() for name, r in part.items()})


def write_failure(error: BaseException) -> RecordDict:
    """Encode what a client says instead of a reply, in one that holds those of several."""
    return RecordDict({_FAILURE: ConfigRecord({"reason": f"{type(error).__name__}: {error}"[:_TEXT_LIMIT]})})


def write_train_reply(reply: TrainReply, broadcast: Broadcast, client: str) -> RecordDict:
    """Encode what a client sends after training on ``broadcast``."""
    sent = reply.contribution
    weight, bias = reply.classifier or (None, None)
    tensors = (sent.class_ids, sent.means, sent.counts, reply.gradients, weight, bias)
    arrays = {name: tensor for name, tensor in zip(_ROWS, tensors, strict=True) if tensor is not None}
    content = RecordDict(
        {
            _CONFIG: _reply_config(broadcast, client),
            _ARRAYS: _write_arrays(arrays, broadcast.dtype),
            _METRICS: MetricRecord(
                {
                    "samples": sent.samples,
                    "scatter": reply.scatter,
                    "seconds": reply.seconds,
                    **{f"loss-{name}": reply.losses.get(name, 0.0) for name in LOSSES},
                    **_evaluation_metrics("before", reply.before),
                    **_evaluation_metrics("after", reply.after),
                }
            ),
        }
    )
    if reply.shared:
        content[_MODEL] = ArrayRecord({name: _array(t, t.dtype) for name, t in reply.shared.items()})
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
    return RecordDict({_CONFIG: _reply_config(broadcast, client), _METRICS: metrics})


def payload_bytes(reply: TrainReply, dtype: str = "float32") -> int:
    """Return the payload of a reply's rows in bytes: ids, rows with their scales, and counts, without any framing."""
    form = FORMATS[dtype]
    rows, width = reply.contribution.means.shape
    one = form.bytes_of_row(width)
    others = 0
    if reply.classifier is not None:
        weight, bias = reply.classifier
        others = weight[..., 0].numel() * one + 4 * bias.numel()
    return rows * (4 + one * (1 if reply.gradients is None else 2) + 8) + others


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


_STORED = {"class-ids": torch.int32, "count": torch.int64, "present": torch.uint8}  # the rest is float32


def _write_arrays(tensors: Mapping[str, Tensor], dtype: str) -> ArrayRecord:
    form, arrays = FORMATS[dtype], {}
    for name, tensor in tensors.items():
        if form.scaled and name in _ROUNDED:
            numbers, scales = form.round(tensor.detach().cpu())
            arrays[name], arrays[name + _SCALE] = _array(numbers, form.stored), _array(scales, torch.float32)
        else:
            arrays[name] = _array(tensor, _STORED.get(name, torch.float32))
    return ArrayRecord(arrays)


def _array(tensor: Tensor, dtype: torch.dtype) -> Array:
    # Not NumPy's ascontiguousarray, which gives an axis to a tensor that has none.
    return Array(tensor.detach().to("cpu", dtype).contiguous().numpy())


# Reading


def read_query(content: RecordDict) -> Query:
    """Decode a query, on the client.

    Raises:
        SchemaMismatch: If the server speaks another schema version.
        WireError: If it is not a query of ours.
    """
    config = _record(content, _CONFIG, ConfigRecord)
    _check_schema(config)
    return Query(
        experiment=_text(config, "experiment"),
        fingerprint=_text(config, "fingerprint"),
        settings=_settings(content),
    )


def read_client_info(content: RecordDict) -> ClientInfo:
    """Decode and check the answer to a query.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: If a field is missing or cannot be.
    """
    config = _record(content, _CONFIG, ConfigRecord)
    _check_schema(config)
    classes = config.get("classes")
    if not isinstance(classes, list) or not 1 <= len(classes) <= _CLASS_LIMIT or not all(map(_is_name, classes)):
        raise WireError(
            f"config 'classes': expected a list of class names, up to {_CLASS_LIMIT} of up to {_TEXT_LIMIT} printable "
            f"characters, got {_shown(classes)}"
        )
    info = ClientInfo(
        client=_text(config, "client"),
        model=_text(config, "model"),
        feature_dim=_integer(config, "feature-dim", 1),
        classes=tuple(map(str, classes)),
        train_counts=_integers(config, "train-counts", len(classes)),
        test_counts=_integers(config, "test-counts", len(classes)),
        domain=_text(config, "domain"),
        partitions=_integer(config, "partitions", 0, _PARTITION_LIMIT),
        fingerprint=_text(config, "fingerprint"),
        folder=_text(config, "folder"),
        worker=_integer(config, "worker", 0),
        shared=_read_spec(config),
    )
    if not info.client:
        raise WireError("config 'client': expected a name, got an empty one")
    if info.worker and not info.client.isdecimal():
        raise WireError(f"config 'client': a simulation's clients are partitions, got {_shown(info.client)}")
    if config.get("classes-digest") != class_digest(info.classes):
        raise WireError("config 'classes-digest' does not belong to the class list beside it")
    return info


def read_client_infos(content: RecordDict, clients: int) -> tuple[list[ClientInfo], dict[str, str]]:
    """Decode and check a node's answer to a query: its client, or in a simulation all that it stands for.

    Args:
        content: The answer.
        clients: Of the simulation, if its nodes stand for several; else 0.

    Returns:
        The clients, and the reasons of those that cannot take part, by name.

    Raises:
        WireError: As :func:`read_client_info`; or if a real node wants to be several clients.
    """
    if not any("/" in name for name in content):
        return [read_client_info(content)], {}
    names = list(dict.fromkeys(name.partition("/")[0] for name in content))
    parts = split(content, names)
    failed = {name: reason for name, part in parts.items() if (reason := read_failure(part))}
    infos = {name: read_client_info(part) for name, part in parts.items() if name not in failed}
    simulated = all(info.worker and info.client == name for name, info in infos.items())
    if not simulated or not set(names) <= set(map(str, range(clients))):
        raise WireError(f"a node that is not simulated has one client; this one answers for {names!r:.200}")
    return list(infos.values()), failed


def read_broadcast(content: RecordDict, *, num_classes: int, feature_dim: int) -> Broadcast:
    """Decode and check a train or evaluate message, on the client.

    Raises:
        SchemaMismatch: If the server speaks another schema version.
        WireError: If an array has another shape or dtype than this client's classes and width ask for, or
            holds NaN or infinity.
    """
    config = _record(content, _CONFIG, ConfigRecord)
    _check_schema(config)
    arrays = _record(content, _ARRAYS, ArrayRecord) if _ARRAYS in content else ArrayRecord()
    settings = _settings(content)
    form = FORMATS[_row_dtype(settings)]
    _check_names("arrays", arrays, _names(_SENT, form))
    rows = (num_classes, feature_dim)
    size = arrays["hyper"].shape[1] if "hyper" in arrays and len(arrays["hyper"].shape) == 3 else 1
    if not 1 <= size <= _HYPER_LIMIT:
        raise WireError(f"array 'hyper': expected 1..{_HYPER_LIMIT} vectors per class, got {size}")
    shapes = {
        "prototypes": rows,
        "present": (num_classes,),
        "relations": (num_classes, num_classes),
        "anchor-dir": rows,
        "anchor-mean": rows,
        "hyper": (num_classes, size, feature_dim),
        "head-weight": rows,
        "head-bias": (num_classes,),
    }
    sent = {
        name: _tensor(arrays, name, "uint8", shape) if name == "present" else _rows(arrays, name, form, shape)
        for name, shape in shapes.items()
        if name in arrays or name + _SCALE in arrays
    }
    if form.scaled and "relations" in sent:  # rows are rounded one by one, and a relation goes both ways
        sent["relations"] = (sent["relations"] + sent["relations"].T) / 2
    for together in (("prototypes", "present"), ("anchor-dir", "anchor-mean"), ("head-weight", "head-bias")):
        if (missing := [name for name in together if name not in sent]) and len(missing) < len(together):
            raise WireError(f"array '{missing[0]}' is missing; arrays: {list(sent)!r:.200}")
    present = sent["present"].bool() if "present" in sent else None
    for name, tensor in sent.items():
        # Rows of absent classes are never read.
        if not bool(torch.isfinite(tensor[present] if name == "prototypes" else tensor).all()):
            raise WireError(f"array '{name}' from the server holds NaN or infinity; this client does not train on it")
    shared = {}
    if _MODEL in content:
        record = _record(content, _MODEL, ArrayRecord)
        shared = {name: _tensor(record, name, array.dtype, array.shape) for name, array in record.items()}
        _check_finite(shared, "from the server")
    return Broadcast(
        experiment=_text(config, "experiment"),
        server_round=_integer(config, "round", 0),
        settings=settings,
        prototypes=sent.get("prototypes"),
        present=present,
        relations=sent.get("relations"),
        directions=sent.get("anchor-dir"),
        means=sent.get("anchor-mean"),
        hyper=sent.get("hyper"),
        head=(sent["head-weight"], sent["head-bias"]) if "head-weight" in sent else None,
        shared=shared,
    )


def read_settings(content: RecordDict) -> dict[str, Scalar]:
    """Return the settings in a query, train or evaluate message: needed before its arrays can be checked."""
    return _settings(content)


def read_hosted(content: RecordDict) -> list[int]:
    """Return the partitions that a message wants an answer for; none where a node answers for itself.

    Raises:
        WireError: If they are no distinct whole numbers.
    """
    hosted = _record(content, _CONFIG, ConfigRecord).get(_HOSTED, [])
    if not isinstance(hosted, list) or not all(type(p) is int and p >= 0 for p in hosted):
        raise WireError(f"config '{_HOSTED}': expected partition ids, got {_shown(hosted)}")
    return list(dict.fromkeys(map(int, hosted)))


def split(content: RecordDict, clients: Sequence[str]) -> dict[str, RecordDict]:
    """Return the replies of several clients that :func:`join` put into one; one may be empty.

    Raises:
        WireError: If it holds anything else.
    """
    parts: dict[str, RecordDict] = {client: RecordDict() for client in clients}
    for name, record in content.items():
        client, _, inner = name.partition("/")
        if client not in parts:
            raise WireError(f"unexpected records {name!r:.200}; asked were {list(clients)!r:.200}")
        parts[client][inner] = record
    return parts


def read_failure(part: RecordDict) -> str:
    """Return what a client says instead of a reply, or an empty text."""
    record = part.get(_FAILURE)
    return str(record.get("reason", "no reason given")) if isinstance(record, ConfigRecord) else ""


def read_train_reply(content: RecordDict, expected: Expected) -> TrainReply:
    """Decode and check a training reply: schema, round, arrays, finiteness, classes, counts, norms.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: On anything else that cannot be; the text names the array or metric.
    """
    _check_reply_config(content, expected)
    arrays = _record(content, _ARRAYS, ArrayRecord)
    form = FORMATS[expected.dtype]
    _check_names("arrays", arrays, _names(_ROWS, form))
    rows = _leading(arrays, "class-ids", expected.num_classes)
    ids = _tensor(arrays, "class-ids", "int32", (rows,)).long()
    means = _rows(arrays, "proto", form, (rows, expected.feature_dim))
    counts = _tensor(arrays, "count", "int64", (rows,))
    _check_rows(ids, means, counts, expected)
    metrics = _record(content, _METRICS, MetricRecord)
    _check_names("metrics", metrics, _TRAIN_METRICS)
    samples = _integer(metrics, "samples", 0)
    if int(counts.sum()) > samples:
        raise WireError(f"array 'count': {int(counts.sum())} samples in the classes, but 'samples' is {samples}")
    _check_told(ids, counts, samples, expected.train_counts)
    shared = _read_shared(content, expected.shared)
    return TrainReply(
        contribution=Contribution(ids, means, counts, samples),
        scatter=_finite(metrics, "scatter", 0.0),
        losses={name: _finite(metrics, f"loss-{name}") for name in LOSSES},
        before=_read_evaluation(metrics, "before"),
        after=_read_evaluation(metrics, "after"),
        seconds=_finite(metrics, "seconds", 0.0),
        gradients=_read_gradients(arrays, ids, shared, expected),
        classifier=_read_classifier(arrays, ids, expected),
        shared=shared,
    )


def read_evaluate_reply(content: RecordDict, expected: Expected) -> Evaluation:
    """Decode and check an evaluation reply.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: On anything else that cannot be.
    """
    _check_reply_config(content, expected)
    metrics = _record(content, _METRICS, MetricRecord)
    _check_names("metrics", metrics, _EVALUATE_METRICS)
    evaluation = _read_evaluation(metrics, "after")
    correct = _integers(metrics, "class-correct", expected.num_classes)
    total = _integers(metrics, "class-total", expected.num_classes)
    predicted = _integers(metrics, "class-predicted", expected.num_classes)
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


def _check_schema(config: ConfigRecord) -> None:
    schema = config.get("schema")
    if schema != SCHEMA_VERSION:
        raise SchemaMismatch(
            f"message uses wire schema {_shown(schema)}, this side speaks {SCHEMA_VERSION}; "
            "update the older side's copy of isoproto"
        )


def _check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    if extra := sorted(set(names).difference(known)):
        raise WireError(f"unexpected {what} {extra!r:.200}")


def _check_reply_config(content: RecordDict, expected: Expected) -> None:
    config = _record(content, _CONFIG, ConfigRecord)
    _check_schema(config)
    _check_names("records", content, (_CONFIG, _ARRAYS, _MODEL, _METRICS))
    _check_names("config", config, ("schema", "experiment", "round", "client"))
    for key, wanted in (
        ("experiment", expected.experiment),
        ("round", expected.server_round),
        ("client", expected.client),
    ):
        if config.get(key) != wanted:
            raise WireError(f"config '{key}': expected {wanted!r}, got {_shown(config.get(key))}")


def _check_rows(ids: Tensor, means: Tensor, counts: Tensor, expected: Expected) -> None:
    if not bool(torch.isfinite(means).all()):
        raise WireError(f"array 'proto' holds NaN or infinity, shape {tuple(means.shape)}; the model has diverged")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= expected.num_classes):
        raise WireError(f"array 'class-ids': expected 0..{expected.num_classes - 1}, got {ids.tolist()!r:.200}")
    if bool((ids.diff() <= 0).any()):
        raise WireError(f"array 'class-ids': expected strictly increasing ids, got {ids.tolist()!r:.200}")
    if len(counts) and (int(counts.min()) < 1 or int(counts.max()) > _COUNT_LIMIT):
        raise WireError(f"array 'count': expected 1..{_COUNT_LIMIT}, got {counts.tolist()!r:.200}")
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


def _read_gradients(
    arrays: ArrayRecord, ids: Tensor, shared: Mapping[str, Tensor], expected: Expected
) -> Tensor | None:
    """Mean feature gradients of cross-entropy: none is longer than the head that it was taken through allows."""
    if "grad" not in arrays and "grad" + _SCALE not in arrays:
        return None
    if not expected.max_gradient:
        raise WireError("the reply carries gradients, but this strategy uses none")
    form = FORMATS[expected.dtype]
    gradients = _rows(arrays, "grad", form, (len(ids), expected.feature_dim))
    if not bool(torch.isfinite(gradients).all()):
        raise WireError(f"array 'grad' holds NaN or infinity, shape {tuple(gradients.shape)}; the model has diverged")
    limit = expected.max_gradient
    if math.isinf(limit) and "head.weight" in shared:
        limit = gradient_limit(shared["head.weight"])
    limit *= 1 + form.stretch(expected.feature_dim)
    norms = gradients.double().norm(dim=1)
    if len(norms) and float(norms.max()) > limit:
        worst = int(norms.argmax())
        raise WireError(
            f"array 'grad': row of class {int(ids[worst])} has norm {float(norms[worst]):.3g}, but no gradient through "
            f"its head is longer than {limit:.3g}"
        )
    return gradients


def _read_classifier(arrays: ArrayRecord, ids: Tensor, expected: Expected) -> tuple[Tensor, Tensor] | None:
    if not {"grad-weight", "grad-weight" + _SCALE, "grad-bias"} & set(arrays):
        return None
    if not expected.classifier:
        raise WireError("the reply carries classifier gradients, but this strategy uses none")
    shape = (len(ids), expected.num_classes, expected.feature_dim)
    weight = _rows(arrays, "grad-weight", FORMATS[expected.dtype], shape)
    bias = _tensor(arrays, "grad-bias", "float32", shape[:2])
    _check_finite({"grad-weight": weight, "grad-bias": bias}, "of the classifier")
    largest = max((float(t.double().flatten(1).norm(dim=1).max()) for t in (weight, bias) if len(t)), default=0.0)
    if largest > expected.max_norm:
        raise WireError(f"array 'grad-weight': a class has norm {largest:.3g}, `max-norm` is {expected.max_norm:.3g}")
    return weight, bias


def gradient_limit(weight: Tensor) -> float:
    r"""Return the longest that a feature gradient through the linear head ``weight`` ``[C, d]`` can be.

    It is :math:`W^T r` with a residual :math:`\|r\|_1 \le 2`; a hundredth and a little more for rounding.
    """
    return 2.02 * float(weight.double().norm(dim=1).max()) + 1e-6


def _check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise WireError(f"array {name!r:.200} {where} holds NaN or infinity, shape {tuple(tensor.shape)}")


def _record(content: RecordDict, name: str, kind: type[Record]) -> Record:
    record = content.get(name)
    if not isinstance(record, kind):
        raise WireError(
            f"no {kind.__name__} '{name}' in the message: it is none of isoproto's (records: {list(content)!r:.200})"
        )
    return record


def _settings(content: RecordDict) -> dict[str, Scalar]:
    record = _record(content, _SETTINGS, ConfigRecord)
    return {k: v for k, v in record.items() if isinstance(v, bool | int | float | str)}


def _row_dtype(settings: Mapping[str, Scalar]) -> str:
    dtype = settings.get("wire.dtype", "float32")
    if not isinstance(dtype, str) or dtype not in FORMATS:
        raise WireError(f"setting 'wire.dtype': expected one of {', '.join(FORMATS)}, got {_shown(dtype)}")
    return dtype


def _names(known: Iterable[str], form: RowFormat) -> list[str]:
    """Which arrays a message may hold: rounded rows have their scales beside them."""
    return [*known, *(name + _SCALE for name in known if form.scaled and name in _ROUNDED)]


def _rows(arrays: ArrayRecord, name: str, form: RowFormat, shape: tuple[int, ...]) -> Tensor:
    """Decode rows ``[..., d]`` of numbers to float32, whatever they travelled in."""
    if not form.scaled or name not in _ROUNDED:
        return _tensor(arrays, name, "float32", shape)
    numbers = _tensor(arrays, name, form.name, shape)
    scales = _tensor(arrays, name + _SCALE, "float32", shape[:-1])
    if (wrong := form.forged(numbers, scales)).any():
        row = int(wrong.flatten().nonzero()[0])
        raise WireError(
            f"array '{name + _SCALE}': the scale {float(scales.flatten()[row]):.3g} of row {row} is not that of its "
            f"numbers, of which the largest must be {form.top}"
        )
    return form.restore(numbers, scales)


def _leading(arrays: ArrayRecord, name: str, limit: int) -> int:
    shape = arrays[name].shape if name in arrays else ()
    if len(shape) != 1 or not 0 <= shape[0] <= limit:
        raise WireError(f"array '{name}': expected at most {limit} entries, got shape {shape!r:.200}")
    return int(shape[0])


def _tensor(arrays: ArrayRecord, name: str, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Decode one array after its declared shape, its header and its length have been found to agree."""
    array = arrays.get(name)
    if array is None:
        raise WireError(f"array '{name}' is missing; arrays: {list(arrays)!r:.200}")
    if dtype not in _DTYPES:
        raise WireError(f"array {name!r:.200}: no model has tensors of type {dtype!r:.40}")
    if array.stype != "numpy.ndarray" or array.dtype != dtype or tuple(array.shape) != shape:
        raise WireError(
            f"array {name!r:.200}: expected {dtype} {shape}, got {array.dtype!r:.40} {tuple(array.shape)!r:.200}"
        )
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"npy version {version}")
        inner_shape, fortran, inner_dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as err:  # whatever a forged header raises while NumPy parses it
        raise WireError(f"array {name!r:.200}: its header cannot be read ({type(err).__name__})") from err
    wanted = np.dtype(dtype).newbyteorder("<")
    offset, length = stream.tell(), math.prod(shape) * wanted.itemsize
    if inner_shape != shape or inner_dtype != wanted or (fortran and len(shape) > 1):
        raise WireError(
            f"array {name!r:.200}: declared {dtype} {shape}, but its header says {inner_dtype} {inner_shape!r:.200}"
        )
    if len(array.data) - offset != length:
        raise WireError(f"array {name!r:.200}: expected {length} bytes of data, got {len(array.data) - offset}")
    values = np.frombuffer(array.data, dtype=wanted, offset=offset).reshape(shape)
    return torch.from_numpy(values.copy())


def _read_shared(content: RecordDict, spec: Spec) -> dict[str, Tensor]:
    if not spec:
        if _MODEL in content:
            raise WireError("the reply carries weights, but this strategy shares none")
        return {}
    record = _record(content, _MODEL, ArrayRecord)
    if set(record) != set(spec):
        differing = sorted(set(record) ^ set(spec))
        raise WireError(f"shared weights: names differ from the federation's: {differing!r:.200}")
    shared = {name: _tensor(record, name, dtype, shape) for name, (dtype, shape) in spec.items()}
    _check_finite(shared, "among the shared weights")
    for name, tensor in shared.items():
        _check_size(name, tensor)
    return shared


def _check_size(name: str, weights: Tensor) -> None:
    """Refuse what no network has and what would spoil the average for all others."""
    if not weights.is_floating_point():
        if weights.numel() and max(abs(int(weights.min())), abs(int(weights.max()))) > _COUNT_LIMIT:
            raise WireError(f"array {name!r:.200} among the shared weights: expected numbers up to {_COUNT_LIMIT}")
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
    correct = _integer(metrics, f"{moment}-correct", 0)
    total = _integer(metrics, f"{moment}-total", 0)
    prototype = _integer(metrics, f"{moment}-correct-prototype", -1)
    if max(correct, prototype) > total:
        raise WireError(f"metric '{moment}-correct': {max(correct, prototype)} right of {total} samples")
    return Evaluation(correct=correct, total=total, correct_prototype=None if prototype < 0 else prototype)


def _read_spec(config: ConfigRecord) -> Spec:
    text = _text(config, "shared", limit=2**20)
    try:
        spec = {name: (dtype, tuple(shape)) for name, (dtype, shape) in json.loads(text).items()}
        fine = all(
            _is_name(name) and dtype in _DTYPES and all(type(n) is int and 0 <= n <= _COUNT_LIMIT for n in shape)
            for name, (dtype, shape) in spec.items()
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        raise WireError(f"config 'shared': expected names, dtypes and shapes as JSON, got {_shown(text)}") from err
    if not fine:
        raise WireError(f"config 'shared': expected names, dtypes and shapes of tensors, got {_shown(text)}")
    return spec


def _is_name(value: object, limit: int = _TEXT_LIMIT) -> bool:
    return isinstance(value, str) and len(value) <= limit and value.isprintable()


def _text(config: ConfigRecord, key: str, limit: int = _TEXT_LIMIT) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not _is_name(value, limit):
        raise WireError(f"config '{key}': expected up to {limit} printable characters, got {_shown(value)}")
    return value


def _integer(record: ConfigRecord | MetricRecord, key: str, low: int, high: int = _COUNT_LIMIT) -> int:
    value = record.get(key)
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"'{key}': expected a whole number from {low} to {high}, got {_shown(value)}")
    return value


def _integers(record: ConfigRecord | MetricRecord, key: str, length: int) -> tuple[int, ...]:
    value = record.get(key)
    if (
        not isinstance(value, list)
        or len(value) != length
        or not all(type(v) is int and 0 <= v <= _COUNT_LIMIT for v in value)
    ):
        raise WireError(f"'{key}': expected {length} whole numbers >= 0, got {_shown(value)}")
    return tuple(int(v) for v in value)


def _finite(metrics: MetricRecord, key: str, low: float = -_NUMBER_LIMIT) -> float:
    value = metrics.get(key)
    if type(value) not in (int, float) or not low <= value <= _NUMBER_LIMIT:  # type: ignore[operator]
        wanted = "a finite number" + (f" >= {low:g}" if low > -_NUMBER_LIMIT else "")
        raise WireError(f"metric '{key}': expected {wanted}, got {_shown(value)}; at most {_NUMBER_LIMIT:g} is taken")
    return float(value)  # type: ignore[arg-type]


def _shown(value: object) -> str:
    """A peer's value for an error text: short, one line, no control characters."""
    return f"{value!r:.80}"
