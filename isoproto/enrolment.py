"""Telling a SuperLink which node keys to accept, and which no longer, through Flower's own command.

A SuperLink never takes a key again that it has refused, and names nodes by a number that only the answer to an
enrolment says. That number is kept beside the key, in ``nodes/NAME.json``.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isoproto import keys
from isoproto.errors import FederationError, StateError
from isoproto.flower_engine import tool
from isoproto.paths import write_atomically

_LIMIT_S = 120
Ask = Callable[[Sequence[str]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one node."""

    node: str
    done: bool
    text: str


@dataclass(frozen=True, slots=True)
class _Record:
    """Where a node was enrolled, and as what."""

    connection: str
    node_id: str


def ask_flower(words: Sequence[str]) -> dict[str, Any]:
    """Run a ``flwr`` command and return its answer.

    Raises:
        FederationError: If it failed, with its reason.
    """
    command = [tool("flwr"), *words, "--format", "json"]
    environment = {**os.environ, "FLWR_DISABLE_UPDATE_CHECK": "1"}
    if home := environment.get("FLWR_HOME"):
        environment["FLWR_HOME"] = str(Path(home).absolute())
    # Elsewhere, a folder with an app that is called like the connection would be taken for the app.
    with tempfile.TemporaryDirectory() as empty:
        try:
            done = subprocess.run(  # noqa: S603
                command,
                cwd=empty,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as err:
            raise FederationError(f"`flwr {' '.join(words)}` did not end within {_LIMIT_S} s") from err
    answer: dict[str, Any] = {"error-message": (done.stdout + done.stderr).strip()[-500:]}
    with contextlib.suppress(ValueError):
        answer |= json.loads(done.stdout)
    if not answer.get("success"):
        reason = " ".join(str(answer["error-message"]).split())
        raise FederationError(f"`flwr {' '.join(words)}`: {reason}")
    return answer


def enrol(folder: Path, names: Iterable[str], connection: str, ask: Ask = ask_flower) -> Iterator[Outcome]:
    """Have a SuperLink accept the keys of nodes, one after the other; those it accepts already stay as they are.

    Args:
        folder: The folder of keys.
        names: The nodes.
        connection: The SuperLink's entry in Flower's ``config.toml``.
        ask: How to ask Flower.

    Raises:
        FederationError: If the SuperLink does not answer.
        StateError: If a node has no key here.
    """
    public = {name: keys.public_key(folder, name).absolute() for name in names}
    accepted = _accepted(connection, ask)
    for name, path in public.items():
        record = _read(folder, name)
        if record and record.connection == connection and record.node_id in accepted:
            yield Outcome(name, True, f"was enrolled already, as node {record.node_id}")
            continue
        try:
            answer = ask(["supernode", "register", str(path), connection, "--name", name])
        except FederationError as err:
            yield Outcome(name, False, str(err))
            continue
        record = _Record(connection, str(answer["node-id"]))
        write_atomically(_record_path(folder, name), json.dumps(asdict(record)).encode())
        yield Outcome(name, True, f"enrolled as node {record.node_id}")


def revoke(folder: Path, name: str, ask: Ask = ask_flower) -> Outcome:
    """Have the SuperLink refuse a node's key from now on, and remove the key here, as it is good for nothing more.

    Raises:
        FederationError: If the SuperLink does not answer.
        StateError: If the node was not enrolled from here.
    """
    record = _read(folder, name)
    if record is None:
        raise StateError(
            f"there is no record in {folder} that {name!r} was enrolled; if it was from elsewhere, find its number "
            "with `flwr supernode list CONNECTION` and call `flwr supernode unregister NUMBER CONNECTION`"
        )
    text = f"the SuperLink knew no node {record.node_id}"
    if record.node_id in _accepted(record.connection, ask):
        text = f"node {record.node_id} is refused from now on"
        try:
            ask(["supernode", "unregister", record.node_id, record.connection])
        except FederationError as err:
            return Outcome(name, False, str(err))
    for suffix in (".pub", ".key", ".json"):
        (folder / "nodes" / f"{name}{suffix}").unlink(missing_ok=True)
    return Outcome(name, True, f"{text}; its key is removed")


def enrolled_as(folder: Path, name: str) -> str:
    """Return where a node was enrolled and as what, in words; empty if it was not."""
    record = _read(folder, name)
    return f"node {record.node_id} at {record.connection}" if record else ""


def enrolled_names(folder: Path, connection: str) -> dict[str, str]:
    """Return the names of the nodes that were enrolled from a folder of keys at a SuperLink, by their numbers."""
    records = {name: _read(folder, name) for name in keys.node_names(folder)}
    return {one.node_id: name for name, one in records.items() if one and one.connection == connection}


def _accepted(connection: str, ask: Ask) -> set[str]:
    """Return the numbers of the nodes whose keys a SuperLink accepts."""
    nodes = ask(["supernode", "list", connection])["nodes"]
    return {str(node["node-id"]) for node in nodes if node["status"] != "unregistered"}


def _record_path(folder: Path, name: str) -> Path:
    return folder / "nodes" / f"{name}.json"


def _read(folder: Path, name: str) -> _Record | None:
    path = _record_path(folder, name)
    try:
        return _Record(**json.loads(path.read_text("utf8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as err:
        raise StateError(f"cannot read {path}: {err}; restore or remove it") from err
