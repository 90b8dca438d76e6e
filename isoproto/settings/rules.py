"""Declare a setting: its default, its allowed values, and its description."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

Scalar = bool | int | float | str
AUTO = "auto"
"""A setting with this value is decided by the strategy. After ``strategies.resolve`` only ``device`` may have it, since
every machine decides that for itself."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed values and the description of a setting.

    Attributes:
        doc: What the setting does, for people.
        choices: The allowed values; empty if other values are allowed.
        low: Smallest allowed number.
        high: Largest allowed number.
        above: Whether ``low`` itself is not allowed.
        auto: What ``auto`` stands for where neither the strategy nor the alignment loss decides; ``None`` if one does.
    """

    doc: str
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    auto: Scalar | None = None

    def problem(self, key: str, value: Scalar) -> str | None:
        """Return the error text for a value of the right type; ``None`` if the value is allowed."""
        if self.choices:
            if value in self.choices:
                return None
            return f"`{key}` must be one of {', '.join(map(repr, self.choices))}, got {value!r}"
        if isinstance(value, str):
            return None
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"`{key}` must fit into 64 bits, got {value!r}"
        if math.isfinite(value) and self.low <= value <= self.high and not (self.above and value == self.low):
            return None
        return f"`{key}` must be {self.wanted()}, got {value!r}"

    def wanted(self) -> str:
        """Return the choices or the range in words."""
        if self.choices:
            return ", ".join(map(repr, self.choices))
        low = f"{'>' if self.above else '>='} {self.low:g}" if self.low > -math.inf else ""
        high = f"<= {self.high:g}" if self.high < math.inf else ""
        return " and ".join(part for part in (low, high, "finite") if part)


def one_of(default: str, *choices: str, doc: str = "", auto: str | None = None) -> Any:  # noqa: ANN401 - see number
    """Declare a setting that is one of several words."""
    return dataclasses.field(default=default, metadata={"rule": Rule(doc, choices, auto=auto)})


def number(
    default: Scalar,
    low: float,
    high: float = math.inf,
    *,
    doc: str = "",
    above: bool = False,
    auto: float | None = None,
) -> Any:  # noqa: ANN401 - a field's declaration has the type of its value
    """Declare a setting that is a number from ``low`` to ``high``.

    If the default is ``AUTO``, the word ``auto`` is allowed too. The field still has the type of a number, because only
    ``strategies.resolve`` sees the word.
    """
    return dataclasses.field(default=default, metadata={"rule": Rule(doc, (), low, high, above, auto)})


def free(default: Scalar, *, doc: str, auto: str | None = None) -> Any:  # noqa: ANN401 - see number
    """Declare a setting that may be any text, or true or false."""
    return dataclasses.field(default=default, metadata={"rule": Rule(doc, auto=auto)})
