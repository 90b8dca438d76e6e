"""The ``isoproto`` command. It may import every other layer of the project."""

import io
import json
import logging
import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoproto import __version__, paths
from isoproto.cli import data as cli_data
from isoproto.cli import forget as cli_forget
from isoproto.cli import keys as cli_keys
from isoproto.cli import node as cli_node
from isoproto.cli import runs as cli_runs
from isoproto.cli import settings as cli_settings
from isoproto.cli.arguments import keep_help
from isoproto.config import RunConfig, Scalar, read_overrides
from isoproto.engines.host import beside_proxies
from isoproto.errors import ConfigError, IsoprotoError
from isoproto.own_code import absolute, is_own

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

_log = logging.getLogger("isoproto")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_keys.app)
app.add_typer(cli_data.app)
app.add_typer(cli_node.app)
app.add_typer(cli_forget.app)
app.add_typer(cli_runs.app)
app.add_typer(cli_settings.app)

RunConfigOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--run-config", help="Settings: \"key=value key='text'\", or a TOML file. May be repeated."),
]
ClientsOption = Annotated[int, typer.Option("--clients", min=1, help="Number of simulated clients.")]
EngineOption = Annotated[
    str,
    typer.Option("--engine", help="in-process: in processes of this command. flower: by flwr run, with Ray."),
]
JobsOption = Annotated[
    int,
    typer.Option(
        "--jobs",
        min=0,
        envvar="ISOPROTO_JOBS",
        help="Worker processes (engine in-process). 1: none. 0: one for each core once the run turns out to be long; "
        "none where clients train on a GPU.",
    ),
]
CpusOption = Annotated[
    int, typer.Option("--cpus-per-client", min=1, help="CPUs that Ray reserves for each worker (engine flower).")
]
GpusOption = Annotated[
    float,
    typer.Option(
        "--gpus-per-client",
        min=0.0,
        help="GPUs that Ray reserves for each worker; with 0.25, four workers share one (engine flower).",
    ),
]
OutputOption = cli_runs.OutputOption


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"isoproto {__version__}")
        raise typer.Exit


