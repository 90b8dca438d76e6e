"""Read the run configuration, Flower's flat mapping, into one frozen dataclass.

Flower passes ``dict[str, bool | int | float | str]``, without lists and ``None``. So a list is written as text, and the
word ``auto`` means that the strategy decides. Every default is also in ``pyproject.toml``, because Flower can only
override keys that are listed there. A test compares the two. ``docs/settings.md`` lists all settings.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoproto.errors import ConfigError
from isoproto.settings.common import Common
from isoproto.settings.logits import Logits
from isoproto.settings.rules import AUTO, Rule, Scalar
from isoproto.settings.sections import Data, Federation, Folders, Hyper, Method, Relation, Rounds, Training, Wire
from isoproto.settings.trainable import Trainable
from isoproto.settings.twin import TwinModel

__all__ = ["AUTO", "MethodSettings", "RunConfig", "Scalar", "key_of", "read_fields", "read_overrides", "refuse"]

# How Flower finds the pairs in an override. It ignores the text between pairs without an error.
_PAIR = re.compile(r"""\S+?=(?:'[^']*'|"[^"]*"|\S+)""")


@dataclass(frozen=True, kw_only=True)
class MethodSettings(Method, Relation, Hyper, Trainable, Logits, TwinModel, Common):
    """The settings of a method. Each strategy has a value of them, ``strategies.base.PrototypeStrategy.method``.

    A part that needs new settings adds its section to the bases.
    """

    @property
    def terms(self) -> tuple[str, ...]:
        """The names joined in ``alignment``, without ``none``."""
        return tuple(term for text in self.alignment.split("+") if (term := text.strip()) != "none")


@dataclass(frozen=True, kw_only=True)
class RunConfig(MethodSettings, Rounds, Data, Training, Federation, Wire, Folders):
    """The settings of one run. Each is documented where it is declared, in ``isoproto.settings``."""

    @classmethod
    def from_mapping(
        cls,
        values: Mapping[str, Scalar],
        *,
        source: str = "run config",
        check: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: (),
    ) -> "RunConfig":
        """Read Flower's run config, or raise one error that names everything that is wrong with it.

        An ``int`` is accepted for a ``float``. A ``bool`` is not accepted for a number.

        Args:
            values: Settings by key.
            source: Where the settings come from, for the error text.
            check: Returns further problems of the settings whose types and ranges are right, given by field name.

        Raises:
            ConfigError: With every unknown key, wrong type, wrong choice and value out of range.

        Example:
            >>> RunConfig.from_mapping({"rounds": 3, "lambda": 0.5}).lambda_
            0.5
            >>> RunConfig.from_mapping({"round": 3, "seed": "x"})
            Traceback (most recent call last):
            isoproto.errors.ConfigError: 2 problems in the run config:
              unknown key `round` (did you mean `rounds`?)
              `seed` must be int, got 'x'
        """
        found, problems = read_fields(_FIELDS, values)
        refuse([*problems, *_relation_problems(found), *check(found)], source)
        return cls(**found)

    def to_mapping(self) -> dict[str, Scalar]:
        """Return the flat mapping that ``from_mapping`` reads."""
        return {key: getattr(self, field.name) for key, field in _FIELDS.items()}

    def changes(self) -> dict[str, Scalar]:
        """Return the settings that differ from the defaults.

        The receiver runs the same code, since fingerprints are compared. So it has the same defaults.
        """
        return {k: v for k, v in self.to_mapping().items() if v != _FIELDS[k].default}


OTHER_NAMES = {
    "lr": "learning-rate",
    "eta": "learning-rate",
    "local-lr": "learning-rate",
    "wd": "weight-decay",
    "bs": "batch-size",
    "local-epochs": "epochs",
    "num-epochs": "epochs",
    "num-rounds": "rounds",
    "num-server-rounds": "rounds",
    "global-rounds": "rounds",
    "num-clients": "clients",
    "n-clients": "clients",
    "num-supernodes": "clients",
    "dataset": "data",
    "model": "models",
    "algorithm": "strategy",
    "method": "strategy",
    "dirichlet-alpha": "alpha",
    "beta": "alpha",
    "fraction-fit": "fraction",
    "fraction-train": "fraction",
    "join-ratio": "fraction",
    "loss": "alignment",
}
"""What other software calls our settings."""


