"""Who trains in a round, a function of (seed, round) over stable client names; and who trains beside whom."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence

from isoproto.client_names import client_order
from isoproto.seeding import numpy_generator


def cohort_size(clients: int, fraction: float, over_sample: float = 0.0) -> int:
    """Return how many clients a round asks.

    Args:
        clients: How many are present.
        fraction: Share of them whose replies are wanted, in (0, 1]; rounded to the nearest whole client, one at least.
        over_sample: So many more of those wanted, as a share of them, >= 0; rounded up.

    Example:
        >>> cohort_size(10, 0.25), cohort_size(10, 0.25, over_sample=0.5), cohort_size(10, 1.0, over_sample=0.5)
        (3, 5, 10)
    """
    wanted = max(1, math.floor(fraction * clients + 0.5))
    return min(clients, math.ceil(wanted * (1 + over_sample)))


def cohort(
    clients: Sequence[str], fraction: float, *, seed: int, server_round: int, over_sample: float = 0.0
) -> list[str]:
    """Draw the clients that train in a round, uniformly and without replacement.

    Flower's node ids change with every run, so clients are drawn by their stable names, in sorted order:
    neither the order of arrival nor a restart changes the cohort.

    Args:
        clients: Names of the clients that are present.
        fraction: Share of them to draw, see ``cohort_size``.
        seed: The run's seed.
        server_round: The round, >= 1.
        over_sample: Share of those that are drawn besides, likewise.

    Returns:
        The names drawn, sorted.

    Example:
        >>> cohort(["2", "0", "1", "3"], 0.5, seed=7, server_round=1) == cohort(
        ...     ["3", "2", "1", "0"], 0.5, seed=7, server_round=1
        ... )
        True
        >>> cohort(["10", "9"], 1.0, seed=0, server_round=1)
        ['9', '10']
    """
    names = sorted(clients, key=client_order)
    size = cohort_size(len(names), fraction, over_sample)
    drawn = numpy_generator(seed, "cohort", server_round).choice(len(names), size=size, replace=False)
    return [names[i] for i in sorted(drawn)]


def late_clients(clients: Sequence[str], fraction: float, *, seed: int) -> frozenset[str]:
    """Draw the clients that are kept from training at first; one at least is not.

    Args:
        clients: Names of all clients there will be.
        fraction: Share of them to draw, in [0, 1); rounded to the nearest whole client.
        seed: The run's seed.

    Example:
        >>> late = late_clients(["0", "1", "2", "3"], 0.5, seed=7)
        >>> len(late), late == late_clients(["3", "1", "2", "0"], 0.5, seed=7)
        (2, True)
    """
    names = sorted(clients, key=client_order)
    wanted = max(0, min(len(names) - 1, math.floor(fraction * len(names) + 0.5)))
    drawn = numpy_generator(seed, "late").choice(len(names), size=wanted, replace=False) if wanted else ()
    return frozenset(names[i] for i in drawn)


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
