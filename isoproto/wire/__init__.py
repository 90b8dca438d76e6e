"""Write and read the messages between server and clients: schema 1, see ``docs/wire-schema.md``.

No other package knows the names of records and keys. ``query`` asks a node which clients it has. ``broadcast``,
``train_reply`` and ``evaluation`` are the messages of a round. ``hosted`` puts several clients into one message.
``codec`` codes and checks single values.
"""

from isoproto.runs.added import PREDICTORS
from isoproto.wire.broadcast import Broadcast, Expected, read_broadcast, read_settings, write_broadcast
from isoproto.wire.codec import SCHEMA_VERSION, Spec, serialised_bytes, tensor_spec
from isoproto.wire.evaluation import Evaluation, read_evaluate_reply, write_evaluate_reply
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
from isoproto.wire.train_reply import TrainReply, payload_bytes, read_train_reply, write_train_reply

__all__ = [
    "PREDICTORS",
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
