"""Tables of runs for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from isoproto.config import RunConfig
from isoproto.report.formats import NOTHING, duration, percent, plain, points, size
from isoproto.report.run import RunSummary
from isoproto.runs.metrics import decile_size
from isoproto.settings.rules import AUTO

STATUS_STYLE = {
    "completed": "green",
    "failed": "bold red",
    "interrupted": "yellow",
    "running": "yellow",
    "stopped": "yellow",
}
SHOWN_FAILURES = 5


def summary_table(run: RunSummary) -> Table:
    """Return a table of one run's figures, each with its meaning. It is printed at the end of a run.

    Args:
        run: A run or the summary of one, finished or in progress.

    Returns:
        A table for ``rich.console.Console.print``. Names and reasons from clients are shown as plain text, even if they
        hold markup.
    """
    summary = run.summary
    accuracy, traffic, seconds, clients = (summary[part] for part in ("accuracy", "bytes", "seconds", "clients"))
    who = f"{clients['evaluated']} of {clients['total']} clients"
    k = decile_size(max(1, clients["evaluated"]))
    decile = "the {} client" if k == 1 else f"mean of the {k} {{}} clients"
    table = Table(title=Text(plain(run.name), style="bold"), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")

    rows: tuple[tuple[str, Text | str, Text | str], ...] = (
        ("status", _status(summary), Text(plain(summary["reason"]))),
        ("rounds", str(summary["rounds"]), ""),
        ("accuracy, mean", Text(percent(accuracy["mean"]), "bold"), f"{who}: own prediction, own test data"),
        ("accuracy, micro", percent(accuracy["micro"]), "each test sample counts the same"),
        ("worst decile", percent(accuracy["worst_decile"]), decile.format("worst")),
        ("best decile", percent(accuracy["best_decile"]), decile.format("best")),
        ("spread", points(accuracy["std"]), "standard deviation over clients"),
        ("best round", percent(accuracy["best"]), _best_round(accuracy)),
        ("last five rounds", percent(accuracy["last5"]), "mean of the rounds' means"),
        ("nearest prototype", percent(accuracy["nearest_prototype"]), "the nearest global prototype answers"),
        ("before training", percent(accuracy["initial"]), "mean before round 1"),
        ("sent", size(traffic["up"]), f"per client and round, serialised; rows alone {size(traffic['up_rows'])}"),
        ("received", size(traffic["down"]), "per client and round, serialised"),
        ("time per round", duration(seconds["round"]), f"median; {duration(seconds['total'])} in all"),
        ("failed replies", _failed(clients["failed"]), _failures(clients["failed"])),
    )
    for row in rows:
        table.add_row(*row)
    return table


def runs_table(runs: Iterable[RunSummary]) -> Table:
    """Return a table with one line for each run, in the given order. No name breaks over two lines.

    The last column has the settings in which the runs differ, if there are any.
    """
    runs = list(runs)
    differ = _differing([run.config for run in runs])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for heading in ("rounds", "mean", "worst", "best (at)", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    if differ:
        table.add_column("settings that differ", no_wrap=True)
    for run in runs:
        summary, accuracy = run.summary, run.summary["accuracy"]
        best = NOTHING if accuracy["best"] is None else f"{percent(accuracy['best'])} ({accuracy['best_round']})"
        table.add_row(
            Text(plain(run.name)),
            _status(summary),
            str(summary["rounds"]),
            percent(accuracy["mean"]),
            percent(accuracy["worst_decile"]),
            best,
            size(summary["bytes"]["up"]),
            *([Text(plain(" ".join(f"{key}={run.config.get(key, NOTHING)}" for key in differ)))] if differ else []),
        )
    return table


# Settings that say where files are, or that the run's name and the other columns show.
_SHOWN_ELSEWHERE = {"strategy", "rounds", "output-dir", "state-dir", "data-dir", "resume"}


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings in which runs differ, but for those that their strategies decide."""
    decided = {key for key, value in RunConfig().to_mapping().items() if value == AUTO}
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if key not in _SHOWN_ELSEWHERE | decided and len({str(config.get(key)) for config in configs}) > 1
    ]


def _status(summary: Mapping[str, Any]) -> Text:
    status = plain(summary["status"])
    return Text(status, STATUS_STYLE.get(status, ""))


def _best_round(accuracy: Mapping[str, Any]) -> str:
    if accuracy["best"] is None:
        return "no round measured every client"
    return f"round {accuracy['best_round']}; chosen on test data, so optimistic"


def _failed(failed: Sequence[Mapping[str, Any]]) -> Text:
    return Text(str(len(failed)), "bold red" if failed else "")


def _failures(failed: Sequence[Mapping[str, Any]]) -> Text:
    lines = [
        plain(f"client {failure['client']}, round {failure['round']}: {failure['reason']}", limit=160)
        for failure in failed[:SHOWN_FAILURES]
    ]
    if len(failed) > SHOWN_FAILURES:
        lines.append(f"and {len(failed) - SHOWN_FAILURES} more, in summary.json")
    return Text("\n".join(lines))
