"""Clients in worker processes on all cores of this machine, without Flower's processes and without Ray.

A client's answer depends on its message and its own files alone. So it is the same, to the last bit, whichever process
gives it.
"""

import concurrent.futures
import contextlib
import logging
import logging.handlers
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Self

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from isoproto.engines.in_process import InProcessGrid, task_identity, through_the_wire
from isoproto.engines.progress import Progress
from isoproto.errors import FederationError

_log = logging.getLogger("isoproto")

_PATIENCE_S = 5.0


class WorkerGrid(InProcessGrid):
    """An in-process grid whose nodes answer in several worker processes. Use it as a context manager.

    Args:
        make_app: Makes the ClientApp of all nodes in each process. It is pickled, so it must be a function of a module.
        clients: Number of nodes.
        jobs: Number of worker processes.
        patience: Seconds of work that this process does by itself first. Workers take a few seconds to start, which a
            short run would not get back.
    """

    def __init__(
        self,
        make_app: Callable[[], ClientApp],
        clients: int,
        jobs: int,
        patience: float = 0.0,
    ) -> None:
        super().__init__(make_app(), clients)
        self._patience = patience
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads half
        self._records: multiprocessing.Queue[Any] = context.Queue()
        self._listener = logging.handlers.QueueListener(self._records, _Once())
        self._pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _begin, (make_app, clients, self._records))

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind:  # nobody waits for what the workers are doing
            for child in multiprocessing.active_children():
                child.terminate()
        self._pool.shutdown(cancel_futures=True)
        self._listener.stop()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer all messages, most of them in the workers, and keep the replies until they are pulled.

        Raises:
            FederationError: If a worker died.
        """
        asked = list(messages)
        ids = [self._number(message) for message in asked]
        here = 0
        while here < len(asked) and self._patience > 0:
            began = time.monotonic()
            self._replies[ids[here]] = self.answer(through_the_wire(asked[here]))
            self._patience -= time.monotonic() - began
            here += 1
        waiting = {
            self._pool.submit(_answer, message_to_proto(message).SerializeToString()): number
            for message, number in zip(asked[here:], ids[here:], strict=True)
        }
        progress = Progress(asked[0].metadata.message_type if asked else "", len(waiting))
        try:
            for done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
                self._replies[waiting[future]] = message_from_proto(ProtoMessage.FromString(future.result()))
                progress.note(done)
        except concurrent.futures.BrokenExecutor as err:
            raise FederationError(
                "a worker process died, most likely for want of memory; use fewer (`--jobs`), or smaller models"
            ) from err
        return ids


# In the worker

_grid: InProcessGrid


def _begin(make_app: Callable[[], ClientApp], clients: int, records: "multiprocessing.Queue[Any]") -> None:
    """Prepare a worker process: its clients, its log, and its end."""
    global _grid
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes, and the parent ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _log.handlers, _log.propagate = [logging.handlers.QueueHandler(records)], False
    _log.setLevel(logging.INFO)
    contextlib.ExitStack().enter_context(task_identity())
    _grid = InProcessGrid(make_app(), clients)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)  # it was killed; a client's files are written atomically


def _answer(message: bytes) -> bytes:
    reply = _grid.answer(message_from_proto(ProtoMessage.FromString(message)))
    written: bytes = message_to_proto(reply).SerializeToString()
    return written


class _Once(logging.Handler):
    """Hands the workers' log on, each text once: every worker has the same to say of the data set."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._seen:
            self._seen.add(text)
            _log.handle(record)


@contextlib.contextmanager
def grid_of(make_app: Callable[[], ClientApp], clients: int, jobs: int, cores: int) -> Iterator[InProcessGrid]:
    """Yield a grid that answers in this process or in workers.

    Args:
        make_app: See :class:`WorkerGrid`.
        clients: Number of clients.
        jobs: Number of worker processes; 1 for none, 0 for one on each core once the run turns out to be long.
        cores: Number of cores to use.
    """
    number = min(clients, jobs or cores)
    if number < 2:
        yield InProcessGrid(make_app(), clients)
        return
    with WorkerGrid(make_app, clients, number, 0.0 if jobs else _PATIENCE_S) as grid:
        yield grid
