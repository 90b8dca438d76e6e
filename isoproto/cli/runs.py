"""The commands ``isoproto runs``, ``isoproto rm`` and ``isoproto prune``."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isoproto import paths
from isoproto.errors import StateError
from isoproto.report.formats import size
from isoproto.report.run import RunSummary, list_runs, read_summary
from isoproto.runs.run_folder import RunFolder, find_run

app = typer.Typer()

OutputOption = Annotated[
    Path | None, typer.Option("--output-dir", help="Folder that holds the run folders.", envvar="ISOPROTO_OUTPUT_DIR")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@app.command()
def runs(output_dir: OutputOption = None, as_json: JsonOption = False) -> None:
    """List all runs, newest first, with the settings in which they differ."""
    from isoproto.report import runs_table

    folder = paths.output_dir(str(output_dir or ""))
    found = list_runs(folder)
    if as_json:
        content = [{"name": run.name, "folder": str(run.folder), **run.summary} for run in found]
        typer.echo(json.dumps(content, indent=2))
        return
    if not found:
        typer.echo(f"no runs in {folder} yet; start one with: isoproto run")
        return
    table, console = runs_table(found), Console()
    # A name that breaks over two lines can be neither copied nor searched for, so the table is as wide as it must be.
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=1000)).maximum)
    console.print(table)


@app.command()
def rm(
    run_names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run folders, their names, or the ends of their names.")
    ],
    output_dir: OutputOption = None,
) -> None:
    """Remove runs with everything that belongs to them on this machine: their folders, and their clients' models."""
    known = paths.output_dir(str(output_dir or ""))
    for folder in [find_run(known, name) for name in run_names]:
        _remove(read_summary(folder))


@app.command()
def prune(output_dir: OutputOption = None) -> None:
    """Remove the runs that ended before their first round was over."""
    found = [run for run in list_runs(paths.output_dir(str(output_dir or ""))) if _fruitless(run)]
    for run in found:
        _remove(run)
    if not found:
        typer.echo("nothing to remove: each run has a round, or has not ended")


def _fruitless(run: RunSummary) -> bool:
    ended = run.summary["status"] in ("failed", "interrupted", "stopped")
    metrics = run.folder / "metrics.jsonl"
    return ended and not (metrics.exists() and '"kind": "round"' in metrics.read_text("utf8"))


def _remove(run: RunSummary) -> None:
    """Remove a run's folder and its clients' models, and say how much room that gives.

    Raises:
        StateError: If the run goes on, or a file cannot be removed.
    """
    experiment = str(run.summary.get("experiment") or (run.folder / "experiment").read_text("utf8").strip())
    state = paths.experiment_dir(paths.state_dir(str(run.config.get("state-dir", ""))), experiment)
    room = sum(_bytes(folder) for folder in (run.folder, state))
    with RunFolder(run.folder, experiment).in_use():
        try:
            for folder in filter(Path.exists, (state, run.folder)):
                shutil.rmtree(folder)
        except OSError as err:
            raise StateError(
                f"cannot remove {err.filename}: {err.strerror}; what is left can be removed again"
            ) from err
    typer.echo(f"removed {run.name}: {size(room)}")


def _bytes(folder: Path) -> int:
    files: Iterable[Path] = folder.rglob("*") if folder.exists() else ()
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())
