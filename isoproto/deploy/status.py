"""The state of a run, read from its folder while it runs: its clients, when each last answered, what failed."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from isoproto.errors import ConfigError
from isoproto.report import Run, read_run
from isoproto.runs.run_folder import FLOWER_RUN

# A run that is alive writes into its folder within this many times its timeout.
_SILENT = 3
_SECONDS = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(slots=True)
class ClientStatus:
    """One client, or a node that was refused.

    Attributes:
        client: Name of the client.
        model: Architecture of its model; empty for a node that was refused.
        node: The node that answers for the client: the name under which it was enrolled, or its number. Empty if the
            SuperLink was not asked, or does not know the node.
        online: Whether the SuperLink receives the node's heartbeat. None if ``node`` is empty.
        last_round: The last round in which the client answered; None if it has not answered yet.
        accuracy: Accuracy of the client's model after that round.
        failures: How often the client failed.
        last_failure: Round and reason of the last failure.
    """

    client: str
    model: str = ""
    node: str = ""
    online: bool | None = None
    last_round: int | None = None
    accuracy: float | None = None
    failures: int = 0
    last_failure: str = ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run at one moment.

    Attributes:
        run: Name of its folder.
        state: ``waiting`` for nodes, ``running``, ``completed``, ``failed`` or ``silent``. Silent means that
            nothing was written for so long that the run must have died, and that no SuperLink says otherwise.
        round: The last complete round; 0 before the first.
        rounds: How many rounds the run will have.
        silent_s: Seconds since the folder last changed.
        said: The last line of the run's log, or the reason why it failed.
        clients: The clients by name, then the nodes that were refused.
        strangers: Nodes that are online at the SuperLink and take no part in the run, by name or number.
    """

    run: str
    state: str
    round: int
    rounds: int
    silent_s: float
    said: str
    clients: list[ClientStatus] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the whole state as one line of JSON."""
        return json.dumps(asdict(self))


def newest_run(output_dir: Path) -> Path:
    """Return the folder of the run that was started last.

    Raises:
        ConfigError: If the folder holds no run.
    """
    found = [path.parent for path in output_dir.glob("*/config.toml")]
    if not found:
        raise ConfigError(f"there is no run in {output_dir}; name its folder, or see --output-dir")
    return max(found, key=lambda path: (path / "config.toml").stat().st_mtime)


def flower_run(folder: Path) -> str:
    """Return the number under which the SuperLink knows a run; empty if the run used no SuperLink."""
    path = folder / FLOWER_RUN
    number = path.read_text("utf8").strip() if path.exists() else ""
    return "" if number == "0" else number


def run_status(
    folder: Path,
    nodes: Sequence[Mapping[str, Any]] = (),
    known: Mapping[str, Any] | None = None,
    *,
    now: float | None = None,
) -> RunStatus:
    """Read the state of a run from its folder.

    Args:
        folder: The run folder.
        nodes: The answer of ``flwr supernode list``, if the SuperLink was asked: ``node-id`` and ``status`` of each
            node, and ``name`` where it is known.
        known: The answer of ``flwr ls`` about the run, if the SuperLink was asked: ``status``, ``status-details``.
        now: The present time, in seconds since 1970; None: by the clock.

    Raises:
        StateError: If a file of the folder cannot be read.
    """
    run = read_run(folder)
    written = {path.name: path.stat().st_mtime for path in folder.iterdir() if path.is_file()}
    ended = written.get("summary.json", 0.0) >= written.get("metrics.jsonl", 0.0) and "summary.json" in written
    summary = json.loads((folder / "summary.json").read_text("utf8")) if ended else {}
    over = max((line["round"] for line in run.metrics if line["kind"] == "round"), default=0)
    begun = "partition.json" in written
    clients = _clients(run, nodes, _hosts(folder))
    present = {client.node for client in clients}
    silent_s = round((now or time.time()) - max(written.values()), 1)
    limit = _SILENT * float(run.config.get("round-timeout" if begun else "wait-timeout", math.inf))
    state = summary.get("status") or ("running" if begun else "waiting")
    said = summary.get("reason") or _last_line(folder / "log.txt")
    if known and not ended and known["status"].startswith("finished"):
        state, said = "failed", f"the SuperLink says {known['status']}: {known['status-details']}"
    elif not known and not ended and silent_s > limit:
        state = "silent"
    return RunStatus(
        run=folder.name,
        state=state,
        round=over,
        rounds=int(run.config.get("rounds", 0)),
        silent_s=silent_s,
        said=said,
        clients=clients,
        strangers=sorted(_name(node) for node in nodes if node["status"] == "online" and _name(node) not in present),
    )


def _hosts(folder: Path) -> dict[str, str]:
    """Return the number of the node that answers for each client."""
    path = folder / "nodes.json"
    hosts: dict[str, str] = json.loads(path.read_text("utf8")) if path.exists() else {}
    return hosts


def _clients(run: Run, nodes: Sequence[Mapping[str, Any]], hosts: Mapping[str, str]) -> list[ClientStatus]:
    found = {share.client: ClientStatus(share.client, share.model) for share in run.clients}
    # The failures of a node that was refused at first stand under its number.
    names = {f"node {number}": client for client, number in hosts.items()}
    for line in run.metrics:
        if line["kind"] == "client":
            one = found.setdefault(line["client"], ClientStatus(line["client"]))
            one.model, one.last_round, one.accuracy = line["model"], line["round"], line["accuracy"]["after"]
        elif line["kind"] == "evaluation":
            for entry in line["clients"]:
                one = found.setdefault(entry["client"], ClientStatus(entry["client"]))
                one.model, one.last_round = entry["model"], line["round"]
                one.accuracy = entry["correct"] / entry["total"] if entry["total"] else None
        elif line["kind"] == "failure":
            client = str(names.get(line["client"], line["client"]))
            one = found.setdefault(client, ClientStatus(client))
            one.failures += 1
            one.last_failure = f"round {line['round']}: {line['reason']}"
    numbers = {str(node["node-id"]): node for node in nodes}
    for one in found.values():
        number = hosts.get(one.client) or one.client.removeprefix("node ")  # a refused node has its number as its name
        if node := numbers.get(number):
            one.node, one.online = _name(node), node["status"] == "online"
    return list(found.values())


def _name(node: Mapping[str, Any]) -> str:
    return str(node.get("name") or node["node-id"])


def _last_line(path: Path) -> str:
    try:
        lines = [line for line in path.read_text("utf8").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1] if lines else ""


def ago(seconds: float) -> str:
    """Return a length of time in one unit, as short text.

    Example:
        >>> ago(4.2), ago(250), ago(90000)
        ('4 s', '4 min', '1 d')
    """
    return next((f"{seconds / size:.0f} {unit}" for size, unit in _SECONDS if seconds >= size), f"{seconds:.0f} s")
