"""Put several clients of a simulation into one message, which one worker answers for all of them."""

from collections.abc import Mapping, Sequence

from flwr.app import ConfigRecord, RecordDict

from isoproto.errors import WireError
from isoproto.wire.codec import CONFIG, TEXT_LIMIT, record_of, shown

_FAILURE, _HOSTED = "failure", "hosted"


def address(content: RecordDict, clients: Sequence[str]) -> RecordDict:
    """Return a train or evaluate message with the clients that a worker of the simulation answers for."""
    config = ConfigRecord({**record_of(content, CONFIG, ConfigRecord), _HOSTED: [int(client) for client in clients]})
    return RecordDict({**content, CONFIG: config})


def join(parts: Mapping[str, RecordDict]) -> RecordDict:
    """Return one reply that holds the replies of several clients."""
    return RecordDict({f"{client}/{name}": r for client, part in parts.items() for name, r in part.items()})


def write_failure(error: BaseException) -> RecordDict:
    """Encode a client's failure, which takes the place of its reply among those of other clients."""
    return RecordDict({_FAILURE: ConfigRecord({"reason": f"{type(error).__name__}: {error}"[:TEXT_LIMIT]})})


def read_hosted(content: RecordDict) -> list[int]:
    """Return the partitions that a message wants an answer for; empty if the node answers for itself.

    Raises:
        WireError: If they are not whole numbers >= 0.
    """
    hosted = record_of(content, CONFIG, ConfigRecord).get(_HOSTED, [])
    if not isinstance(hosted, list) or not all(type(p) is int and p >= 0 for p in hosted):
        raise WireError(f"config '{_HOSTED}': expected partition ids, got {shown(hosted)}")
    return list(dict.fromkeys(map(int, hosted)))


def split(content: RecordDict, clients: Sequence[str]) -> dict[str, RecordDict]:
    """Return the replies of several clients that :func:`join` put into one. A missing reply is empty.

    Raises:
        WireError: If it holds the reply of another client.
    """
    parts: dict[str, RecordDict] = {client: RecordDict() for client in clients}
    for name, record in content.items():
        client, _, inner = name.partition("/")
        if client not in parts:
            raise WireError(f"unexpected records {name!r:.200}; asked were {list(clients)!r:.200}")
        parts[client][inner] = record
    return parts


def read_failure(part: RecordDict) -> str:
    """Return the reason of a client's failure; empty if it did not fail."""
    record = part.get(_FAILURE)
    return str(record.get("reason", "no reason given")) if isinstance(record, ConfigRecord) else ""
