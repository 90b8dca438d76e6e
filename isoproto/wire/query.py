"""The server's question to every node, once a run, which clients it has; and the answer."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, RecordDict

from isoproto.errors import WireError
from isoproto.settings.rules import Scalar
from isoproto.wire.codec import (
    CONFIG,
    COUNT_LIMIT,
    DTYPES,
    SCHEMA_VERSION,
    SETTINGS,
    TEXT_LIMIT,
    Spec,
    check_schema,
    integer_of,
    integers_of,
    is_name,
    record_of,
    settings_of,
    shown,
    text_of,
)
from isoproto.wire.hosted import read_failure, split

_CLASS_LIMIT = 2**16
_PARTITION_LIMIT = 2**20
_WIDTH_LIMIT = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The content of the question.

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
    """The answer: who a client is, and which data it has.

    Attributes:
        client: Stable name: the partition id as text in simulation, else the node's own name.
        model: Name of its architecture; ``none`` if it has no model.
        feature_dim: Feature width d of its model; without a model, that of the run.
        classes: Names of the classes, in the order of its labels.
        train_counts: Training samples of each class.
        test_counts: Test samples of each class.
        domain: Domain of its data, or empty.
        partitions: Number of partitions in the configuration of its node; 0 on a real device.
        fingerprint: Digest of the code that answered.
        folder: Where that code lies on the client.
        worker: Id of the worker of the simulation that answered; 0 outside of a simulation.
        shared: Names, dtypes and shapes of the weights that it shares in this run.
        frame: Name and checksum of the feature map behind the common frame; empty if the run has none.
        frame_dim: Number of coordinates of the common frame; 0 if the run has none.
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
    frame: str = ""
    frame_dim: int = 0


def class_digest(classes: Sequence[str]) -> str:
    """Return a digest of a class list and its order, 16 hex digits."""
    return hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()[:16]


def write_query(query: Query) -> RecordDict:
    """Encode a query."""
    config = ConfigRecord({"schema": SCHEMA_VERSION, "experiment": query.experiment, "fingerprint": query.fingerprint})
    return RecordDict({CONFIG: config, SETTINGS: ConfigRecord(dict(query.settings))})


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
    if info.frame:
        config["frame"], config["frame-dim"] = info.frame, info.frame_dim
    return RecordDict({CONFIG: config})


def read_query(content: RecordDict) -> Query:
    """Decode a query; the client calls this.

    Raises:
        SchemaMismatch: If the server speaks another schema version.
        WireError: If it is no query of this package.
    """
    config = record_of(content, CONFIG, ConfigRecord)
    check_schema(config)
    return Query(
        experiment=text_of(config, "experiment"),
        fingerprint=text_of(config, "fingerprint"),
        settings=settings_of(content),
    )


def read_client_info(content: RecordDict) -> ClientInfo:
    """Decode and check the answer to a query.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: If a field is missing or impossible.
    """
    config = record_of(content, CONFIG, ConfigRecord)
    check_schema(config)
    classes = config.get("classes")
    if not isinstance(classes, list) or not 1 <= len(classes) <= _CLASS_LIMIT or not all(map(is_name, classes)):
        raise WireError(
            f"config 'classes': expected a list of class names, up to {_CLASS_LIMIT} of up to {TEXT_LIMIT} printable "
            f"characters, got {shown(classes)}"
        )
    info = ClientInfo(
        client=text_of(config, "client"),
        model=text_of(config, "model"),
        feature_dim=integer_of(config, "feature-dim", 1),
        classes=tuple(map(str, classes)),
        train_counts=integers_of(config, "train-counts", len(classes)),
        test_counts=integers_of(config, "test-counts", len(classes)),
        domain=text_of(config, "domain"),
        partitions=integer_of(config, "partitions", 0, _PARTITION_LIMIT),
        fingerprint=text_of(config, "fingerprint"),
        folder=text_of(config, "folder"),
        worker=integer_of(config, "worker", 0),
        shared=_read_spec(config),
        frame=text_of(config, "frame") if "frame" in config else "",
        frame_dim=integer_of(config, "frame-dim", 1, _WIDTH_LIMIT) if "frame" in config else 0,
    )
    if not info.client:
        raise WireError("config 'client': expected a name, got an empty one")
    if info.worker and not info.client.isdecimal():
        raise WireError(f"config 'client': a simulation's clients are partitions, got {shown(info.client)}")
    if config.get("classes-digest") != class_digest(info.classes):
        raise WireError("config 'classes-digest' does not belong to the class list beside it")
    return info


def read_client_infos(content: RecordDict, clients: int) -> tuple[list[ClientInfo], dict[str, str]]:
    """Decode and check a node's answer to a query. In a simulation a node may answer for several clients.

    Args:
        content: The answer.
        clients: Number of clients of the simulation if its nodes answer for several; else 0.

    Returns:
        The clients, and by name the reasons of those that cannot take part.

    Raises:
        SchemaMismatch: If a client speaks another schema version.
        WireError: If a field of a client is missing or impossible, or if a real node answers for several clients.
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


def _read_spec(config: ConfigRecord) -> Spec:
    text = text_of(config, "shared", limit=2**20)
    try:
        spec = {name: (dtype, tuple(shape)) for name, (dtype, shape) in json.loads(text).items()}
        fine = all(
            is_name(name) and dtype in DTYPES and all(type(n) is int and 0 <= n <= COUNT_LIMIT for n in shape)
            for name, (dtype, shape) in spec.items()
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        raise WireError(f"config 'shared': expected names, dtypes and shapes as JSON, got {shown(text)}") from err
    if not fine:
        raise WireError(f"config 'shared': expected names, dtypes and shapes of tensors, got {shown(text)}")
    return spec
