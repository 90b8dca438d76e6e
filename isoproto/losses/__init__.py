"""Losses that align a client's features with global prototypes. The table ``LOSSES`` holds them by name.

``mse`` and ``cosine`` compare coordinates, so they need feature spaces that mean the same on every client. ``gcsa``
and ``rcsa`` compare relations between classes only. To add a loss, write a file with an ``AlignmentLoss`` and put it
into the table; ``isoproto.losses.base`` shows how.
"""

from collections.abc import Iterable

from isoproto.losses.base import AlignmentLoss, BatchTarget, alignment_terms, batch_targets
from isoproto.losses.cosine import COSINE
from isoproto.losses.gcsa import GCSA
from isoproto.losses.mse import MSE
from isoproto.losses.procrustes import procrustes_split
from isoproto.losses.rcsa import RCSA

LOSSES: dict[str, AlignmentLoss] = {"mse": MSE, "cosine": COSINE, "gcsa": GCSA, "rcsa": RCSA}

__all__ = [
    "LOSSES",
    "AlignmentLoss",
    "BatchTarget",
    "alignment_terms",
    "batch_targets",
    "procrustes_split",
    "structural",
]


def structural(terms: Iterable[str]) -> AlignmentLoss | None:
    """Return the alignment loss among the terms of the setting `alignment`, of which there is one at most."""
    return next((LOSSES[term] for term in terms if term in LOSSES), None)
