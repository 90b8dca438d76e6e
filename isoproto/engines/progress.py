"""Say how far a long round is."""

import logging
import time

_log = logging.getLogger("isoproto")

_EVERY_S = 15.0  # seconds between two lines


class Progress:
    """Logs how many replies have come, if a round takes long.

    Args:
        what: What is going on, such as ``"train"``.
        total: Number of replies that are waited for.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._began = self._told = time.monotonic()

    def note(self, done: int) -> None:
        """Log the number of replies that have come, but no more often than every 15 seconds."""
        now = time.monotonic()
        if now - self._told >= _EVERY_S and done < self._total:
            self._told = now
            _log.info("%s: %d of %d replies after %.0f s", self._what, done, self._total, now - self._began)
