"""A federation in one process: the real ServerApp and ClientApp, without SuperLink and Ray.

Every message passes through Flower's serialisation in both directions, so a run has the same result as under
``flwr run``. It saves the 12 to 25 seconds that Flower and Ray need to start.
"""

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from isoproto.config import Scalar
from isoproto.engines.host import Host
from isoproto.engines.progress import Progress
from isoproto.errors import IsoprotoError

_FIRST_NODE = 10_000  # far from the partition ids, so that code that confuses the two fails


def in_process_host() -> Host:
    """Return the host of the clients of an in-process grid: simulated, each of its nodes one client."""
    return Host(simulated=True)


class InProcessGrid(Grid):
    """A grid that calls the ClientApp for each message, one after the other.

    Args:
        client_app: The ClientApp of all nodes, ``make_app(in_process_host)``.
        clients: Number of nodes.
        node_config: Further settings of every node, besides its partition.
    """

    def __init__(self, client_app: ClientApp, clients: int, node_config: Mapping[str, Scalar] | None = None) -> None:
        self._app = client_app
        self._contexts = {
            _FIRST_NODE + i: Context(
                run_id=1,
                node_id=_FIRST_NODE + i,
                node_config={"partition-id": i, "num-partitions": clients, **(node_config or {})},
                state=RecordDict(),
                run_config={},
            )
            for i in range(clients)
        }
        self._replies: dict[str, Message] = {}
        self._sent = 0

    def set_run(self, run: Run) -> None:  # noqa: D102
        raise NotImplementedError("an in-process grid has one run")

    @property
    def run(self) -> Run:  # noqa: D102
        raise NotImplementedError("an in-process grid has no run record")

    def create_message(  # noqa: D102
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:  # noqa: D102
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer each message at once, and keep the replies until they are pulled."""
        waiting = list(messages)
        progress = Progress(waiting[0].metadata.message_type if waiting else "", len(waiting))
        ids = []
        for message in waiting:
            ids.append(self._number(message))
            self._replies[ids[-1]] = self.answer(through_the_wire(message))
            progress.note(len(ids))
        return ids

    def _number(self, message: Message) -> str:
        """Give a message its id."""
        self._sent += 1
        message.metadata.__dict__["_message_id"] = f"message-{self._sent}"
        return message.metadata.message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to some messages. Each reply is returned once."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Answer each message, and return the replies."""
        return self.pull_messages(self.push_messages(messages))

    def answer(self, message: Message) -> Message:
        """Return one node's reply. If the ClientApp raises, that is an error reply, as in Flower."""
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as err:
            reason = f"{type(err).__name__}: {err}"
            if not isinstance(err, IsoprotoError):  # those say themselves where to look
                last = traceback.extract_tb(err.__traceback__)[-1]
                reason += f" ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        return through_the_wire(reply)


@contextlib.contextmanager
def task_identity() -> Iterator[None]:
    """Give this process the identity without which Flower makes no messages."""
    before: dict[str, Any] = {name: getattr(TaskIdentity, f"_{name}") for name in ("task_id", "run_id", "node_id")}
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, f"_{name}", value)


def through_the_wire(message: Message) -> Message:
    """Return a message as its receiver gets it."""
    return message_from_proto(message_to_proto(message))
