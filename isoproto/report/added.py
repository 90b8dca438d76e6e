"""What federation added, in words: the line for the terminal, and the words and tables of the report."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from isoproto.report.formats import NOTHING, counted, gain, percent
from isoproto.report.html import html_table, panels
from isoproto.report.run import Run

SURE = 0.05  # a p-value from here on is not told apart from chance
CHANCE = "not told apart from chance"
PREDICTIONS = {
    "head": "its own network",
    "common": "the classifier made of everybody's data",
    "own": "its own classifier, from its own data alone",
    "joint": "these three together",
    "alone": "network and own classifier together, with nothing exchanged",
}


def added_line(summary: Mapping[str, Any]) -> str:
    r"""Return what the exchange added to the average client and to the average test sample, for the terminal.

    Args:
        summary: The content of ``summary.json``.

    Returns:
        One line; empty if the run has no prediction with nothing exchanged to compare with.

    Example:
        The line is broken here to fit the page:

        >>> clients = {"number": 20, "difference": 0.049, "low": 0.021, "high": 0.078, "alone": 0.861}
        >>> samples = {"difference": 0.031, "p": 0.0004}
        >>> print(added_line({"added": {"clients": clients, "samples": samples}}).replace(", +", ",\n+"))
        What the others added: +4.9 points [2.1, 7.8] for the average client,
        +3.1 points for the average test sample (exact p = 0.0004). Without any exchange the average client has 86.1%.
        >>> added_line({})
        ''
    """
    added = summary.get("added")
    if not added:
        return ""
    clients, samples = added["clients"], added["samples"]
    doubt = f"{CHANCE}, " if samples["p"] >= SURE else ""
    return (
        f"What the others added: {gain(clients['difference'])} points{_clients_note(clients)} for the average client, "
        f"{gain(samples['difference'])} points for the average test sample ({doubt}exact {_chance(samples['p'])}). "
        f"Without any exchange the average client has {percent(clients['alone'])}."
    )


def _clients_note(clients: Mapping[str, Any]) -> str:
    """Return the interval of the mean over clients, and a note if it contains 0 or is not known."""
    if clients["low"] is None:
        return f" ({counted(clients['number'], 'client')}: too few for an interval)"
    doubt = f" ({CHANCE})" if _open(clients) else ""
    return f" {_interval(clients)}{doubt}"


def _open(figures: Mapping[str, Any]) -> bool:
    """Return whether an interval contains 0."""
    return bool(figures["low"] <= 0 <= figures["high"])


def _interval(figures: Mapping[str, Any]) -> str:
    if figures["low"] is None:
        return NOTHING
    return f"[{gain(figures['low']).removeprefix('+')}, {gain(figures['high']).removeprefix('+')}]"


def _chance(p: float) -> str:
    """Return a p-value with two digits."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def words_section(run: Run) -> str:
    """Return what the comparison is, and what came out of it; empty without a prediction to compare with."""
    added = run.summary.get("added")
    if not added:
        return ""
    clients = added["clients"]
    text = (
        "Every client answers its test samples twice: with what it received from the others, and with what it made "
        "of its own data alone, by the same method. The difference is what the exchange added. For the average client "
        f"it is {gain(clients['difference'])} points{_clients_note(clients)}."
    )
    if clients["low"] is not None:
        text += " In brackets is the 95% interval: what to expect of the average of other clients like these."
    return f'<div class="panel"><p class="quiet">{escape(text)}</p></div>'


def tables_section(run: Run) -> str:
    """Return the tables of predictions, of the difference, and of clients by size; empty with one predictor."""
    predictors, added = run.summary.get("predictors"), run.summary.get("added")
    tables = [_predictions(predictors)] if predictors else []
    if added:
        tables += [_difference(added), *([_sizes(added["sizes"])] if added["sizes"] else [])]
    return panels(tables)


def _predictions(predictors: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        (PREDICTIONS.get(name, name), percent(figures["mean"]), percent(figures["micro"]))
        for name, figures in predictors.items()
    ]
    headings = ("a client predicts by", "average client", "all test samples")
    return html_table("Accuracy of each way to predict", headings, rows, numbers=(1, 2))


def _difference(added: Mapping[str, Any]) -> str:
    clients, samples = added["clients"], added["samples"]
    both = (clients, samples)
    rows = [
        ("with the exchange", *(percent(each["exchanged"]) for each in both)),
        ("with nothing exchanged", *(percent(each["alone"]) for each in both)),
        ("difference in points", *(gain(each["difference"]) for each in both)),
        ("its 95% interval", *(_interval(each) for each in both)),
        ("better with the exchange", counted(clients["gain"], "client"), counted(samples["gained"], "sample")),
        ("better without it", counted(clients["lose"], "client"), counted(samples["lost"], "sample")),
        ("chance of such a difference by luck", NOTHING, _chance(samples["p"])),
    ]
    headings = ("", "average client", "all test samples")
    return html_table("What the exchange added", headings, rows, numbers=(1, 2))


def _sizes(sizes: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            _range(third["smallest"], third["largest"]),
            third["clients"],
            percent(third["alone"]),
            percent(third["exchanged"]),
            gain(third["difference"]),
        )
        for third in sizes
    ]
    headings = ("training samples of the client", "clients", "nothing exchanged", "exchanged", "points")
    return html_table("By size of client, about a third of them each", headings, rows, numbers=range(1, 5))


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
