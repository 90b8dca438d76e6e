"""Check that every name in the settings exists."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isoproto.config import AUTO
from isoproto.data import DATASETS, PARTITIONERS, class_names
from isoproto.errors import ConfigError
from isoproto.losses import LOSSES
from isoproto.maps import MAPS
from isoproto.own_code import is_own
from isoproto.parts import PROTOTYPES, TERMS
from isoproto.registry import lookup
from models import HEADS, architecture_for
from strategies import STRATEGIES


def unknown_names(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error text for each setting whose value is a name that does not exist.

    Args:
        settings: Settings by field name, such as ``strategy`` or ``models``. Absent settings are not checked.
    """
    checks: dict[str, Callable[[str], object]] = {
        "strategy": lambda name: lookup(STRATEGIES, "strategy", name),
        "prototypes": lambda name: lookup(dict.fromkeys((AUTO, "none", *PROTOTYPES)), "prototypes", name),
        "alignment": _check_alignment,
        "partition": lambda name: lookup(PARTITIONERS, "partition", name.partition(":")[0]),
        "data": lambda name: lookup(DATASETS, "data", name.partition(":")[0]),
        "classes": class_names,
        "models": lambda names: architecture_for(names, 0),
        "common__map": _check_map,
        "heads": lambda name: lookup(HEADS, "heads", name),
    }
    for key in [key for key in checks if key in settings]:
        try:
            checks[key](settings[key])
        except ConfigError as err:
            yield str(err)


def _check_map(name: str) -> None:
    if not is_own(name):
        lookup(dict.fromkeys((AUTO, "none", "standard", *MAPS)), "common.map", name)


def _check_alignment(text: str) -> None:
    terms = [term.strip() for term in text.split("+")]
    choices = dict.fromkeys((AUTO, "none", *LOSSES, *TERMS))
    for term in terms:
        lookup(choices, "alignment", term)
    if len(terms) > 1 and (alone := {AUTO, "none"}.intersection(terms)):
        raise ConfigError(f"`{min(alone)}` stands alone in `alignment`, got {text!r}; name the terms to be joined by +")
    structural = [term for term in terms if term not in TERMS]
    if len(structural) > 1 or len(set(terms)) < len(terms):
        raise ConfigError(
            f"`alignment` is one of {', '.join(LOSSES)} at most, joined by + with {', '.join(TERMS)}; got {text!r}"
        )
