"""The report of a run: one HTML page that needs nothing but itself."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoproto.client_names import client_order
from isoproto.paths import write_atomically
from isoproto.report import charts, template
from isoproto.report.charts import Chart
from isoproto.report.formats import NOTHING, cosine, duration, percent, plain, points, size
from isoproto.report.run import Run, hyper_figures, read_run
from isoproto.runs.evaluation import pooled_accuracy
from isoproto.runs.metrics import History, accuracy_history, accuracy_summary, decile_size

SHOWN_FAILURES = 500
PROTOTYPE = "The nearest global prototype answers, not the head."
FACTS = ("data", "partition", "alpha", "rounds", "fraction", "seed")  # run-config keys in the header


def write_report(folder: Path | str) -> Path:
    """Write ``report.html`` and ``plots/*.svg`` of a run, finished or in progress.

    The page holds its style and its drawings, asks the network for nothing and runs no script. It depends on
    the run folder alone, so writing it twice gives the same bytes.

    Args:
        folder: The run folder.

    Returns:
        The path of ``report.html``.

    Raises:
        StateError: If the folder cannot be read, see :func:`isoproto.report.read_run`, or not be written.
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
    drawn = (
        charts.accuracy_by_round(history),
        charts.accuracy_by_client(history),
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
        ("Result", _notice(run) + _cards(run, history)),
        ("Accuracy", figures("accuracy", "clients") + _groups(run, history) + _protocol(run)),
        ("Data", figures("partition")),
        ("What the server learned", figures("matching") + _learned(run) + figures("similarity")),
        ("Training, traffic and failures", figures("losses", "bytes", "seconds", extra=_failures(run))),
        ("Clients", _clients(run, history)),
        ("Settings", _settings(run)),
        ("Repeat this run", _repeat(run)),
    )
    return template.page(
        title=f"{_text(run.summary['strategy'])} · {_text(run.name)}",
        header=_header(run),
        main="\n".join(f"<section><h2>{title}</h2>{body}</section>" for title, body in sections if body),
    )


def _header(run: Run) -> str:
    status = _text(run.summary["status"])
    models = sorted({share.model for share in run.clients})
    facts: dict[str, object] = {"clients": len(run.clients) or run.summary["clients"]["total"]}
    facts["architectures"] = ", ".join(models) if len(models) <= 6 else len(models)
    facts |= {key: run.config.get(key, "") for key in FACTS}
    if not str(facts["partition"]).startswith("dirichlet"):
        del facts["alpha"]
    shown = "".join(
        f"<div><dt>{_text(key)}</dt><dd>{_text(value)}</dd></div>" for key, value in facts.items() if value != ""
    )
    return (
        '<p class="kicker">isoproto run report</p>'
        f'<h1>{_text(run.summary["strategy"] or "run")}</h1> <span class="pill {status}">{status}</span>'
        f'<p class="name">{_text(run.name)}</p>'
        f'<dl class="facts">{shown}</dl>'
    )


def _notice(run: Run) -> str:
    """What a reader must know before the figures, if anything."""
    summary = run.summary
    if summary["status"] == "running":
        text = (
            f"In progress: {summary['rounds']} of {run.config.get('rounds', '?')} rounds are done. "
            "The figures are those so far; make the report again for newer ones."
        )
    elif summary["status"] == "failed":
        text = f"The run failed: {summary['reason']}"
    else:
        return ""
    return f'<p class="notice {summary["status"]}"><span>{_text(text)}</span></p>'


def _cards(run: Run, history: History) -> str:
    """The headline figures, each with what it means."""
    accuracy, traffic, seconds = (run.summary[part] for part in ("accuracy", "bytes", "seconds"))
    evaluated, failed = run.summary["clients"]["evaluated"], run.summary["clients"]["failed"]
    k = decile_size(max(1, evaluated))
    decile = "The client" if k == 1 else f"Mean of the {k} clients"
    rows, rounds = size(traffic["up_rows"]), duration(seconds["total"])
    cards = (
        ("Mean accuracy", percent(accuracy["mean"]), _evaluated(run, history)),
        ("Sample-weighted", percent(accuracy["micro"]), "Each test sample counts the same."),
        ("Worst decile", percent(accuracy["worst_decile"]), f"{decile} with the lowest accuracy."),
        ("Best decile", percent(accuracy["best_decile"]), f"{decile} with the highest accuracy."),
        ("Spread", points(accuracy["std"]), "Standard deviation of accuracy over the clients."),
        ("Best round", percent(accuracy["best"]), _best(accuracy)),
        ("Last five rounds", percent(accuracy["last5"]), "Mean of their mean accuracies; no round is chosen."),
        ("Nearest prototype", percent(accuracy["nearest_prototype"]), PROTOTYPE),
        ("Sent", size(traffic["up"]), f"Per client and round, as serialised. The rows alone: {rows}."),
        ("Received", size(traffic["down"]), "Per client and round, as serialised."),
        ("Time per round", duration(seconds["round"]), f"Median. All rounds: {rounds}."),
        ("Failed replies", len(failed), "Left out of their round." if failed else "Every reply was used."),
    )
    shown = (
        f'<div class="card"><dt>{title}</dt><dd class="figure">{figure}</dd>'
        f'<dd class="meaning">{_text(meaning)}</dd></div>'
        for title, figure, meaning in cards
    )
    return f'<dl class="cards">{"".join(shown)}</dl>'


def _evaluated(run: Run, history: History) -> str:
    """Which model was evaluated, on whose data, and when."""
    evaluated, total = (run.summary["clients"][key] for key in ("evaluated", "total"))
    if not evaluated:
        return "No client has been evaluated yet."
    last = int(history.rounds[-1]) if len(history.rounds) else run.summary["rounds"]
    who = f"all {total} clients" if evaluated == total > 1 else f"{evaluated} of {_count(total, 'client')}"
    when = f"after round {last}" if last else "before training"
    sentences = [f"Mean over {who} {when}: each client's own model, by its own head, on that client's own test data."]
    if len(history.rounds) and not history.complete[-1]:
        sentences.append("Clients not asked in that round count with their last value.")
    if history.has_start:
        sentences.append(f"Before any training: {percent(run.summary['accuracy']['initial'])}.")
    return " ".join(sentences)


def _best(accuracy: Mapping[str, Any]) -> str:
    if accuracy["best"] is None:
        return "No round measured every client."
    return f"Round {accuracy['best_round']}. Chosen on test data, so optimistic."


def _figure(chart: Chart) -> str:
    return (
        f'<figure class="{"wide" if chart.wide else "half"}"><h3>{_text(chart.title)}</h3>'
        f'<div class="scroll" tabindex="0">{charts.themed(chart)}</div>'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def _groups(run: Run, history: History) -> str:
    """Accuracy by architecture and by domain, as tables."""
    if not len(history.rounds):
        return ""
    domain = {share.client: share.domain for share in run.clients}
    domains = [domain.get(client, "") for client in history.clients]
    tables = [_group_table("By architecture", "architecture", history, history.models)]
    if any(domains):
        tables.append(_group_table("By domain", "domain", history, domains))
    return f'<div class="grid">{_panels(tables)}</div>'


def _group_table(caption: str, heading: str, history: History, groups: Sequence[str]) -> str:
    rows = []
    for group in sorted(set(groups)):
        columns = np.array(groups) == group
        final = accuracy_summary(history.correct[-1, columns], history.total[-1, columns])
        first = accuracy_summary(history.correct[0, columns], history.total[0, columns])
        rows.append(
            [
                group or NOTHING,
                int(columns.sum()),
                percent(first["mean"]) if history.has_start else NOTHING,
                percent(final["mean"]),
                percent(final["worst_decile"]),
                percent(final["best_decile"]),
            ]
        )
    return _table(
        caption,
        (heading, "clients", "before", "mean", "worst decile", "best decile"),
        rows,
        numbers=range(1, 6),
    )


def _protocol(run: Run) -> str:
    """What the papers report besides: each evaluation, each class, rounds to an accuracy, clients that came late."""
    evaluations = [line for line in run.metrics if line["kind"] == "evaluation"]
    if not evaluations:
        return ""
    rows = ([_evaluations(evaluations)], [table for table in (_classes(run), _goals(run), _late(run)) if table])
    return "".join(f'<div class="grid">{_panels(tables)}</div>' for tables in rows if tables)


def _evaluations(evaluations: Sequence[Mapping[str, Any]]) -> str:
    columns = {
        "mean": lambda line: accuracy_summary(*_counts(line))["mean"],
        "sample-weighted": lambda line: pooled_accuracy(line["clients"]),
        "macro-F1": lambda line: line.get("macro_f1"),
        "mean of classes": lambda line: line.get("balanced_accuracy"),
        "mean of domains": lambda line: line.get("domain_mean"),
        "averaged model, all test data": lambda line: line.get("global_accuracy"),
        "clients that join late": lambda line: line.get("late_mean"),
    }
    figures = {name: [figure(line) for line in evaluations] for name, figure in columns.items()}
    shown = {name: values for name, values in figures.items() if any(value is not None for value in values)}
    rows = [[line["round"], *(percent(values[i]) for values in shown.values())] for i, line in enumerate(evaluations)]
    return _table("Evaluations of all clients", ("round", *shown), rows, numbers=range(1, len(shown) + 1))


def _counts(line: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    return [entry["correct"] for entry in line["clients"]], [entry["total"] for entry in line["clients"]]


def _classes(run: Run) -> str:
    figures = run.summary["classes"]
    rows = zip(run.classes, map(percent, figures["accuracy"]), map(percent, figures["f1"]), strict=False)
    table = _table("By class, all clients together", ("class", "accuracy", "F1"), rows, numbers=(1, 2))
    return table if figures["accuracy"] else ""


def _goals(run: Run) -> str:
    columns = {
        "mean": run.summary["rounds_to"],
        "mean of domains": run.summary["domains"].get("rounds_to", {}),
        "averaged model, all test data": run.summary["global"].get("rounds_to", {}),
    }
    shown = {name: reached for name, reached in columns.items() if any(r is not None for r in reached.values())}
    found = {level: [reached.get(level) for reached in shown.values()] for level in run.summary["rounds_to"]}
    rows = [
        [percent(float(level)), *(NOTHING if r is None else r for r in rounds)]
        for level, rounds in found.items()
        if any(r is not None for r in rounds)
    ]
    table = _table("First round with at least", ("accuracy", *shown), rows, numbers=range(1, len(shown) + 1))
    return table if rows else ""


def _late(run: Run) -> str:
    late = run.summary["late"]
    joined = NOTHING if late["joined"] is None else late["joined"]
    rows = [
        (f"{_count(late['clients'], 'client')} kept from training before round", joined),
        ("their mean before that", percent(late["before"])),
        ("their mean at the end", percent(late["mean"])),
        ("mean of the others at the end", percent(late["others"])),
    ]
    return _table("Clients that join late", ("what", "value"), rows, numbers=(1,)) if late["clients"] else ""


def _learned(run: Run) -> str:
    """Where the hyper-prototypes are, and whether clients wanted them there, after the last round that says so."""
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
    return f'<div class="panel"><p class="quiet">{_text(text)}</p></div>'


def _failures(run: Run) -> str:
    failed = run.summary["clients"]["failed"]
    if not failed:
        return '<div class="panel"><h3>Failed replies</h3><p class="quiet">None: every reply was used.</p></div>'
    rows = [(failure["round"], failure["client"], failure["reason"]) for failure in failed[:SHOWN_FAILURES]]
    table = _table("", ("round", "client", "reason"), rows, long=(2,))
    left = len(failed) - len(rows)
    more = f'<p class="quiet">{left} more are in metrics.jsonl.</p>' if left else ""
    return f'<div class="panel"><h3>Failed replies</h3><div class="tall" tabindex="0">{table}</div>{more}</div>'


def _clients(run: Run, history: History) -> str:
    """Every client with its data and its accuracies."""
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
    table = _table("", headings, rows, numbers=range(3, 10))
    return (
        f'<details class="panel"><summary>{_count(len(names), "client")}, with data and accuracy</summary>'
        f'<div class="tall" tabindex="0">{table}</div></details>'
    )


def _cell(accuracy: NDArray[np.float64], row: int, column: int | None) -> str:
    if column is None or not len(accuracy) or np.isnan(accuracy[row, column]):
        return NOTHING
    return percent(float(accuracy[row, column]))


def _by_prototype(run: Run) -> dict[str, float]:
    """Each client's accuracy by the nearest global prototype, from the last evaluation."""
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
    tables = [_table("Run config", ("key", "value"), sorted(run.config.items()), long=(1,))]
    if versions:
        tables.append(_table("Versions", ("what", "version"), versions.items(), long=(1,)))
    return f'<div class="grid top">{_panels(tables)}</div>'


def _repeat(run: Run) -> str:
    command = ["flwr", "run", ".", "--stream", "--run-config", str(run.folder.absolute() / "config.toml")]
    names = [share.client for share in run.clients]
    if names and all(name.isdecimal() for name in names):  # partition ids: a simulation
        command += ["--federation-config", f"num-supernodes={len(names)} client-resources-num-cpus=1"]
    lines = [shlex.join(command)]
    if run.summary.get("git_commit"):
        lines.insert(0, shlex.join(["git", "checkout", str(run.summary["git_commit"]).removesuffix("-dirty")]))
    return (
        '<div class="panel"><p class="quiet">In a checkout of the code, with the environment active:</p>'
        f"<pre>{escape(chr(10).join(plain(line, limit=4000) for line in lines))}</pre></div>"
    )


def _table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Iterable[int] = (),
    long: Iterable[int] = (),
) -> str:
    """An HTML table of plain values; the first column heads its row."""
    kinds = {**dict.fromkeys(numbers, ' class="n"'), **dict.fromkeys(long, ' class="long"')}

    def cell(column: int, value: object, scope: str = "") -> str:
        start, end = (f'th scope="{scope}"', "th") if scope else ("td", "td")
        return f"<{start}{kinds.get(column, '')}>{_text(value)}</{end}>"

    head = "".join(cell(i, heading, "col") for i, heading in enumerate(headings))
    body = "".join(
        f"<tr>{''.join(cell(i, value, '' if i else 'row') for i, value in enumerate(row))}</tr>" for row in rows
    )
    title = f"<caption>{_text(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _panels(tables: Iterable[str]) -> str:
    return "".join(f'<div class="panel"><div class="tall" tabindex="0">{table}</div></div>' for table in tables)


def _text(value: object) -> str:
    """Any value as the text of an element or attribute, whoever sent it."""
    return escape(plain(value))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
