"""Writing an entry into Flower's ``config.toml``. An entry says how ``flwr`` reaches a SuperLink."""

import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from isoproto.config import Scalar
from isoproto.errors import ConfigError
from isoproto.paths import write_atomically
from isoproto.toml import to_toml

_OURS = ("address", "root-certificates", "insecure")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")


def check_address(address: str) -> str:
    """Check that an address is ``HOST:PORT`` with a possible host name and a possible port, and return it.

    Raises:
        ConfigError: If it is not.

    Example:
        >>> check_address("[::1]:8000")
        '[::1]:8000'
    """
    match = _ADDRESS.fullmatch(address)
    try:
        good = match is not None and bool(match[1].encode("idna")) and 0 < int(match[2]) < 65536
    except UnicodeError:  # a label between two dots is empty or too long
        good = False
    if not good:
        raise ConfigError(f"{address!r} is not an address; give HOST:PORT without scheme, such as 127.0.0.1:8000")
    return address


def write_connection(
    path: Path, default: str, name: str, address: str, root_certificates: Path | None, *, replace: bool = False
) -> bool:
    """Add or change a connection in a file ``config.toml``, and return whether the file changed.

    Args:
        path: The file. A symbolic link stays a link.
        default: The text that a new file begins with.
        name: The connection's name.
        address: Where the SuperLink is.
        root_certificates: File with the certificate of the SuperLink's authority; None: without TLS.
        replace: Change an existing entry that differs. Without it, such an entry is an error.

    Raises:
        ConfigError: If the file cannot be read or changed. It stays as it was.
        StateError: If the file cannot be written. It stays as it was.
    """
    path = path.resolve()
    before, mode = None, 0o666
    try:
        before, mode = path.read_bytes().decode(), stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as err:
        raise ConfigError(f"cannot read {path}: {err}; repair or remove it") from err
    after = with_connection(default if before is None else before, name, address, root_certificates, replace=replace)
    if after != before:
        write_atomically(path, after.encode(), mode=mode)
    return after != before


def with_connection(
    text: str, name: str, address: str, root_certificates: Path | None, *, replace: bool = False
) -> str:
    """Add or change a connection in the text of a ``config.toml``.

    Args:
        text: The content of the file.
        name: The connection's name, as in ``flwr run . NAME``.
        address: Where the SuperLink is, ``HOST:PORT``.
        root_certificates: File with the certificate of the SuperLink's authority; None: without TLS.
        replace: Change an existing entry that differs. Without it, such an entry is an error.

    Returns:
        The new text. Only the settings of this entry have changed; everything else is as it was, with its comments.

    Raises:
        ConfigError: If the name is not allowed, if its entry differs, or if the text is laid out so that it cannot be
            changed line by line.

    Example:
        >>> print(with_connection("", "here", "127.0.0.1:8000", None), end="")
        [superlink.here]
        address = "127.0.0.1:8000"
        insecure = true
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name == "default":
        raise ConfigError(f"a connection cannot be called {name!r}; use letters, digits, '_' and '-'; not 'default'")
    wanted: dict[str, Scalar] = {"address": address}
    wanted |= {"root-certificates": str(root_certificates.absolute())} if root_certificates else {"insecure": True}
    before = _parse(text)
    entries = before.get("superlink")
    entries = entries if isinstance(entries, dict) else {}
    entry = entries.get(name)
    if not isinstance(entry, dict):
        entry = {}
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        new = f"{text}{gap}[superlink.{name}]\n{to_toml(wanted)}"
    elif (now := {key: entry[key] for key in _OURS if key in entry}) == wanted:
        return text
    elif not replace:
        raise ConfigError(
            f"the connection {name!r} says {now}, not {wanted}; choose another name, or change it with --replace"
        )
    else:
        new = _with_settings(text, name, to_toml(wanted))
    kept = {key: value for key, value in entry.items() if key not in _OURS}
    if not _same(new, {**before, "superlink": {**entries, name: {**kept, **wanted}}}):
        raise ConfigError(
            f"the connection {name!r} cannot be written without touching the rest of the file, which is laid out in "
            f"an unusual way; write it by hand:\n[superlink.{name}]\n{to_toml(wanted)}"
        )
    return new


def _with_settings(text: str, name: str, settings: str) -> str:
    """Put settings below the header of an entry, and remove the lines that hold the old settings."""
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"\s*\[\s*superlink\s*\.\s*(['\"]?){re.escape(name)}\1\s*\]")
    start = next((number for number, line in enumerate(lines, 1) if header.match(line)), len(lines))
    end = next(
        (number for number, line in enumerate(lines) if number >= start and line.lstrip()[:1] == "["), len(lines)
    )
    old = re.compile(rf"\s*(['\"]?)({'|'.join(_OURS)})\1\s*=")
    kept = [line for line in lines[start:end] if not old.match(line)]
    return "".join([*lines[:start], settings, *kept, *lines[end:]])


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"Flower's config.toml is not TOML: {err}; repair or remove it") from err


def _same(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False
