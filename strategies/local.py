"""Every client on its own: the control that each method is measured against."""

from strategies.base import Point, PrototypeStrategy


class Local(PrototypeStrategy):
    """Cross-entropy alone; nothing is exchanged but accuracy.

    The server sends settings only, and ignores the class means that come back. Models, batches and
    evaluation are those of the other strategies under the same seed, so differences are paired.
    """

    point = Point(prototypes="none", alignment="none", share="none")
