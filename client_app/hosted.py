"""Answer for several clients of a simulation in one worker, one client after the other.

A second thread writes a client's model while the worker goes on with the next client. The replies are sent when all
models are on the disk. If a client fails, the others still answer.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from flwr.app import RecordDict

from client_app.answers import Reply
from client_app.batched import MOST_TOGETHER
from client_app.client import Client
from client_app.introduction import introduce
from client_app.local_round import Job, RoundSteps, resume, train_jobs
from isoproto import wire
from isoproto.errors import ConfigError

_log = logging.getLogger("isoproto")

# The most clients of one architecture that a worker keeps in memory until they train together.
_MOST_WAITING = 2 * MOST_TOGETHER

Work = Callable[[Client, wire.Broadcast], Reply]
WorkInSteps = Callable[[Client, wire.Broadcast], RoundSteps]


def as_partition(node: Mapping[str, Any], partition: int, clients: int) -> dict[str, Any]:
    """Return the configuration that a node would have as another client of a simulation."""
    return {**node, "partition-id": partition, "num-partitions": clients or node.get("num-partitions", 0)}


def hosted_partitions(node: Mapping[str, Any], clients: int) -> range:
    """Return the partitions that a node answers for when there are fewer nodes than clients.

    Raises:
        ConfigError: If there are more nodes than clients, and this node has none.
    """
    partitions = range(int(node["partition-id"]), clients, int(node["num-partitions"]))
    if not partitions:
        raise ConfigError(
            f"`clients = {clients}` leaves none for node {node['partition-id']} of {node['num-partitions']}; "
            f"start at most {clients} nodes, or leave `clients` out: one for each node"
        )
    return partitions


def introduce_all(partitions: Sequence[int], open_client: Callable[[int], Client]) -> dict[str, RecordDict]:
    """Collect what the server has to know of each of several clients before round 1.

    Args:
        partitions: The clients, by partition.
        open_client: Returns the client of a partition.

    Returns:
        By the client's name: what the client has, or why it failed.
    """
    parts: dict[str, RecordDict] = {}
    for partition in partitions:
        with _failure_of(parts, str(partition)):
            client = open_client(partition)
            parts[client.name] = wire.write_client_info(introduce(client))
    return parts


def answer_for_all(
    partitions: Sequence[int],
    open_client: Callable[[int], tuple[Client, wire.Broadcast]],
    work: Work,
    steps: WorkInSteps | None,
) -> dict[str, RecordDict]:
    """Let several clients work on one message.

    Args:
        partitions: The clients, by partition.
        open_client: Returns the client of a partition, and what the server sent to it.
        work: Runs one client and returns its reply.
        steps: Does the same as a generator, for clients that train together; ``None`` if the message asks for an
            evaluation.

    Returns:
        By the client's name: its reply, or why it failed.
    """
    with ThreadPoolExecutor(1) as disk:
        replies = _Replies(disk)
        for partition in partitions:
            with replies.failure_of(str(partition)):
                client, broadcast = open_client(partition)
                if steps is not None:
                    replies.begin(client, steps(client, broadcast))
                else:
                    replies.keep(client.name, work(client, broadcast))
        replies.train_all()
    return replies.parts()


class _Replies:
    """Collects the replies of several clients, and lets clients that train together wait for each other.

    Args:
        disk: The thread that writes models.
    """

    def __init__(self, disk: ThreadPoolExecutor) -> None:
        self._disk = disk
        self._parts: dict[str, RecordDict] = {}
        self._writes: dict[str, Future[None]] = {}
        self._waiting: dict[str, list[tuple[str, RoundSteps, Job]]] = {}

    def failure_of(self, *names: str) -> contextlib.AbstractContextManager[None]:
        """Catch an exception in the block, and record it as the failure of some clients."""
        return _failure_of(self._parts, *names)

    def keep(self, name: str, reply: Reply) -> None:
        """Keep a client's reply, and begin to write its model."""
        self._parts[name] = reply.content
        self._writes[name] = self._disk.submit(reply.save)

    def begin(self, client: Client, steps: RoundSteps) -> None:
        """Run a client's round. If it trains with others, stop before that and wait for more of its architecture."""
        try:
            job = next(steps)
        except StopIteration as done:  # it has trained alone
            self.keep(client.name, done.value)
            return
        waiting = self._waiting.setdefault(client.architecture, [])
        waiting.append((client.name, steps, job))
        if len(waiting) == _MOST_WAITING:
            self._train(client.architecture)

    def train_all(self) -> None:
        """Train all clients that are waiting, and finish their rounds."""
        for architecture in list(self._waiting):
            self._train(architecture)

    def _train(self, architecture: str) -> None:
        waiting = self._waiting.pop(architecture)
        with self.failure_of(*(name for name, _, _ in waiting)):
            trained = train_jobs([job for _, _, job in waiting])
            for (name, steps, _), result in zip(waiting, trained, strict=True):
                with self.failure_of(name):
                    self.keep(name, resume(steps, result))

    def parts(self) -> dict[str, RecordDict]:
        """Return each client's reply once its model is on the disk."""
        for name, write in self._writes.items():
            with self.failure_of(name):
                write.result()
        return self._parts


@contextlib.contextmanager
def _failure_of(parts: dict[str, RecordDict], *names: str) -> Iterator[None]:
    """Catch an exception in the block, and put it in place of the replies of some clients."""
    try:
        yield
    except Exception as err:
        for name in names:
            _log.error("client %s failed", name, exc_info=err)
            parts[name] = wire.write_failure(err)
