"""Who holds shares of whom: some others of each client, drawn from a seed, and the client itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from isoproto.secure.stream import key_stream

Positions = npt.NDArray[np.int64]


def holders(clients: int, degree: int, seed: bytes) -> Positions:
    """Return the holders of each client, ``[n, h]``, int64, ascending; the client is one of them.

    Clients stand in a circle in an order drawn from ``seed``. Each is joined to the ``degree / 2`` on either side. With
    few clients everybody is joined to everybody. Who holds shares of whom is mutual.

    Source: Bell et al., CCS 2020, section 3 (a random circular graph).

    Args:
        clients: Number of clients n.
        degree: Number of others, even.
        seed: 32 bytes.

    Example:
        >>> holders(3, degree=40, seed=bytes(32)).tolist()
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
        >>> holders(100, degree=10, seed=bytes(32)).shape
        (100, 11)
    """
    if degree + 1 >= clients:
        return np.tile(np.arange(clients), (clients, 1))
    order = np.argsort(key_stream(seed, clients), kind="stable")
    steps = np.arange(-(degree // 2), degree // 2 + 1)
    circle: Positions = order[(np.arange(clients)[:, None] + steps) % clients]
    found = np.empty_like(circle)
    found[order] = np.sort(circle, axis=1)
    return found


def smallest_group(joined: Positions, alive: npt.NDArray[np.bool_]) -> int:
    """Return the size of the smallest group of living clients that are joined through each other; 0 if none lives.

    The masks of such a group cancel among themselves, so the server learns the sum of each group.

    Example:
        >>> circle = np.array([[0, 1, 3], [0, 1, 2], [1, 2, 3], [0, 2, 3]])
        >>> smallest_group(circle, np.array([True, False, True, False]))
        1
        >>> smallest_group(circle, np.array([True, True, True, False]))
        3
    """
    left = set(np.flatnonzero(alive).tolist())
    sizes = []
    while left:
        edge = [left.pop()]
        size = 0
        while edge:
            size += 1
            found = left.intersection(joined[edge.pop()].tolist())
            left -= found
            edge.extend(found)
        sizes.append(size)
    return min(sizes, default=0)
