"""The report of a run: one HTML page without any other files."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoproto.client_names import client_order
from isoproto.config import RunConfig
from isoproto.paths import write_atomically
from isoproto.report import charts, template
from isoproto.report.accuracy import cards_section, groups_section, protocol_section
from isoproto.report.added import tables_section, words_section
from isoproto.report.charts import Chart
from isoproto.report.formats import NOTHING, cosine, counted, percent, plain
from isoproto.report.html import html_table, html_text, panels
from isoproto.report.privacy import privacy_line
from isoproto.report.run import Run, hyper_figures, read_run
from isoproto.runs.metrics import History, accuracy_history

SHOWN_FAILURES = 500
FACTS = ("data", "partition", "alpha", "rounds", "fraction", "seed")  # run-config keys in the header


def write_report(folder: Path | str) -> Path:
    """Write ``report.html`` and ``plots/*.svg`` of a run, finished or in progress.

    The page contains its style and its drawings. It loads nothing and runs no script. It depends on the run folder
    alone, so writing it twice gives the same bytes.

    Args:
        folder: The run folder.

    Returns:
        The path of ``report.html``.

    Raises:
        StateError: If the folder cannot be read (see :func:`isoproto.report.read_run`), or cannot be written.
    """
    run = read_run(folder)
    history = accuracy_history(run.metrics)
    drawings = _charts(run, history)
    for chart in drawings.values():
        write_atomically(run.folder / "plots" / f"{chart.name}.svg", chart.svg.encode())
    report = run.folder / "report.html"
    write_atomically(report, _page(run, history, drawings).encode())
    return report


def _charts(run: Run, history: History) -> dict[str, Chart]:
    rounds = [line for line in run.metrics if line["kind"] == "round"]
    evaluations = [line["clients"] for line in run.metrics if line["kind"] == "evaluation"]
    drawn = (
        charts.accuracy_by_round(history),
        charts.accuracy_by_client(history),
        charts.exchanged_against_alone(evaluations[-1] if evaluations else ()),
        charts.partition(run.classes, run.clients),
        charts.matching_by_round(rounds),
        charts.class_similarity(rounds, run.classes),
        charts.losses_by_round(rounds),
        charts.bytes_by_round(rounds),
        charts.seconds_by_round(rounds),
    )
    return {chart.name: chart for chart in drawn if chart}


def _page(run: Run, history: History, drawings: Mapping[str, Chart]) -> str:
    def figures(*names: str, extra: str = "") -> str:
        shown = "".join(_figure(drawings[name]) for name in names if name in drawings) + extra
        return f'<div class="grid">{shown}</div>' if shown else ""

    sections = (
        ("Result", _notice(run) + cards_section(run, history)),
        ("Accuracy", figures("accuracy", "clients") + groups_section(run, history) + protocol_section(run)),
        ("What federation added", words_section(run) + figures("added", extra=tables_section(run))),
        ("Data", figures("partition")),
        ("What the server learned", figures("matching") + _learned(run) + _privacy(run) + figures("similarity")),
        ("Training, traffic and failures", figures("losses", "bytes", "seconds", extra=_failures(run))),
        ("Clients", _clients(run, history)),
        ("Settings", _settings(run)),
        ("Repeat this run", _repeat(run)),
    )
    return template.page(
        title=f"{html_text(run.summary['strategy'])} · {html_text(run.name)}",
        header=_header(run),
        main="\n".join(f"<section><h2>{title}</h2>{body}</section>" for title, body in sections if body),
    )


def _header(run: Run) -> str:
    status = html_text(run.summary["status"])
    models = sorted({share.model for share in run.clients})
    facts: dict[str, object] = {"clients": len(run.clients) or run.summary["clients"]["total"]}
    facts["architectures"] = ", ".join(models) if len(models) <= 6 else len(models)
    facts |= {key: run.config.get(key, "") for key in FACTS}
    if not str(facts["partition"]).startswith("dirichlet"):
        del facts["alpha"]
    shown = "".join(
        f"<div><dt>{html_text(key)}</dt><dd>{html_text(value)}</dd></div>"
        for key, value in facts.items()
        if value != ""
    )
    return (
        '<p class="kicker">isoproto run report</p>'
        f'<h1>{html_text(run.summary["strategy"] or "run")}</h1> <span class="pill {status}">{status}</span>'
        f'<p class="name">{html_text(run.name)}</p>'
        f'<dl class="facts">{shown}</dl>'
    )


def _notice(run: Run) -> str:
    """Return a note that the run has not ended, or has failed; empty for a completed run."""
    summary = run.summary
    if summary["status"] == "running":
        text = (
            f"In progress: {summary['rounds']} of {run.config.get('rounds', '?')} rounds are done. "
            "The figures are those so far; make the report again for newer ones."
        )
    elif summary["status"] in ("interrupted", "stopped"):
        text = (
            f"Stopped before its end: {_rounds_done(run)} of {run.config.get('rounds', '?')} rounds are done. "
            f"Go on with: isoproto resume {run.name}"
        )
    elif summary["status"] == "failed":
        text = f"The run failed: {summary['reason']}"
    else:
        return ""
    return f'<p class="notice {summary["status"]}"><span>{html_text(text)}</span></p>'


def _rounds_done(run: Run) -> int:
    return sum(line["kind"] == "round" for line in run.metrics)


def _figure(chart: Chart) -> str:
    return (
        f'<figure class="{"wide" if chart.wide else "half"}"><h3>{html_text(chart.title)}</h3>'
        f'<div class="scroll" tabindex="0">{charts.themed(chart)}</div>'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def _learned(run: Run) -> str:
    """Return a sentence about the hyper-prototypes, from the last round that has figures of them."""
    known = [line for line in run.metrics if line["kind"] == "round" and hyper_figures(line)]
    if not known:
        return ""
    hyper = hyper_figures(known[-1])
    anchors = hyper.get("anchor_cosine") or {}
    sentences = []
    if hyper.get("movement") is not None:
        sentences.append(f"hyper-prototypes have moved by {percent(hyper['movement'])} of their length at the start")
    if anchors.get("mean") is not None:
        least = f" (least {cosine(anchors['min'])})" if anchors.get("min") is not None else ""
        sentences.append(f"the anchors of two classes have a mean cosine of {cosine(anchors['mean'])}{least}")
    if hyper.get("agreement") is not None:
        sentences.append(f"two clients' gradients of a class agree with a mean cosine of {cosine(hyper['agreement'])}")
    if not sentences:
        return ""
    text = f"After round {known[-1]['round']}: {'; '.join(sentences)}."
    return f'<div class="panel"><p class="quiet">{html_text(text)}</p></div>'


def _privacy(run: Run) -> str:
    """Return what noise promises; empty for a run without noise."""
    line = privacy_line(run.summary)
    return f'<div class="panel"><p class="quiet">{html_text(line)}</p></div>' if line else ""


def _failures(run: Run) -> str:
    failed = run.summary["clients"]["failed"]
    if not failed:
        return '<div class="panel"><h3>Failed replies</h3><p class="quiet">None: every reply was used.</p></div>'
    rows = [(failure["round"], failure["client"], failure["reason"]) for failure in failed[:SHOWN_FAILURES]]
    table = html_table("", ("round", "client", "reason"), rows, long=(2,))
    left = len(failed) - len(rows)
    more = f'<p class="quiet">{left} more are in metrics.jsonl.</p>' if left else ""
    return f'<div class="panel"><h3>Failed replies</h3><div class="tall" tabindex="0">{table}</div>{more}</div>'


def _clients(run: Run, history: History) -> str:
    """Return the table of all clients, with their data and accuracies."""
    share = {share.client: share for share in run.clients}
    column = {client: index for index, client in enumerate(history.clients)}
    names = sorted(share.keys() | column.keys(), key=client_order)
    if not names:
        return ""
    accuracy = history.accuracy()
    prototype = _by_prototype(run)
    failed = Counter(str(failure["client"]) for failure in run.summary["clients"]["failed"])
    rows = []
    for name in names:
        data, index = share.get(name), column.get(name)
        rows.append(
            [
                name,
                data.model if data else history.models[column[name]],
                (data and data.domain) or NOTHING,
                np.count_nonzero(data.train) if data else NOTHING,
                sum(data.train) if data else NOTHING,
                sum(data.test) if data else NOTHING,
                _cell(accuracy, 0, index) if history.has_start else NOTHING,
                _cell(accuracy, -1, index),
                percent(prototype.get(name)),
                failed[name] or "",
            ]
        )
    data_headings = ("client", "architecture", "domain", "classes", "train", "test")
    headings = (*data_headings, "before", "final", "prototype", "failed")
    table = html_table("", headings, rows, numbers=range(3, 10))
    return (
        f'<details class="panel"><summary>{counted(len(names), "client")}, with data and accuracy</summary>'
        f'<div class="tall" tabindex="0">{table}</div></details>'
    )


def _cell(accuracy: NDArray[np.float64], row: int, column: int | None) -> str:
    if column is None or not len(accuracy) or np.isnan(accuracy[row, column]):
        return NOTHING
    return percent(float(accuracy[row, column]))


def _by_prototype(run: Run) -> dict[str, float]:
    """Return each client's accuracy when the nearest global prototype predicts, from the last evaluation."""
    evaluations = [line for line in run.metrics if line["kind"] == "evaluation"]
    return {
        str(entry["client"]): entry["correct_prototype"] / entry["total"]
        for line in evaluations[-1:]
        for entry in line["clients"]
        if entry.get("correct_prototype") is not None and entry["total"]
    }


def _settings(run: Run) -> str:
    versions = dict(run.summary.get("versions") or {})
    for key in ("git_commit", "fingerprint"):
        if run.summary.get(key):
            versions[key.replace("_", " ")] = run.summary[key]
    tables = [html_table("Run config", ("key", "value"), sorted(run.config.items()), long=(1,))]
    if versions:
        tables.append(html_table("Versions", ("what", "version"), versions.items(), long=(1,)))
    return f'<div class="grid top">{panels(tables)}</div>'


# Settings that name folders of the machine that the run was on.
_FOLDERS = ("output-dir", "state-dir", "data-dir", "resume")


def _typed(value: object) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, str):
        return f"'{value}'" if "'" not in value else json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _repeat(run: Run) -> str:
    """Return the commands that repeat the run, also on another machine: they hold no folder of this one."""
    defaults = RunConfig().to_mapping()
    settings = {
        key: value
        for key, value in run.config.items()
        if key in defaults and value != defaults[key] and key not in (*_FOLDERS, "clients")
    }
    typed = " ".join(f"{key}={_typed(value)}" for key, value in settings.items())
    names = [share.client for share in run.clients]
    if all(name.isdecimal() for name in names):  # partition ids: a simulation
        command = ["isoproto", "run", "-c", typed, "--clients", str(len(names) or run.config.get("clients") or 20)]
    else:
        command = ["flwr", "run", ".", "isoproto", "--stream", "-c", typed]
    lines = [shlex.join(command)]
    if run.summary.get("git_commit"):
        lines.insert(0, shlex.join(["git", "checkout", str(run.summary["git_commit"]).removesuffix("-dirty")]))
    return (
        '<div class="panel"><p class="quiet">In a checkout of the code, with the environment active:</p>'
        f"<pre>{escape(chr(10).join(plain(line, limit=4000) for line in lines))}</pre></div>"
    )
