"""Who trains in a round: a function of (seed, round) over stable client names."""

import math
from collections.abc import Sequence

from isoproto.metrics import client_order
from isoproto.seeding import numpy_generator


def cohort(clients: Sequence[str], fraction: float, *, seed: int, server_round: int, minimum: int = 1) -> list[str]:
    """Draw the clients that train in a round, uniformly and without replacement.

    Flower's node ids change with every run, so clients are drawn by their stable names, in sorted order:
    neither the order of arrival nor a restart changes the cohort.

    Args:
        clients: Names of the clients that are present.
        fraction: Share of them to draw, in (0, 1]; rounded to the nearest whole client.
        seed: The run's seed.
        server_round: The round, >= 1.
        minimum: Draw at least so many where there are so many.

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
    wanted = min(len(names), max(minimum, math.floor(fraction * len(names) + 0.5)))
    drawn = numpy_generator(seed, "cohort", server_round).choice(len(names), size=wanted, replace=False)
    return [names[i] for i in sorted(drawn)]
