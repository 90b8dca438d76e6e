"""The commands for a device and for watching a run: ``isoproto node``, ``isoproto doctor``, ``isoproto status``."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoproto import paths
from isoproto.cli.keys import KeysDirOption
from isoproto.errors import FederationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from isoproto.deploy.status import ClientStatus, RunStatus

app = typer.Typer()

ConfigOption = Annotated[Path, typer.Option("--config", help="The TOML file with the node's configuration.")]
_MARKS = {"ok": "ok     ", "warning": "WARNING", "failed": "FAILED ", "skipped": "skipped"}


@app.command()
def node(config: ConfigOption = Path("node.toml")) -> None:
    """Join a federation with the data and the model of this device, until stopped."""
    from isoproto.deploy.launch import start
    from isoproto.deploy.node import NodeConfig

    settings = NodeConfig.read(config)
    if settings.insecure:
        typer.secho("warning: `insecure`: no TLS and no key, anyone in between can read and change it", err=True)
    start(settings)


@app.command(
    hidden=True,  # for deploy/entrypoint.sh; people call `isoproto node`
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def supernode(context: typer.Context) -> None:
    """Become a SuperNode with the arguments of Flower's own command, `flower-supernode`."""
    from isoproto.deploy.launch import become_supernode

    become_supernode(context.args)


@app.command()
def doctor(
    config: ConfigOption = Path("node.toml"),
    feature_dim: Annotated[int, typer.Option(min=1, help="Feature width of the federation.")] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check what this device needs to join, and say what to do. The status is 1 if it cannot join yet."""
    from client_app.doctor import examine
    from isoproto.deploy.node import NodeConfig

    findings = []
    for finding in examine(NodeConfig.read(config), feature_dim, asked_by_strategies()):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{_MARKS[finding.state]}  {finding.check}: {finding.text}")
            if finding.state != "ok" and finding.advice:
                typer.echo(f"         -> {finding.advice}")
    failed = [finding.check for finding in findings if finding.state == "failed"]
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps({"healthy": not failed, "findings": [asdict(finding) for finding in findings]}))
    elif failed:
        typer.echo(f"this node cannot join: {', '.join(failed)}")
    else:
        typer.echo("this node can join: isoproto node --config " + str(config))
    raise typer.Exit(1 if failed else 0)


def asked_by_strategies() -> dict[str, frozenset[str]]:
    """Return what runs of each strategy ask clients to send besides class means, with its default settings."""
    from client_app.owner import asked_of_owner
    from isoproto.config import RunConfig
    from strategies import STRATEGIES

    resolved = {name: STRATEGIES[name].resolve(RunConfig(strategy=name)) for name in sorted(STRATEGIES)}
    return {name: asked_of_owner(config) for name, config in resolved.items()}


@app.command()
def status(
    run_name: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]", help="Run folder, its name, or the end of its name; by default the newest run."
        ),
    ] = "",
    connection: Annotated[
        str, typer.Option(help="Name of the SuperLink's entry in Flower's config.toml, to ask which nodes are online.")
    ] = "",
    watch: Annotated[
        float, typer.Option(min=0, help="Show the state again every so many seconds, until the run ends.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line each time.")] = False,
    keys_dir: KeysDirOption = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", help="Folder that holds the run folders.", envvar="ISOPROTO_OUTPUT_DIR"),
    ] = None,
) -> None:
    """Show the state of a run: its round, its clients and their models, when each last answered, failures."""
    from isoproto.deploy.status import newest_run, run_status
    from isoproto.runs.run_folder import find_run

    folder = paths.output_dir(str(output_dir or ""))
    found = find_run(folder, run_name) if run_name else newest_run(folder)
    while True:
        nodes, known, trouble = _ask_superlink(found, connection, keys_dir)
        now = run_status(found, nodes, known)
        if as_json:
            typer.echo(now.to_json())
        else:
            if watch:
                typer.clear()
            _show(now, trouble)
        if not watch or now.state not in ("waiting", "running"):
            return
        time.sleep(watch)


def _ask_superlink(
    folder: Path, connection: str, keys_dir: Path | None
) -> tuple[list[dict[str, Any]], dict[str, Any] | None, str]:
    """Ask the SuperLink about its nodes and about a run. The third value says what it did not answer, and why."""
    nodes: list[dict[str, Any]] = []
    known, trouble = None, ""
    if not connection:
        return nodes, known, trouble
    from isoproto.deploy.enrolment import ask_flower, enrolled_names
    from isoproto.deploy.status import flower_run

    number = flower_run(folder)
    try:
        nodes = ask_flower(["supernode", "list", connection])["nodes"]
        known = ask_flower(["ls", connection, "--run-id", number])["runs"][0] if number else None
    except FederationError as err:
        trouble = str(err)
    names = enrolled_names(paths.keys_dir() if keys_dir is None else keys_dir.expanduser(), connection)
    return [{**one, "name": names.get(str(one["node-id"]), "")} for one in nodes], known, trouble


def _show(status: "RunStatus", trouble: str) -> None:
    """Print the state of a run, and what the SuperLink did not answer."""
    from rich.console import Console
    from rich.markup import escape

    from isoproto.deploy.status import ago

    console = Console()
    where = f"round {status.round} of {status.rounds}"
    console.print(escape(f"{status.run}: {status.state}, {where}, last change {ago(status.silent_s)} ago"))
    if status.said:
        console.print(escape(f"  {status.said}"))
    if status.state == "silent":
        console.print(
            "  it writes more often while it lives; --connection asks the SuperLink, `isoproto resume` goes on"
        )
    console.print(_client_table(status.clients))
    for one in status.clients:
        if one.failures:
            console.print(escape(f"{one.client}: {one.last_failure}"), soft_wrap=True)
    if status.strangers:
        console.print(escape(f"online, but not in this run yet: {', '.join(status.strangers)}"))
    if trouble:
        console.print(escape(f"the SuperLink does not say all: {trouble}"))


def _client_table(clients: "Sequence[ClientStatus]") -> "Table":
    """Return a table with one row for each client."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table("client", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("node", overflow="fold")  # a cut node id of 20 digits could not be copied
    for title in ("model", "online", "last round", "accuracy", "failures"):
        table.add_column(title)
    for one in clients:
        table.add_row(
            escape(one.client),
            escape(one.node or "-"),
            escape(one.model or "-"),
            {True: "yes", False: "no", None: "-"}[one.online],
            "-" if one.last_round is None else str(one.last_round),
            "-" if one.accuracy is None else f"{one.accuracy:.3f}",
            str(one.failures),
        )
    return table
