"""Runs in the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from isoproto.metrics import decile_size
from isoproto.report.formats import NOTHING, duration, percent, plain, points, size
from isoproto.report.run import RunSummary

STATUS_STYLE = {"completed": "green", "failed": "bold red", "running": "yellow"}
SHOWN_FAILURES = 5


def summary_table(run: RunSummary) -> Table:
    """The figures of one run, each with what it means; printed at the end of a run.

    Args:
        run: A run or the summary of one, finished or in progress.

    Returns:
        A table for ``rich.console.Console.print``. Names and reasons that clients sent are shown as plain
        text, whatever they hold.
    """
    summary = run.summary
    accuracy, traffic, clients = summary["accuracy"], summary["bytes"], summary["clients"]
    k = decile_size(max(1, clients["evaluated"]))
    decile = "the {} client" if k == 1 else f"mean of the {k} {{}} clients"
    table = Table(title=Text(plain(run.name), style="bold"), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")

    table.add_row("status", _status(summary), Text(plain(summary["reason"])))
    table.add_row("rounds", str(summary["rounds"]), "")
    table.add_row(
        "accuracy, mean",
        Text(percent(accuracy["mean"]), "bold"),
        f"over {_clients(clients['evaluated'])} of {clients['total']}: own model, own test data",
    )
    table.add_row("accuracy, micro", percent(accuracy["micro"]), "each test sample counts the same")
    table.add_row("worst decile", percent(accuracy["worst_decile"]), decile.format("worst"))
    table.add_row("best decile", percent(accuracy["best_decile"]), decile.format("best"))
    table.add_row("spread", points(accuracy["std"]), "standard deviation over clients")
    table.add_row("best round", percent(accuracy["best"]), _best_round(accuracy))
    table.add_row("last five rounds", percent(accuracy["last5"]), "mean of the rounds' means")
    table.add_row(
        "nearest prototype",
        percent(accuracy["nearest_prototype"]),
        "the nearest global prototype answers instead of the head",
    )
    table.add_row("before training", percent(accuracy["initial"]), "mean before round 1")
    table.add_row(
        "bytes up",
        size(traffic["up"]),
        f"per client and round, serialised; the rows alone: {size(traffic['up_rows'])}",
    )
    table.add_row("bytes down", size(traffic["down"]), "per client and round, serialised")
    table.add_row(
        "time per round",
        duration(summary["seconds"]["round"]),
        f"median; {duration(summary['seconds']['total'])} in all",
    )
    table.add_row("failed replies", _failed(clients["failed"]), _failures(clients["failed"]))
    return table


def runs_table(runs: Iterable[RunSummary]) -> Table:
    """One line for each run, in the order given."""
    table = Table(title="Runs", title_justify="left")
    table.add_column("run", no_wrap=True)
    for heading in (
        "status",
        "rounds",
        "clients",
        "mean",
        "micro",
        "worst 10%",
        "best (round)",
        "up",
        "down",
        "round",
        "failed",
    ):
        table.add_column(heading, justify="left" if heading == "status" else "right", no_wrap=True)
    for run in runs:
        summary = run.summary
        accuracy, traffic, clients = summary["accuracy"], summary["bytes"], summary["clients"]
        best = f"{percent(accuracy['best'])} ({accuracy['best_round']})" if accuracy["best"] else NOTHING
        table.add_row(
            Text(plain(run.name)),
            _status(summary),
            str(summary["rounds"]),
            str(clients["total"]),
            percent(accuracy["mean"]),
            percent(accuracy["micro"]),
            percent(accuracy["worst_decile"]),
            best,
            size(traffic["up"]),
            size(traffic["down"]),
            duration(summary["seconds"]["round"]),
            _failed(clients["failed"]),
        )
    return table


def _clients(count: int) -> str:
    return f"{count} client" if count == 1 else f"{count} clients"


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
