"""Draw a round's cohort: the clients that train in it.

Draws depend on the seed, the round and the names of the clients only.
"""

import math
from collections.abc import Sequence

from isoproto.client_names import client_order
from isoproto.seeding import numpy_generator


def cohort_size(clients: int, fraction: float, over_sample: float = 0.0) -> int:
    """Return how many clients are asked to train in a round.

    Args:
        clients: Number of clients that are present.
        fraction: Share of these clients whose replies are wanted, in (0, 1]. Rounded to the nearest whole client, but
            at least one.
        over_sample: Extra clients to ask, as a share of those wanted, >= 0; rounded up.

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
        fraction: Share of these clients whose replies are wanted, see ``cohort_size``.
        seed: The run's seed.
        server_round: Number of the round, >= 1.
        over_sample: Extra clients to draw, as a share of those wanted, see ``cohort_size``.

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
    indices = numpy_generator(seed, "cohort", server_round).choice(len(names), size=size, replace=False)
    return [names[i] for i in sorted(indices)]


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
    indices = numpy_generator(seed, "late").choice(len(names), size=wanted, replace=False) if wanted else ()
    return frozenset(names[i] for i in indices)
