"""The message that the server sends in a round, and what it checks the replies against."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from isoproto.errors import WireError
from isoproto.parts import PARTS, reported_terms
from isoproto.parts.base import Arrays, Field, LimitOf
from isoproto.settings.rules import Scalar
from isoproto.wire.codec import (
    ARRAYS,
    CONFIG,
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
    is_sent,
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
from isoproto.wire.rounding import FORMATS

DOWN: dict[str, Field] = {f.name: f for part in PARTS for f in part.down}
"""The arrays that the server may send, in their order in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """The content of a train or evaluate message.

    Attributes:
        experiment: Id that client states are filed under, as in the query.
        server_round: The round, >= 1 for training; for evaluation the last round that is over.
        settings: The run configuration where it differs from the defaults, as in the query.
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
        """How rows travel in the message and in its reply: the setting `wire.dtype`."""
        return row_dtype_of(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the server checks a client's reply against.

    Attributes:
        client: Name of the client that was asked.
        experiment: Id of the experiment in the message.
        server_round: Round in the message.
        num_classes: Number of classes C.
        feature_dim: Feature width d.
        max_norm: Largest norm of a prototype row.
        shared: Names, dtypes and shapes of shared weights; empty if none may come.
        limits: For each array that a part may send in this round, how long its rows may be; ``None`` for ``max_norm``.
        terms: Names of the loss terms that the reply reports.
        dtype: How rows travel: the setting `wire.dtype`.
        train_counts: Training samples of each class that the client declared; empty if not known.
        frame_dim: Number of coordinates of the common frame; 0 if the run has none.
        faults: Return what is impossible in a reply's arrays, given ``train_counts``; see ``Part.fault``.
        predictors: Names of the predictors that an evaluation may count beside each other; empty if none may come.
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
    frame_dim: int = 0
    faults: tuple[Callable[[Arrays, Sequence[int]], str], ...] = ()
    predictors: tuple[str, ...] = ()


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


def read_broadcast(content: RecordDict, *, num_classes: int, feature_dim: int, frame_dim: int = 0) -> Broadcast:
    """Decode and check a train or evaluate message; the client calls this.

    Args:
        content: The message.
        num_classes: Number of classes C of the federation.
        feature_dim: Feature width d.
        frame_dim: Number of coordinates of the common frame; 0 if the run has none.

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
    sizes = {"C": num_classes, "d": feature_dim, "D": frame_dim, "E": frame_dim + 1}
    sent = {name: read_field(arrays, f, form, sizes) for name, f in DOWN.items() if is_sent(arrays, f)}
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


def reply_config(broadcast: Broadcast, client: str) -> ConfigRecord:
    """Return the record that says which message a reply answers, and for which client."""
    return ConfigRecord(
        {
            "schema": SCHEMA_VERSION,
            "experiment": broadcast.experiment,
            "round": broadcast.server_round,
            "client": client,
        }
    )


def check_reply_config(content: RecordDict, expected: Expected) -> None:
    """Refuse a reply that answers another message, or that holds unknown records."""
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
