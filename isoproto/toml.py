"""Settings as TOML text. Python reads TOML (``tomllib``) and has nothing that writes it."""

import json
from collections.abc import Mapping

from isoproto.config import Scalar


def to_toml(values: Mapping[str, Scalar]) -> str:
    """Return a flat mapping as TOML text. Keys with dots are quoted, since a dot would open a table.

    Example:
        >>> print(to_toml({"rounds": 3, "wire.dtype": "float32", "fraction": 0.2}), end="")
        rounds = 3
        "wire.dtype" = "float32"
        fraction = 0.2
    """
    return "".join(f"{_toml(k) if '.' in k else k} = {_toml(v)}\n" for k, v in values.items())


def _toml(value: Scalar) -> str:
    # JSON writes text, numbers and booleans as TOML does, except that TOML has no surrogate pairs and escapes DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
