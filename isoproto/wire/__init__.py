"""What travels between server and clients: schema 1. The only package that knows record names and keys.

See ``docs/wire-schema.md``. ``query`` is who a client is, ``rounds`` a round's messages, ``hosted`` several clients in
one message, ``codec`` how each value is coded and checked.
"""

from isoproto.wire.codec import SCHEMA_VERSION, Spec, serialised_bytes, tensor_spec
from isoproto.wire.hosted import address, join, read_failure, read_hosted, split, write_failure
from isoproto.wire.query import (
    ClientInfo,
    Query,
    class_digest,
    read_client_info,
    read_client_infos,
    read_query,
    write_client_info,
    write_query,
)
from isoproto.wire.rounds import (
    Broadcast,
    Evaluation,
    Expected,
    TrainReply,
    payload_bytes,
    read_broadcast,
    read_evaluate_reply,
    read_settings,
    read_train_reply,
    write_broadcast,
    write_evaluate_reply,
    write_train_reply,
)

__all__ = [
    "SCHEMA_VERSION",
    "Broadcast",
    "ClientInfo",
    "Evaluation",
    "Expected",
    "Query",
    "Spec",
    "TrainReply",
    "address",
    "class_digest",
    "join",
    "payload_bytes",
    "read_broadcast",
    "read_client_info",
    "read_client_infos",
    "read_evaluate_reply",
    "read_failure",
    "read_hosted",
    "read_query",
    "read_settings",
    "read_train_reply",
    "serialised_bytes",
    "split",
    "tensor_spec",
    "write_broadcast",
    "write_client_info",
    "write_evaluate_reply",
    "write_failure",
    "write_query",
    "write_train_reply",
]
