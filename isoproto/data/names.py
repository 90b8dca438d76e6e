"""Names of classes and domains, as every reader takes them from files, folders and settings."""

import unicodedata
from collections.abc import Iterable

from isoproto.errors import DataError


def clean(name: str, where: object) -> str:
    r"""Return a name without blanks around it, with composed characters, so that names that look alike are equal.

    Args:
        name: The name as it was read.
        where: Where it was read, for the error text.

    Raises:
        DataError: If it holds bytes that are no UTF-8, as names of files can.

    Example:
        >>> clean(" cafe\u0301 ", "pets.csv") == "caf\u00e9"
        True
    """
    try:
        name.encode()
    except UnicodeEncodeError as err:
        shown = name.encode(errors="surrogateescape")
        raise DataError(f"{str(where)!a}: the name {shown!r} is not UTF-8; rename it") from err
    return unicodedata.normalize("NFC", name).strip()


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return different names in their order: whole numbers by size, if all are, else as text.

    Example:
        >>> in_order(["10", "2", "2"]), in_order(["b10", "b2"])
        (('2', '10'), ('b10', 'b2'))
    """
    found = set(names)
    numbers = all(name.isdecimal() for name in found)
    return tuple(sorted(found, key=lambda name: (int(name) if numbers else 0, name)))