def read_fields(
    fields: Mapping[str, "dataclasses.Field[Any]"], values: Mapping[str, Scalar]
) -> tuple[dict[str, Any], list[str]]:
    """Return the valid values by field name, and an error text for each other value."""
    problems, found = [], {}
    for key, value in values.items():
        field = fields.get(key)
        if field is None:
            meant = OTHER_NAMES.get(key.lower().replace("_", "-"), "")
            close = [meant] if meant in fields else difflib.get_close_matches(key.replace("_", "-"), fields, n=1)
            problems.append(f"unknown key `{key}`" + (f" (did you mean `{close[0]}`?)" if close else ""))
        elif (problem := _type_problem(key, field, value)) or (problem := _rule_problem(key, field, value)):
            problems.append(problem)
        else:
            found[field.name] = float(value) if field.type is float and value != AUTO else value
    return found, problems


def refuse(problems: Sequence[str], source: str) -> None:
    """Raise one error that names all problems of some settings, if there are any.

    Raises:
        ConfigError: If there is a problem.
    """
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError("\n  ".join([f"{count} in the {source}:", *problems]))


SECTIONS: tuple[type, ...] = (*MethodSettings.__bases__, *RunConfig.__bases__[1:])
"""All sections, in the order in which their keys are listed."""


def key_of(field: "dataclasses.Field[Any]") -> str:
    """Return the key of a setting.

    Example:
        >>> fields = {field.name: field for field in dataclasses.fields(RunConfig)}
        >>> [key_of(fields[name]) for name in ("lambda_", "hyper__size", "batch_size")]
        ['lambda', 'hyper.size', 'batch-size']
    """
    return field.name.rstrip("_").replace("__", ".").replace("_", "-")


_FIELDS: dict[str, "dataclasses.Field[Any]"] = {
    key_of(field): field for section in SECTIONS for field in dataclasses.fields(section)
}
# Settings that are folders. They must be absolute, because Flower's processes run in other folders.
_PATHS = ("data_dir", "output_dir", "state_dir")


def _type_problem(key: str, field: "dataclasses.Field[Any]", value: Scalar) -> str | None:
    if field.type is int and type(value) is not int:
        return f"`{key}` must be int, got {value!r}"
    if field.type is float and field.default == AUTO:
        wrong = type(value) not in (int, float) and value != AUTO
        return f"`{key}` must be a number or '{AUTO}', got {value!r}" if wrong else None
    if field.type is float and type(value) not in (int, float):
        return f"`{key}` must be float, got {value!r}"
    if field.type is bool and type(value) is not bool:
        return f"`{key}` must be true or false, got {value!r}"
    if field.type is str and type(value) is not str:
        return f"`{key}` must be text, got {value!r}"
    return None


def _rule_problem(key: str, field: "dataclasses.Field[Any]", value: Scalar) -> str | None:
    rule: Rule | None = field.metadata.get("rule")
    return rule.problem(key, value) if rule else None


def _relation_problems(found: Mapping[str, Any]) -> Iterable[str]:
    for name in _PATHS:
        path = found.get(name, "")
        if path and not Path(path).expanduser().is_absolute():
            yield (
                f"`{name.replace('_', '-')}` must be absolute, got {path!r}: Flower's processes run in another folder"
            )


def read_overrides(texts: Iterable[str]) -> dict[str, Scalar]:
    """Merge run-config overrides, each of them ``key=value ...`` or a TOML file. Later ones replace earlier ones.

    Raises:
        ConfigError: If a text or file cannot be read as TOML.

    Example:
        >>> read_overrides(["rounds=3 partition='dirichlet'", "rounds=5"])
        {'rounds': 5, 'partition': 'dirichlet'}
    """
    from flwr.common.config import flatten_dict, parse_config_args

    merged: dict[str, Scalar] = {}
    for text in texts:
        try:
            if text.endswith(".toml"):
                # Some editors begin a file with a byte-order mark, which TOML does not allow.
                content = Path(text).expanduser().read_text("utf-8-sig")
                merged |= flatten_dict(tomllib.loads(content))
            else:
                if rest := _PAIR.sub("", text).strip():
                    raise ValueError(f"no key=value in {rest!r}")
                merged |= parse_config_args([text])
        except OSError as err:
            raise ConfigError(f"cannot read the run-config file {text!r}: {err.strerror}") from err
        except Exception as err:
            raise ConfigError(
                f"cannot read the run config {text!r}: {err}. Write key=value pairs, blanks only between them, "
                "text in quotes: -c \"rounds=3 partition='dirichlet'\", or name a .toml file"
            ) from err
    return merged
