"""Look up a name in one of the project's tables, with the same error text for all tables."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from isoproto.errors import ConfigError

T = TypeVar("T")


def lookup(table: Mapping[str, T], key: str, name: str) -> T:
    """Return ``table[name]``; if the name is unknown, raise an error that lists the known names.

    Args:
        table: A registry such as ``STRATEGIES`` or ``LOSSES``.
        key: The setting that gave the name, for the error text.
        name: The name to look up.

    Raises:
        ConfigError: If the table has no such name.

    Example:
        >>> lookup({"gcsa": 1, "rcsa": 2}, "alignment", "rcsa")
        2
        >>> lookup({"gcsa": 1, "mse": 2}, "loss", "gcsb")
        Traceback (most recent call last):
        isoproto.errors.ConfigError: unknown loss 'gcsb'; `loss` must be one of 'gcsa', 'mse' (did you mean 'gcsa'?)
    """
    if name in table:
        return table[name]
    choices = ", ".join(repr(choice) for choice in sorted(table))
    close = difflib.get_close_matches(name, table, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ConfigError(f"unknown {key} {name!r}; `{key}` must be one of {choices}{hint}")
