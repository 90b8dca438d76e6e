"""Group the clients of a simulation into messages, each of which one worker answers."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping

from isoproto.client_names import client_order

# Seconds of work in one message, and the share of the remaining work that a message holds. Most messages are long, so
# that the cost of sending them does not matter. Towards the end they get shorter, so that no worker is busy with a long
# message while the others are idle.
_LONGEST, _SHORTEST, _SHARE = 2.0, 0.1, 0.5


def share_out(clients: Iterable[str], cost: Callable[[str], float | None], workers: int) -> list[list[str]]:
    """Group clients of a simulation: one worker answers for a group with one message.

    Each message holds a fixed share of the work that is left for its worker. The grouping only changes the time that a
    round takes.

    Args:
        clients: Names.
        cost: Estimates the seconds of a client's round. ``None`` means that nothing is known, and the client gets a
            message for itself.
        workers: Number of processes that answer, >= 1.

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


def share_out_to_hosts(
    clients: Mapping[str, int], hosts: Mapping[str, int], cost: Callable[[str], float | None], workers: int
) -> list[tuple[int, list[str]]]:
    """Group clients of a simulation as :func:`share_out` does, and give each group a node.

    Flower's simulation takes messages in the order of the nodes' partitions, not in the order of sending. So the groups
    are given to the nodes in this order, and the workers take the groups in their order.

    Args:
        clients: The clients to group, with their nodes.
        hosts: All clients of the federation, with their nodes.
        cost: As for :func:`share_out`.
        workers: As for :func:`share_out`.

    Returns:
        Pairs of a node and the clients that its message is for; a node may have several.

    Example:
        >>> share_out_to_hosts({"b": 8, "a": 7}, {"b": 8, "a": 7, "c": 9}, {"a": 0.1, "b": 0.5}.get, workers=2)
        [(7, ['b']), (8, ['a'])]
    """
    here = set(clients.values())
    in_order = dict.fromkeys(hosts[client] for client in sorted(hosts, key=client_order))
    nodes = [node for node in in_order if node in here]
    return list(zip(itertools.cycle(nodes), share_out(clients, cost, workers), strict=False))
