"""A Flower grid that gets replies soon after they arrive."""

import collections
import re
import time
from collections.abc import Callable, Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid

from isoproto.engines.progress import Progress
from isoproto.errors import FederationError

# Seconds between checks for replies. Flower's grids sleep 0.1 s (simulation) or 3 s (deployment), and a round of the
# demo takes 2 s. Pauses are short only while the last few replies are missing, because a check takes CPU time from
# clients.
_SHORT_PAUSE, _PAUSE, _LONGEST_PAUSE, _GROWTH, _FEW = 0.015, 0.15, 0.5, 1.05, 2
# The first check comes after this share of the time that the first reply took in the round before.
_EARLY = 0.8
# How Flower's simulation reports that a client's worker died. A client that failed in a living worker reads otherwise.
_DEAD_WORKER = re.compile(
    r"<class 'ray\.exceptions\.(Actor(Died|Unavailable)|NodeDied|OutOfMemory|WorkerCrashed)Error'>"
)


# Unanswered messages per worker of a simulation: enough that no worker waits for its next message.
_IN_FLIGHT = 6


def window_size(workers: int) -> int | None:
    """Return how many messages may be unanswered at a time in a simulation with some workers.

    Ten times a second Flower's simulation compares each node with each unanswered message. With 200 nodes and 40
    messages that took a third of a core from the clients. Real nodes all work at the same time, so they get all
    messages at once.

    Args:
        workers: Number of processes that simulate the clients; 0 if there are none.

    Returns:
        The number of messages, or ``None`` for no limit.

    Example:
        >>> window_size(2), window_size(0)
        (12, None)
    """
    return _IN_FLIGHT * workers or None


class PromptGrid(Grid):
    """Sends messages through another grid, and polls for replies with short, growing pauses.

    If a worker of the simulation dies, the run ends. Ray does not replace the worker, and Flower would give it most of
    the messages, because it fails faster than the living workers work.

    Args:
        grid: The grid that sends the messages.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._window: int | None = None
        self._enough: Callable[[str], int] = lambda kind: 0
        self._first: dict[str, float] = {}  # kind of message -> seconds until the first reply to the last such messages

    def limit(self, *, window: int | None = None, enough: Callable[[str], int] = lambda kind: 0) -> None:
        """Limit the unanswered messages, and the replies that the grid waits for. Without this call there is no limit.

        Args:
            window: Most unanswered messages at a time; ``None`` sends all. See :func:`window_size`.
            enough: Returns, for a kind of message, the number of replies without an error after which the grid stops
                waiting; 0: it waits for all.
        """
        self._window, self._enough = window, enough

    @property
    def more_may_come(self) -> bool:
        """Whether more nodes may connect later: true for real machines, false in a simulation or in this process."""
        return isinstance(self._grid, HttpGrid)

    def set_run(self, run: object) -> None:  # noqa: D102
        self._grid.set_run(run)  # type: ignore[arg-type]

    @property
    def run(self) -> object:  # type: ignore[override]  # noqa: D102
        return self._grid.run

    def create_message(  # noqa: D102
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:  # noqa: D102
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:  # noqa: D102
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:  # noqa: D102
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, and return the replies when all or enough have come, or when the time is over.

        Raises:
            FederationError: If a worker of the simulation died.
        """
        unsent = collections.deque(messages)
        kind = unsent[0].metadata.message_type if unsent else ""
        progress = Progress(kind, len(unsent))
        enough = self._enough(kind) or len(unsent) + 1
        waiting: set[str] = set()
        sent = 0.0
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        replies: list[Message] = []
        pause, checked = _SHORT_PAUSE, False
        while True:
            room = len(unsent) if self._window is None else self._window - len(waiting)
            if unsent and room > 0:
                waiting |= set(self.push_messages([unsent.popleft() for _ in range(min(room, len(unsent)))]))
                # The clock starts here: in one process the messages are answered by now, and nothing is to wait for.
                sent = sent or time.monotonic()
            if not replies:
                time.sleep(max(0.0, min(sent + _EARLY * self._first.get(kind, 0.0), deadline) - time.monotonic()))
            came = list(self.pull_messages(waiting)) if waiting else []
            for reply in came:
                _check_worker(reply)
            if came and not replies:
                # A reply found by the first check may have come long before: the time of the first round has imports.
                self._first[kind] = (time.monotonic() - sent) * (1.0 if checked else 0.5)
            checked = True
            replies += came
            progress.note(len(replies))
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            left = deadline - time.monotonic()
            if not (waiting or unsent) or left <= 0 or sum(not reply.has_error() for reply in replies) >= enough:
                return replies
            if came:
                pause = _SHORT_PAUSE if len(waiting) <= _FEW else _PAUSE
                if unsent:
                    continue
            time.sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)


def _check_worker(reply: Message) -> None:
    if reply.has_error() and _DEAD_WORKER.match(str(reply.error.reason)):
        raise FederationError(
            f"a worker of the simulation died while node {reply.metadata.src_node_id} was at work, most likely for "
            "lack of memory, and Ray does not replace it. Give each client more CPUs (fewer at once), then go on from "
            "the last complete round with `isoproto resume`"
        )
