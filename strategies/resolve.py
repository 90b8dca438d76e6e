"""Replace every ``auto`` in the settings by a value, and refuse settings that contradict each other."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isoproto.config import AUTO, MethodSettings, RunConfig
from isoproto.errors import ConfigError
from isoproto.losses import LOSSES, AlignmentLoss, structural
from isoproto.parts import PARTS, TERMS, Part, needs_models
from isoproto.registry import lookup
from isoproto.settings.sections import NO_MODEL

# Settings of the alignment loss. A method's values of them are only for the method's own loss.
_OF_LOSS = ("lambda_", "gamma", "missing")


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
    loss = structural(config.terms)
    return loss is not None and loss.kind == "coordinates"


# If several conflicts apply, the first one is reported.
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


def resolve(config: RunConfig, method: MethodSettings) -> RunConfig:
    """Return the settings with a value in place of every ``auto``.

    Args:
        config: The settings that were asked for.
        method: The strategy's values. They hold whatever the alignment. The exceptions are ``lambda_``, ``gamma`` and
            ``missing``: they are for the strategy's own alignment loss, and another loss brings its values with it.

    Raises:
        ConfigError: If no table has a name in `alignment`, if an alignment is asked for without prototypes to align
            to, or if settings contradict each other.
    """
    config = _with_axes(config, method)
    for term in config.terms:
        _term(term)
    config = _with_defaults(config, method)
    for conflict in CONFLICTS:
        if conflict.applies(config):
            raise ConfigError(conflict.sentence.format(config=config))
    for part in PARTS:
        if sentence := part.conflict(config):
            raise ConfigError(sentence)
    if NO_MODEL in map(str.strip, config.models.split(",")) and (reason := needs_models(config)):
        raise ConfigError(f"`models = {config.models}` leaves clients without a model, but {reason}")
    if config.share in ("base", "model"):
        # Averaging networks that start from different weights destroys them.
        config = dataclasses.replace(config, init="per-architecture")
    return config


def _with_axes(config: RunConfig, method: MethodSettings) -> RunConfig:
    """Replace ``auto`` in ``prototypes``, ``alignment`` and ``share``. Without prototypes, terms that need them go."""
    prototypes = method.prototypes if config.prototypes == AUTO else config.prototypes
    if prototypes == "none":
        if config.alignment != AUTO and any(map(_needs_prototypes, config.terms)):
            raise ConfigError(
                f"`alignment = {config.alignment}` needs global prototypes, and strategy {config.strategy!r} with "
                f"`prototypes = {config.prototypes}` has none; set prototypes = 'mean', or leave the alignment out"
            )
        others = [term for term in method.terms if not _needs_prototypes(term)]
        config = _fill(config, {"alignment": "+".join(others) or "none"})
    return _fill(config, {key: getattr(method, key) for key in ("prototypes", "alignment", "share")})


def _term(name: str) -> AlignmentLoss | type[Part]:
    """Look up a name in `alignment`."""
    known: dict[str, AlignmentLoss | type[Part]] = {**LOSSES, **TERMS}
    return lookup(known, "alignment", name)


def _needs_prototypes(term: str) -> bool:
    found = _term(term)
    return isinstance(found, AlignmentLoss) or found.needs_prototypes


def _with_defaults(config: RunConfig, method: MethodSettings) -> RunConfig:
    """Replace ``auto`` in all other settings: by the value of the method, else of the loss, else by the common one."""
    common = config.frame in (AUTO, "shared")
    loss = structural(config.terms)
    another = loss is not structural(method.terms)
    of_method = {
        field.name: value
        for field in dataclasses.fields(MethodSettings)
        if (value := getattr(method, field.name)) != AUTO and not (another and field.name in _OF_LOSS)
    }
    lambda_, gamma = loss.weights if loss else (0.0, 0.0)
    head = "shared" if _averages_head(config) and common else "prototype"
    chosen = {**_COMMON, "hyper__head": head, "lambda_": lambda_, "gamma": gamma, **of_method}
    if not common:  # noise has no meaning in coordinates that are not known yet
        chosen["hyper__init"] = "prototypes"
    return _fill(config, chosen)


# What `auto` stands for if neither the method nor the loss decides. The declaration of each setting says it.
_COMMON: dict[str, Any] = {
    field.name: rule.auto
    for field in dataclasses.fields(MethodSettings)
    if (rule := field.metadata["rule"]).auto is not None
}


def _fill(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Replace the fields that are ``auto`` by those of ``values``."""
    return dataclasses.replace(config, **{k: v for k, v in values.items() if getattr(config, k) == AUTO})
