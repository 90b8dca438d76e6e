"""The sections of the report that show accuracies: the headline figures and the tables below the charts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isoproto.report.formats import NOTHING, counted, duration, percent, points, size
from isoproto.report.html import html_table, html_text, panels
from isoproto.report.run import Run
from isoproto.runs.evaluation import are_groups, pooled_accuracy
from isoproto.runs.metrics import History, accuracy_summary, decile_size

PROTOTYPE = "The nearest global prototype answers, not the head."


def cards_section(run: Run, history: History) -> str:
    """Return the headline figures, each with its meaning."""
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
        f'<dd class="meaning">{html_text(meaning)}</dd></div>'
        for title, figure, meaning in cards
    )
    return f'<dl class="cards">{"".join(shown)}</dl>'


def _evaluated(run: Run, history: History) -> str:
    """Return sentences that say which model was evaluated, on whose data, and when."""
    evaluated, total = (run.summary["clients"][key] for key in ("evaluated", "total"))
    if not evaluated:
        return "No client has been evaluated yet."
    last = int(history.rounds[-1]) if len(history.rounds) else run.summary["rounds"]
    who = f"all {total} clients" if evaluated == total > 1 else f"{evaluated} of {counted(total, 'client')}"
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


def groups_section(run: Run, history: History) -> str:
    """Return the tables of accuracy by architecture and by domain."""
    if not len(history.rounds):
        return ""
    domain = {share.client: share.domain for share in run.clients}
    domains = [domain.get(client, "") for client in history.clients]
    tables = [_group_table("By architecture", "architecture", history, history.models)]
    if are_groups(domains):
        tables.append(_group_table("By domain", "domain", history, domains))
    return f'<div class="grid">{panels(tables)}</div>'


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
    return html_table(
        caption,
        (heading, "clients", "before", "mean", "worst decile", "best decile"),
        rows,
        numbers=range(1, 6),
    )


def protocol_section(run: Run) -> str:
    """Return the tables of evaluations, of classes, of rounds that reach an accuracy, and of clients that join late."""
    evaluations = [line for line in run.metrics if line["kind"] == "evaluation"]
    if not evaluations:
        return ""
    rows = ([_evaluations(evaluations)], [table for table in (_classes(run), _goals(run), _late(run)) if table])
    return "".join(f'<div class="grid">{panels(tables)}</div>' for tables in rows if tables)


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
    rows.reverse()  # the last round is what people look for
    title = "Evaluations of all clients, the newest first"
    return html_table(title, ("round", *shown), rows, numbers=range(1, len(shown) + 1))


def _counts(line: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    return [entry["correct"] for entry in line["clients"]], [entry["total"] for entry in line["clients"]]


def _classes(run: Run) -> str:
    figures = run.summary["classes"]
    rows = zip(run.classes, map(percent, figures["accuracy"]), map(percent, figures["f1"]), strict=False)
    table = html_table("By class, all clients together", ("class", "accuracy", "F1"), rows, numbers=(1, 2))
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
    table = html_table("First round with at least", ("accuracy", *shown), rows, numbers=range(1, len(shown) + 1))
    return table if rows else ""


def _late(run: Run) -> str:
    late = run.summary["late"]
    joined = NOTHING if late["joined"] is None else late["joined"]
    rows = [
        (f"{counted(late['clients'], 'client')} kept from training before round", joined),
        ("their mean before that", percent(late["before"])),
        ("their mean at the end", percent(late["mean"])),
        ("mean of the others at the end", percent(late["others"])),
    ]
    return html_table("Clients that join late", ("what", "value"), rows, numbers=(1,)) if late["clients"] else ""
