"""Group the clients of a simulation into messages, each of which one worker answers."""

import heapq
from collections.abc import Callable, Iterable

# Seconds of work in one message: at most so long that passing it on costs nothing beside it, and towards the end ever
# shorter, so that no worker is left with a long one while the others idle.
_LONGEST, _SHORTEST, _SHARE = 2.0, 0.1, 0.5


def share_out(clients: Iterable[str], cost: Callable[[str], float | None], workers: int) -> list[list[str]]:
    """Put clients of a simulation together that one worker shall answer for with one message.

    Each worker's part is cut into messages of a fixed share of what is left of it. Which message a client is in
    changes nothing but the time.

    Args:
        clients: Names.
        cost: Seconds that a client is going to take; ``None`` if nothing is known, and the client stays alone.
        workers: Processes that answer, >= 1.

    Returns:
        Groups of names in the order in which workers should take them.

    Example:
        >>> share_out("abcd", {"a": 0.1, "b": 0.5, "c": 0.2, "d": 0.3}.get, workers=2)
        [['b'], ['d'], ['c'], ['a']]
    """
    alone: list[list[str]] = []
    known: list[tuple[float, str]] = []
    for client in clients:
        seconds = cost(client)
        if seconds is None:
            alone.append([client])
        else:
            known.append((seconds, client))
    left = sum(seconds for seconds, _ in known) / workers
    room: list[tuple[float, int]] = []  # negative, so that a heap gives the largest
    while left > _SHORTEST or (left > 0 and not room):
        part = min(_LONGEST, max(_SHARE * left, _SHORTEST))
        room += [(-part, len(room) + worker) for worker in range(workers)]
        left -= part
    groups: list[list[str]] = [[] for _ in room]
    heapq.heapify(room)
    for seconds, client in sorted(known, key=lambda item: (-item[0], item[1])):
        most, index = heapq.heappop(room)
        groups[index].append(client)
        heapq.heappush(room, (most + seconds, index))
    return [group for group in [*groups, *alone] if group]
