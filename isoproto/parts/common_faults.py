"""What no honest client can send of the common frame: each check returns a sentence, or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from isoproto.common.own import MOST_LOSS
from isoproto.parts.base import Arrays

# Bytes and rounding may make a row a little longer than it was.
_ROUNDING = 1.02


class Bounds(NamedTuple):
    """What the settings say of a reply.

    Attributes:
        clip: Largest length of a sample in the frame.
        rank: Directions of the scatter that travel; 0 for all.
        temperatures: Number of temperatures that losses are reported for.
        holdout: Part of its samples that a client holds out.
    """

    clip: float
    rank: int
    temperatures: int
    holdout: float

    @property
    def longest(self) -> float:
        """Largest length of a sample after it has travelled."""
        return self.clip * _ROUNDING

    def most_held(self, declared: Sequence[int]) -> float:
        """Return how many samples a client can hold out of those that it declared; none are declared: any number."""
        return math.floor(self.holdout * sum(declared)) + 1 if declared else math.inf


def fault(arrays: Arrays, declared: Sequence[int], bounds: Bounds) -> str:
    """Return why a reply's arrays are impossible; empty if they are possible.

    Args:
        arrays: The arrays of the reply. Groups are complete, and all numbers are finite.
        declared: Training samples of each class that the client declared; empty if not known.
        bounds: What the settings say.

    Example:
        >>> bounds = Bounds(clip=4.0, rank=0, temperatures=1, holdout=0.1)
        >>> fault({"common-gradient": torch.full((1, 2), 99.0)}, [5], bounds)
        "array 'common-gradient': norm 140, that of 5 samples is at most 29.7"
    """
    found = ""
    if "common-block" in arrays:
        found = _ids_fault(arrays, declared) or _sums_fault(arrays, declared, bounds) or _scatter_fault(arrays, bounds)
    if "common-held" in arrays:
        found = found or _held_fault(arrays, declared, bounds)
    if "common-gradient" in arrays:
        found = found or _gradient_fault(arrays["common-gradient"], declared, bounds)
    return found


def _ids_fault(arrays: Arrays, declared: Sequence[int]) -> str:
    kind, ids = int(arrays["common-block"][1]), arrays["common-ids"].long()
    if kind not in (0, 1):
        return f"array 'common-block': expected kind 0 (training samples) or 1 (held out), got {kind}"
    lengths = {len(arrays[f"common-{name}"]) for name in ("ids", "counts", "sums")}
    if lengths != {len(ids)} or not len(ids):
        return (
            f"array 'common-ids': {len(ids)} classes with {len(arrays['common-counts'])} counts and "
            f"{len(arrays['common-sums'])} sums; expected one of each for at least one class"
        )
    if bool((ids.diff() <= 0).any()) or int(ids.min()) < 0:
        return f"array 'common-ids': expected strictly increasing ids, got {ids.tolist()!r:.200}"
    if declared and int(ids.max()) >= len(declared):
        return f"array 'common-ids': expected 0..{len(declared) - 1}, got {ids.tolist()!r:.200}"
    return ""


def _sums_fault(arrays: Arrays, declared: Sequence[int], bounds: Bounds) -> str:
    ids, counts = arrays["common-ids"].long(), arrays["common-counts"]
    if int(counts.min()) < 1 or (declared and bool((counts > torch.tensor(declared)[ids]).any())):
        return f"array 'common-counts': {counts.tolist()!r:.200} samples, the client declared {declared!r:.200}"
    if int(arrays["common-block"][1]) == 1 and (held := float(counts.double().sum())) > bounds.most_held(declared):
        return (
            f"array 'common-counts': {held:g} samples held out of {sum(declared)}, "
            f"`common.holdout = {bounds.holdout:g}`"
        )
    if bool((too_long := arrays["common-sums"].double().norm(dim=1) > bounds.longest * counts).any()):
        worst = int(too_long.nonzero()[0])
        return (
            f"array 'common-sums': class {int(ids[worst])} is longer than {int(counts[worst])} samples of length "
            f"{bounds.clip:.3g} (`common.clip`) can be"
        )
    return ""


def _scatter_fault(arrays: Arrays, bounds: Bounds) -> str:
    factor, floor = arrays["common-factor"].double(), float(arrays["common-floor"])
    width = factor.shape[1]
    most_rows = min(bounds.rank or width, width)
    if len(factor) > most_rows:
        return f"array 'common-factor': {len(factor)} directions, at most {most_rows} (`common.rank`) are sent"
    trace = float(factor.square().sum()) + floor * width
    most = bounds.longest**2 * float(arrays["common-counts"].double().sum())
    if floor < 0:
        return f"array 'common-floor': expected a number >= 0, got {floor:.3g}"
    if not trace <= most:
        return f"array 'common-factor': the scatter is {trace:.3g}, that of these samples is at most {most:.3g}"
    return ""


def _held_fault(arrays: Arrays, declared: Sequence[int], bounds: Bounds) -> str:
    held, wrong, losses = int(arrays["common-held"]), arrays["common-mixed"], arrays["common-losses"]
    if not 1 <= held <= bounds.most_held(declared):
        return f"array 'common-held': {held} samples held out, the client declared {sum(declared)} in all"
    if int(wrong.min()) < 0 or int(wrong.max()) > held:
        return f"array 'common-mixed': {int(wrong.min())} to {int(wrong.max())} errors of {held} samples"
    if losses.shape[1] != bounds.temperatures:
        return f"array 'common-losses': expected {bounds.temperatures} temperatures, got {losses.shape[1]}"
    if float(losses.min()) < 0 or float(losses.max()) > MOST_LOSS * held * 1.001:
        return (
            f"array 'common-losses': {float(losses.min()):.3g} to {float(losses.max()):.3g}, that of {held} samples "
            f"is from 0 to {MOST_LOSS * held:g}"
        )
    return ""


def _gradient_fault(gradient: Tensor, declared: Sequence[int], bounds: Bounds) -> str:
    samples = sum(declared) if declared else math.inf
    longest, most = float(gradient.double().norm()), math.sqrt(2 * (bounds.longest**2 + 1)) * samples
    if not longest <= most:
        return f"array 'common-gradient': norm {longest:.3g}, that of {samples} samples is at most {most:.3g}"
    return ""
