"""Return the content of a reply, or raise with the error text of the client that failed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode

from isoproto import wire
from isoproto.errors import WireError

_EXCEPTION = re.compile(r"^<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>$")  # how a SuperNode reports an exception

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class GoodReply(Generic[Reply]):
    """A reply that passed every check.

    Attributes:
        info: The client's answer to the query.
        reply: The decoded reply.
        bytes_up: Size of the reply's content as protobuf writes it.
    """

    info: wire.ClientInfo
    reply: Reply
    bytes_up: int


GoodTrainReply = GoodReply[wire.TrainReply]
GoodEvaluation = GoodReply[wire.Evaluation]


def content(message: Message) -> RecordDict:
    """Return a reply's content.

    Raises:
        WireError: If the node could not answer. The text holds the client's error text.
    """
    if message.has_error():
        if message.error.code == ErrorCode.NODE_UNAVAILABLE:
            raise WireError("its node went away: the SuperLink does not hear from it any more")
        reason = _EXCEPTION.sub(r"\1: \2", one_line(message.error.reason))
        raise WireError(f"the client failed: {reason} (code {message.error.code})")
    return message.content


def parts(message: Message, clients: Sequence[str]) -> list[RecordDict]:
    """Return the content of each client that one message asked, in the order of ``clients``.

    Raises:
        WireError: If the node could not answer, or answered for other clients.
    """
    return list(wire.split(content(message), clients).values())


def success(reply: RecordDict) -> RecordDict:
    """Return a client's reply if it holds no failure.

    Raises:
        WireError: If it holds one. The text holds the client's error text.
    """
    if reason := wire.read_failure(reply):
        raise WireError(f"the client failed: {one_line(reason)}")
    return reply


def one_line(reason: object) -> str:
    r"""Return a text that another process sent as one printable line of at most 1,000 characters.

    Example:
        >>> one_line("no   such\nfile")
        'no such file'
    """
    return " ".join("".join(c if c.isprintable() else " " for c in str(reason)).split())[:1000]
