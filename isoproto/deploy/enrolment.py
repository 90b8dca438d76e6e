"""Enrolling and revoking the keys of nodes at a SuperLink, through Flower's commands.

A SuperLink that has refused a key never accepts it again. ``flwr supernode list`` does not print keys, so the SuperLink
is asked each time which keys it knows and to which nodes they belong. The file ``nodes/NAME.json`` in the folder of
keys records where a key was enrolled. It has one line for each SuperLink, because revoking must reach all of them.
"""

import contextlib
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isoproto.deploy import keys
from isoproto.engines.flower import tool
from isoproto.errors import FederationError, StateError
from isoproto.paths import write_atomically

_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one node: whether it worked, and a sentence that says so."""

    node: str
    done: bool
    text: str


@dataclass(frozen=True, slots=True)
class Known:
    """What a SuperLink knows about a key: the number of its node, and whether the key is accepted."""

    node_id: str
    accepted: bool


@dataclass(frozen=True, slots=True)
class _Record:
    """One line of ``nodes/NAME.json``: the SuperLink, and the node's number there; empty while it is not known."""

    connection: str
    node_id: str


Ask = Callable[[Sequence[str]], dict[str, Any]]
Look = Callable[[str], Mapping[bytes, Known]]


def ask_flower(words: Sequence[str]) -> dict[str, Any]:
    """Run a ``flwr`` command and return its answer.

    Raises:
        FederationError: If the command failed, with the reason.
    """
    command = [tool("flwr"), *words, "--format", "json"]
    environment = {**os.environ, "FLWR_DISABLE_UPDATE_CHECK": "1"}
    if home := environment.get("FLWR_HOME"):
        environment["FLWR_HOME"] = str(Path(home).absolute())
    # In another folder, `flwr` might find an app with the name of the connection and use that.
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


def known_keys(connection: str) -> dict[bytes, Known]:
    """Ask a SuperLink which keys it knows; the keys of the result are in the format of ``keys.public_pem``.

    Raises:
        FederationError: If the SuperLink does not answer.
    """
    import click
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import flwr_cli_exc_handler, init_http_client_from_connection
    from flwr.proto.control_pb2 import ListNodesRequest

    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            flwr_cli_exc_handler(),
            contextlib.closing(init_http_client_from_connection(read_superlink_connection(connection))) as client,
        ):
            nodes = client.ListNodes(ListNodesRequest()).nodes_info
    except (click.ClickException, OSError, ValueError) as err:
        reason = " ".join(str(err).split())
        raise FederationError(f"the SuperLink of {connection!r} does not tell which keys it knows: {reason}") from err
    return {node.public_key: Known(str(node.node_id), node.status != "unregistered") for node in nodes}


def enrol(
    folder: Path, names: Iterable[str], connection: str, ask: Ask = ask_flower, look: Look = known_keys
) -> Iterator[Outcome]:
    """Make a SuperLink accept the keys of nodes, one after the other. Keys that it accepts already stay as they are.

    Args:
        folder: The folder of keys.
        names: The nodes.
        connection: Name of the SuperLink's entry in Flower's ``config.toml``.
        ask: Runs a ``flwr`` command and returns its answer; tests replace it.
        look: Asks a SuperLink which keys it knows; tests replace it.

    Yields:
        The result for each node, as soon as it is known.

    Raises:
        FederationError: If the SuperLink does not answer.
        StateError: If a node has no key here.
    """
    public = {name: keys.public_key(folder, name).absolute() for name in names}
    known = look(connection)
    for name, path in public.items():
        found, text = known.get(keys.public_pem(path)), "was enrolled already, as"
        if found is None or not found.accepted:
            # Written first, so that the record exists even if this process is killed.
            _note(folder, name, connection, "")
        if found is None:
            try:
                answer = ask(["supernode", "register", str(path), connection, "--name", name])
            except FederationError as err:
                yield Outcome(name, False, str(err))
                continue
            found, text = Known(str(answer["node-id"]), accepted=True), "enrolled as"
        if not found.accepted:
            text = (
                f"its key was node {found.node_id} and is refused for good; it needs a new one: `isoproto keys revoke "
                f"{name}`, `isoproto keys add {name}`, then enrol that"
            )
            yield Outcome(name, False, text)
            continue
        _note(folder, name, connection, found.node_id)
        yield Outcome(name, True, f"{text} node {found.node_id}")


def revoke(folder: Path, name: str, ask: Ask = ask_flower, look: Look = known_keys) -> Outcome:
    """Make every SuperLink that accepted a node's key refuse it, and then remove the key from the folder.

    Raises:
        StateError: If no record says that the node was enrolled, or if it has no key in the folder.
    """
    records = _read(folder, name)
    if not records:
        raise StateError(
            f"there is no record in {folder} that {name!r} was enrolled; if it was from elsewhere, find its number "
            "with `flwr supernode list CONNECTION` and call `flwr supernode unregister NUMBER CONNECTION`"
        )
    key = keys.public_pem(keys.public_key(folder, name))
    done, texts = True, []
    for connection in records:
        try:
            texts.append(f"{_revoke_at(connection, key, ask, look)} is refused from now on")
        except FederationError as err:
            done = False
            texts.append(str(err))
    if not done:
        files = folder / "nodes" / f"{name}.*"
        texts.append(f"its key is kept here: try again, or remove {files} if what may accept it is gone for good")
        return Outcome(name, False, "; ".join(texts))
    for suffix in (".pub", ".key", ".json"):
        (folder / "nodes" / f"{name}{suffix}").unlink(missing_ok=True)
    return Outcome(name, True, "; ".join([*texts, "its key is removed"]))


def _revoke_at(connection: str, key: bytes, ask: Ask, look: Look) -> str:
    """Make one SuperLink refuse a key, and return which node it was there.

    Raises:
        FederationError: If the SuperLink does not do it, or does not know the key.
    """
    known = look(connection).get(key)
    if known is None:
        raise FederationError(
            f"the SuperLink of {connection!r} knows no such key: it has lost its database, or {connection!r} leads to "
            "another one than before, and the old one still accepts it"
        )
    if known.accepted:
        ask(["supernode", "unregister", known.node_id, connection])
    return f"node {known.node_id} at {connection}"


def enrolled_as(folder: Path, name: str) -> str:
    """Return in words where a node was enrolled, with its number there; empty if it was not enrolled."""
    return ", ".join(f"node {number} at {connection}" for connection, number in _read(folder, name).items() if number)


def enrolled_names(folder: Path, connection: str) -> dict[str, str]:
    """Return the names of the nodes that were enrolled at a SuperLink, by the numbers that it gave them."""
    numbers = {name: _read(folder, name).get(connection) for name in keys.node_names(folder)}
    return {number: name for name, number in numbers.items() if number}


def _record_path(folder: Path, name: str) -> Path:
    return folder / "nodes" / f"{name}.json"


def _note(folder: Path, name: str, connection: str, number: str) -> None:
    """Record where a node is enrolled, and its number there."""
    records = {**_read(folder, name), connection: number}
    lines = [json.dumps(asdict(_Record(where, what))) + "\n" for where, what in records.items()]
    write_atomically(_record_path(folder, name), "".join(lines).encode())


def _read(folder: Path, name: str) -> dict[str, str]:
    """Return a node's numbers by the SuperLinks at which it was enrolled."""
    path = _record_path(folder, name)
    try:
        records = [_Record(**json.loads(line)) for line in path.read_text("utf8").splitlines() or [""]]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as err:
        raise StateError(f"cannot read {path}: {err}; restore or remove it") from err
    return {record.connection: record.node_id for record in records}
