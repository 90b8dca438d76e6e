"""Draw the clients that train in a round, and divide them among the workers of a simulation.

Draws depend on the seed, the round and the names of the clients only.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence

from isoproto.runs.metrics import client_order
from isoproto.seeding import numpy_generator


def cohort_size(clients: int, fraction: float, over_sample: float = 0.0) -> int:
    """Return how many clients are asked to train in a round.

    Args:
        clients: Number of clients that are present.
        fraction: Share of these clients whose replies are wanted, in (0, 1]. Rounded to the nearest whole client, but
            at least one.
        over_sample: How many more clients to ask, as a share of the number wanted, >= 0. Rounded up.

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

    Clients are drawn by their names in sorted order, since Flower's node ids change with every run. So neither the
    order of arrival nor a restart changes which clients are drawn.

    Args:
        clients: Names of the clients that are present.
        fraction: Share of these clients whose replies are wanted, see :func:`cohort_size`.
        seed: The run's seed.
        server_round: Number of the round, >= 1.
        over_sample: Share of clients to draw in addition, see :func:`cohort_size`.

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
    """Draw the clients that join the training late. At least one client is not drawn.

    Args:
        clients: Names of all clients of the run.
        fraction: Share of these clients to draw, in [0, 1). Rounded to the nearest whole client.
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


# Seconds of work in one message. The longest is long enough to make the cost of a message negligible. Messages become
# shorter towards the end of a round, so that no worker has a long one left while the others are idle. `_SHARE` is the
# part of a worker's remaining work that its next message gets.
_LONGEST, _SHORTEST, _SHARE = 2.0, 0.1, 0.5


def share_out(clients: Iterable[str], cost: Callable[[str], float | None], workers: int) -> list[list[str]]:
    """Group the clients of a simulation, so that each message gives one worker several clients.

    The work of each worker is cut into messages, and each message gets a fixed share of the work that is left. The
    grouping changes how long a round takes, but no result.

    Args:
        clients: Names of the clients.
        cost: Returns the seconds that a client is expected to take, or ``None`` if unknown. A client of unknown cost
            gets a message of its own.
        workers: Number of worker processes, >= 1.

    Returns:
        Groups of names, in the order in which workers should take them.

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
    room: list[tuple[float, int]] = []  # (-seconds, index); negative, since a heap pops the smallest
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