@app.callback()
def command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Federated learning for clients that share neither data nor architecture."""


@app.command()
def run(
    run_config: RunConfigOption = None,
    clients: ClientsOption = 20,
    engine: EngineOption = "in-process",
    jobs: JobsOption = 0,
    cpus_per_client: CpusOption = 1,
    gpus_per_client: GpusOption = 0.0,
    output_dir: OutputOption = None,
) -> None:
    """Run one federation with simulated clients."""
    workers = {"cpus_per_client": cpus_per_client, "gpus_per_client": gpus_per_client}
    _start(read_overrides(run_config or []), clients, engine, jobs, workers, output_dir)


@app.command()
def resume(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, its name, or the end of its name.")],
    clients: Annotated[
        int | None,
        typer.Option("--clients", min=1, help="Number of simulated clients; by default as many as the run had."),
    ] = None,
    engine: EngineOption = "in-process",
    jobs: JobsOption = 0,
    cpus_per_client: CpusOption = 1,
    gpus_per_client: GpusOption = 0.0,
    output_dir: OutputOption = None,
    connection: Annotated[
        str,
        typer.Option(metavar="NAME", help="Continue at a SuperLink: the name of its entry in Flower's config.toml."),
    ] = "",
) -> None:
    """Continue an interrupted run. The result is the same, to the last bit, as without the interruption."""
    from isoproto.runs.run_folder import find_run

    if connection:  # the run's folder is on the host of the server, which finds it by name
        from isoproto.deploy.deployment import run_at

        run_at(connection, {"resume": run_name})
        return
    folder = find_run(paths.output_dir(str(output_dir or "")), run_name)
    workers = {"cpus_per_client": cpus_per_client, "gpus_per_client": gpus_per_client}
    _start({"resume": str(folder)}, clients or _clients(folder), engine, jobs, workers, output_dir)


@app.command()
def report(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, its name, or the end of its name.")],
    output_dir: OutputOption = None,
    as_json: cli_runs.JsonOption = False,
) -> None:
    """Show the figures of a run and write its report again. The run may still be in progress."""
    from isoproto.report import added_line, privacy_line, read_run, summary_table, write_report
    from isoproto.runs.run_folder import find_run

    folder = find_run(paths.output_dir(str(output_dir or "")), run_name)
    found = read_run(folder)
    written = write_report(folder)
    if as_json:
        typer.echo(json.dumps({"name": found.name, "folder": str(folder), **found.summary}, indent=2))
        return
    Console().print(summary_table(found))
    typer.echo(str(written))
    for line in filter(None, (added_line(found.summary), privacy_line(found.summary))):
        typer.echo(line)


@app.command("models")
def list_models(
    size: Annotated[int, typer.Option(min=16, help="Rows and columns of a picture.")] = 32,  # cnn4 needs 16
    channels: Annotated[int, typer.Option(min=1, help="Channels of a picture.")] = 3,
    words: Annotated[int, typer.Option(min=2, help="Vocabulary of texts.")] = 30_000,
    length: Annotated[int, typer.Option(min=1, help="Number of tokens of a text.")] = 200,
    feature_dim: Annotated[int, typer.Option(min=1, help="Feature width that all models are pooled to.")] = 512,
    classes: Annotated[int, typer.Option(min=1, help="Outputs of the head.")] = 10,
    family: Annotated[str, typer.Option(metavar="NAME", help="Only the models of this family.")] = "",
) -> None:
    """List the models with their costs, and the families in which clients receive them."""
    from models import FAMILIES, MODELS, TEXT_MODELS, ModelSpec, TextSpec, architectures
    from models.cost import cost

    pictures = ModelSpec(channels, size, size, feature_dim, classes)
    text = TextSpec(words, length, feature_dim, classes)
    table = Table("model", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("parameters", "MFLOPs per sample", "width before pooling"):
        table.add_column(heading, justify="right")
    for name in dict.fromkeys(architectures(family) if family else (*MODELS, *TEXT_MODELS)):
        counted = cost(name, text if name in TEXT_MODELS else pictures)
        table.add_row(name, f"{counted.parameters:,}", f"{counted.flops / 1e6:,.1f}", str(counted.width))
    families = Table("family", "models, dealt out in this order", box=box.SIMPLE_HEAD, pad_edge=False)
    for label in [family] if family else FAMILIES:
        families.add_row(label, ", ".join(architectures(label)))
    Console().print(table, families)


def main() -> None:
    """Run the command line. An error of this project is printed as text, and the status is 1."""
    keep_help()
    os.environ.update(beside_proxies())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not have every character
            stream.reconfigure(errors="replace")
    try:
        app()
    except IsoprotoError as err:
        # Rich leaves the colour out if NO_COLOR is set or nobody looks.
        Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"error: {err}", "red"))
        sys.exit(1)


def _clients(folder: Path) -> int:
    """Return among how many clients a run divided its data. Some of them may not have taken part.

    Raises:
        ConfigError: If the run stopped before it had written that number.
    """
    try:
        if clients := int(tomllib.loads((folder / "config.toml").read_text("utf8")).get("clients", 0)):
            return clients
        return int(json.loads((folder / "partition.json").read_text("utf8"))["partitions"])
    except (OSError, ValueError, LookupError) as err:
        raise ConfigError(f"{folder} stopped before its clients were known; say how many with --clients") from err


def _start(
    values: dict[str, Scalar], clients: int, engine: str, jobs: int, workers: dict[str, Any], output_dir: Path | None
) -> None:
    """Start a run. Folders are filled in here, because a process of Flower may have another environment."""
    values.setdefault("output-dir", str((output_dir or paths.output_dir()).absolute()))
    values.setdefault("state-dir", str(paths.state_dir().absolute()))
    values.setdefault("data-dir", str((paths.home() / "data").absolute()))
    if "data" in values:
        values["data"] = cli_data.from_here(str(values["data"]))
    if is_own(models := str(values.get("models", ""))):
        values["models"] = ",".join(absolute(name.strip(), Path()) for name in models.split(","))
    if "common.map" in values:
        values["common.map"] = absolute(str(values["common.map"]), Path())
    clients = int(values.get("clients", 0)) or clients
    if "resume" not in values:
        _try_clients(values, clients)
    if engine == "flower":
        from isoproto.engines.flower import run_under_flower

        run_under_flower(values, clients=clients, **workers)
    elif engine == "in-process":
        from isoproto.engines.in_process import task_identity
        from isoproto.engines.workers import grid_of
        from server_app.app import run_federation

        if "resume" not in values:
            values["clients"] = clients  # so that the run's config.toml repeats the run
        cores = _cores(str(values.get("device", "auto")))
        with task_identity(), grid_of(_client_app, clients, jobs, cores) as grid:
            run_federation(grid, values)
    else:
        raise typer.BadParameter(f"engine must be 'in-process' or 'flower', got {engine!r}")


def _client_app() -> "ClientApp":
    """Return the ClientApp of simulated clients."""
    from client_app.app import make_app
    from isoproto.engines.in_process import in_process_host

    return make_app(in_process_host)


def _cores(device: str) -> int:
    """Return how many processes train at the same time: one on a GPU, which they would share."""
    from client_app.device import choose_device

    return (os.cpu_count() or 1) if choose_device(device).type == "cpu" else 1


def _try_clients(values: dict[str, Scalar], clients: int) -> None:
    """Make one client of each architecture, so that a mistake is told once, and before there is a run folder.

    Raises:
        IsoprotoError: If settings, data, the partition or a model cannot be used.
    """
    from client_app.client import Client
    from client_app.introduction import introduce
    from isoproto.engines.in_process import in_process_host
    from models import architecture_for
    from server_app.settings import decided
    from strategies.names import unknown_names

    config, _ = decided(RunConfig.from_mapping(values, check=unknown_names))
    settings = {**config.changes(), "clients": clients}
    for partition in {architecture_for(config.models, i): i for i in reversed(range(clients))}.values():
        node = {"partition-id": partition, "num-partitions": clients}
        introduce(Client.of(settings, node, partition, in_process_host()))


if __name__ == "__main__":
    main()
