"""Remember which nodes and clients cannot take part, and when a refused node is asked again."""

import collections
import time
from collections.abc import Collection, Sequence

_MOST_NAMES = 9  # most names in one line
_ASK_AGAIN_S = 60.0  # a refused node is asked again after this time, then after pauses that double
_now = time.monotonic


class Refusals:
    """Nodes and clients that cannot take part, each with its reason.

    The owner of a node may repair what was wrong with it. A refused node is asked again when it went away and came
    back. It may also restart between two checks, and then it is not seen to go away. So every refused node is asked
    again after a pause, which doubles each time.
    """

    def __init__(self) -> None:
        self._reasons: dict[tuple[int, str], str] = {}  # (node, one of its clients, or empty for the whole node)
        self._again: dict[int, tuple[float, float]] = {}  # node -> (when it is asked again, pause after that)

    def __len__(self) -> int:
        return len(self._reasons)

    @property
    def nodes(self) -> set[int]:
        """Nodes that are refused, or that have a refused client."""
        return {node for node, _ in self._reasons}

    def add(self, node: int, reason: str, client: str = "") -> None:
        """Refuse a node, or one of its clients."""
        self._reasons[node, client] = reason

    def forget(self, present: Collection[int], hosts: Collection[int]) -> None:
        """Drop nodes that went away, and nodes that are due to be asked again.

        Args:
            present: Nodes that are connected.
            hosts: Nodes that take part.
        """
        self._again = {node: times for node, times in self._again.items() if node in present and node not in hosts}
        due = {node for node, (when, _) in self._again.items() if when <= _now()}
        self._reasons = {
            (node, client): reason
            for (node, client), reason in self._reasons.items()
            if node in present and node not in due
        }

    def answered(self, node: int) -> None:
        """Set when a node that has just answered is asked again, in case it is refused."""
        _, pause = self._again.get(node, (0.0, _ASK_AGAIN_S))
        self._again[node] = (_now() + pause, 2 * pause)

    def reasons(self) -> str:
        """Return the most frequent reasons, as text."""
        return most_frequent(collections.Counter(self._reasons.values()))

    def names(self) -> str:
        """Return the refused nodes and clients as the end of a sentence; empty if there are none."""
        names = sorted(refused_name(node, client) for node, client in self._reasons)
        return f"; refused: {some_of(names)}" if names else ""


def refused_name(node: int, client: str) -> str:
    """Return how a text names a node, or one of its clients.

    Example:
        >>> refused_name(7, ""), refused_name(7, "a")
        ('node 7', 'client a of node 7')
    """
    return f"client {client} of node {node}" if client else f"node {node}"


def some_of(names: Sequence[str]) -> str:
    """Return names in one line, the first nine and how many more there are.

    Example:
        >>> some_of(["a", "b"]), some_of([str(i) for i in range(12)])
        ('a, b', '0, 1, 2, 3, 4, 5, 6, 7, 8 and 3 more')
    """
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def most_frequent(reasons: "collections.Counter[str]") -> str:
    """Return the three most frequent reasons with how often they came.

    Example:
        >>> most_frequent(collections.Counter(["no reply", "too large", "no reply"]))
        '2 x no reply; 1 x too large'
    """
    return "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3) if count)
