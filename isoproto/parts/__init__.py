"""Parts that methods are made of: ``PARTS``. A new part is one file and one line here.

A part holds both halves of what a method adds: what the server sends and how it folds replies, and what a client adds
to its loss and measures after training. The settings of a run say which parts it has, on both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoproto.parts.alignment import Alignment
from isoproto.parts.anchors import AnchorLosses
from isoproto.parts.base import Answer, Arrays, Batch, Field, LossTerm, Measured, Part, PartState, Sent
from isoproto.parts.common import CommonClassifier
from isoproto.parts.distil import Distillation
from isoproto.parts.hyper import HyperPrototypes
from isoproto.parts.logits import ClassLogits
from isoproto.parts.mean import Means
from isoproto.parts.pooled import PooledStatistics
from isoproto.parts.relations import CommonFrame
from isoproto.parts.retrain import Retrain
from isoproto.parts.server_head import ServerHead
from isoproto.parts.state import LastAccuracy, ServerState
from isoproto.parts.trainable import TrainablePrototypes
from isoproto.parts.twin import Twin
from isoproto.parts.view import OwnMeans, View
from isoproto.parts.weights import SharedWeights

if TYPE_CHECKING:
    from isoproto.config import RunConfig

__all__ = [
    "CONSENT",
    "PARTS",
    "PROTOTYPES",
    "TERMS",
    "Answer",
    "Arrays",
    "Batch",
    "Field",
    "LastAccuracy",
    "LossTerm",
    "Measured",
    "OwnMeans",
    "Part",
    "PartState",
    "Sent",
    "ServerState",
    "View",
    "needs_models",
    "parts_of",
    "reported_terms",
]

# The server folds replies in this order, and arrays have this order in messages.
PARTS: tuple[type[Part], ...] = (
    SharedWeights,
    Means,
    CommonFrame,
    TrainablePrototypes,
    Alignment,
    AnchorLosses,
    HyperPrototypes,
    ServerHead,
    Retrain,
    ClassLogits,
    Twin,
    PooledStatistics,
    CommonClassifier,
    Distillation,
)

PROTOTYPES: dict[str, type[Part]] = {name: part for part in PARTS for name in part.makes}
"""The part for each value of the setting `prototypes`, except ``none``."""

TERMS: dict[str, type[Part]] = {name: part for part in PARTS for name in part.aligns}
"""The part for each name in the setting `alignment` that is not a loss in ``LOSSES``."""

CONSENT: tuple[str, ...] = tuple(
    sorted({word for part in PARTS for word in (*part.words, *(f.may_send for f in part.up))} - {""})
)
"""Words that a device's owner may give in `may-send`."""

# In schema 1 every reply reports the terms of these parts, also if the method does not have them.
_ALWAYS: tuple[type[Part], ...] = (Alignment, AnchorLosses)


def parts_of(config: RunConfig) -> tuple[Part, ...]:
    """Return the parts that a run has under its resolved settings, in the order of ``PARTS``.

    Example:
        >>> from isoproto.config import RunConfig
        >>> run = RunConfig(prototypes="mean", alignment="mse", share="none", frame="shared", lambda_=0.0, gamma=1.0)
        >>> [type(part).__name__ for part in parts_of(run)]
        ['Means', 'Alignment']
    """
    return tuple(part for kind in PARTS if (part := kind.of(config)) is not None)


def reported_terms(parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Return the names of the loss terms that clients report, in order."""
    used = {type(part) for part in parts}
    names = [name for kind in PARTS if kind in _ALWAYS or kind in used for name in kind.reports]
    return ("cross-entropy", *names, "total")


def needs_models(config: RunConfig) -> str:
    """Return why every client of a run needs a model of its own, and what to do; empty if a client may have none.

    Args:
        config: The run's settings, resolved.

    Example:
        >>> from isoproto.config import RunConfig
        >>> needs_models(RunConfig(common__map="none"))[:63]
        'the run has no common frame, and without a model a client takes'
    """
    if not config.framed:
        return (
            "the run has no common frame, and without a model a client takes part by that alone. "
            "Set common.map = 'standard', or name a model"
        )
    if weights := sorted({word for part in parts_of(config) for word in part.words}):
        return (
            f"the run averages weights of the clients' models ({', '.join(weights)}; `share = {config.share}`, "
            f"`alignment = {config.alignment}`). Set share = 'none' and an alignment without `twin`, or name a model"
        )
    return ""
