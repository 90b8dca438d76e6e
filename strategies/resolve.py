"""Replace every ``auto`` in the settings by a value, and refuse settings that contradict each other."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isoproto.config import AUTO, RunConfig
from isoproto.errors import ConfigError
from isoproto.losses import LOSSES
from isoproto.registry import lookup

# The value of `auto` where the method has no default: the flagship's choice (docs/adr/0006-flagship.md).
_DEFAULTS = {
    "missing": "mask",
    "frame": "shared",
    "relation__shrink": 0.0,
    "hyper__init": "prototypes",
    "hyper__learning_rate": 0.002,
    "hyper__optimizer": "adam",
    "hyper__margin": "none",
    "hyper__form": "normalised",
    "hyper__pcl": 0.2,
    "hyper__pal": 0.2,
}
# Settings of the structural loss. A method's defaults of them are for the method's loss alone.
_OF_LOSS = ("lambda_", "gamma", "missing")


@dataclass(frozen=True, slots=True)
class Point:
    """A method as a point on the three axes."""

    prototypes: str
    alignment: str
    share: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that cannot be used together.

    Attributes:
        applies: Returns whether resolved settings have the conflict.
        sentence: The error text. ``{config.x}`` in it stands for the value of setting ``x``.
    """

    applies: Callable[[RunConfig], bool]
    sentence: str


def _averages_head(config: RunConfig) -> bool:
    return config.share in ("head", "model")


def _uses_averaged_head(config: RunConfig) -> bool:
    return config.prototypes == "hyper" and config.hyper__head == "shared"


def _aligns_coordinates(config: RunConfig) -> bool:
    return bool(config.structural) and LOSSES[config.structural].kind == "coordinates"


# The first one that applies is reported.
CONFLICTS = (
    Conflict(
        lambda c: c.heads != "linear" and _averages_head(c),
        "`share = {config.share}` averages heads, which takes equal linear ones, and `heads = {config.heads}` "
        "deals out others; set heads = 'linear', or share = 'none' or 'base'",
    ),
    Conflict(
        lambda c: c.hyper__retrain != "none" and not _averages_head(c),
        "`hyper.retrain` replaces the averaged classifier; it takes share = 'head' or 'model'",
    ),
    Conflict(
        lambda c: _uses_averaged_head(c) and not _averages_head(c),
        "`hyper.head = shared` is the averaged classifier, and `share = {config.share}` averages none; "
        "set share = 'head' (or 'model'), or hyper.head = 'prototype' or 'server'",
    ),
    Conflict(
        lambda c: _uses_averaged_head(c) and c.frame != "shared",
        "`hyper.head = shared` is a head for the clients' coordinates, and `frame = {config.frame}` takes "
        "gradients in others; set hyper.head = 'prototype' or 'server', or frame = 'shared'",
    ),
    Conflict(
        lambda c: c.anchors == "private" and _aligns_coordinates(c),
        "`anchors = private` leaves no prototypes for `alignment = {config.alignment}` to align to; "
        "set anchors = 'own', or an alignment of relations: gcsa or rcsa",
    ),
    Conflict(
        lambda c: c.frame == "gram" and c.hyper__init == "normal",
        "`hyper.init = normal` is noise in coordinates, and `frame = gram` has none to begin with; "
        "set frame = 'shared', or hyper.init = 'prototypes'",
    ),
)


def resolve(config: RunConfig, point: Point, defaults: Mapping[str, float | str]) -> RunConfig:
    """Return the settings with a value in place of every ``auto``.

    Args:
        config: The settings that were asked for.
        point: The method's place on the three axes.
        defaults: Values of further settings that the method decides, by field name. They hold whatever the
            alignment. The exceptions are ``lambda_``, ``gamma`` and ``missing``: they are for the structural loss of
            ``point``, and another loss brings its values with it.

    Raises:
        ConfigError: If an alignment is asked for without prototypes to align to, or settings contradict each other.
    """
    config = _with_point(config, point)
    config = _with_defaults(config, point, defaults)
    for conflict in CONFLICTS:
        if conflict.applies(config):
            raise ConfigError(conflict.sentence.format(config=config))
    if config.share in ("base", "model"):
        # Averaging networks that start from different weights destroys them.
        config = dataclasses.replace(config, init="per-architecture")
    return config


def _with_point(config: RunConfig, point: Point) -> RunConfig:
    """Replace ``auto`` on the three axes. Without prototypes there is nothing to align to."""
    prototypes = point.prototypes if config.prototypes == AUTO else config.prototypes
    if prototypes == "none":
        if config.alignment not in (AUTO, "none"):
            raise ConfigError(
                f"`alignment = {config.alignment}` needs global prototypes, and strategy {config.strategy!r} with "
                f"`prototypes = {config.prototypes}` has none; set prototypes = 'mean', or leave the alignment out"
            )
        config = dataclasses.replace(config, alignment="none")
    return _fill(config, dataclasses.asdict(point))


def _with_defaults(config: RunConfig, point: Point, defaults: Mapping[str, float | str]) -> RunConfig:
    """Replace ``auto`` off the three axes: by the method's value, else the loss's, else the common one."""
    common = config.frame in (AUTO, "shared")
    head = "shared" if _averages_head(config) and common else "prototype"
    another = config.structural != dataclasses.replace(config, alignment=point.alignment).structural
    of_method = {key: value for key, value in defaults.items() if not (another and key in _OF_LOSS)}
    chosen = {**_DEFAULTS, "hyper__head": head, **_weights(config.structural), **of_method}
    if not common:  # noise has no meaning in coordinates that are found first
        chosen["hyper__init"] = "prototypes"
    return _fill(config, chosen)


def _weights(structural: str) -> dict[str, float]:
    """Return the weights that the structural loss starts from; 0 where there is no such loss."""
    lambda_, gamma = lookup(LOSSES, "alignment", structural).weights if structural else (0.0, 0.0)
    return {"lambda_": lambda_, "gamma": gamma}


def _fill(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Set those fields to ``values`` that are ``auto``."""
    return dataclasses.replace(config, **{k: v for k, v in values.items() if getattr(config, k) == AUTO})
