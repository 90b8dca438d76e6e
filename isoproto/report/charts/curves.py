"""The charts of values against the round: accuracy, losses, traffic, time, gradient matching."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isoproto.report.charts.svg import (
    FULL,
    Chart,
    add_legend,
    hex_colour,
    main_style,
    new_axes,
    percent_limits,
    plain_log_ticks,
    render,
    round_ticks,
    series_style,
)
from isoproto.report.formats import plain, size
from isoproto.report.labels import loss_label
from isoproto.report.run import hyper_figures
from isoproto.runs.metrics import AccuracySummary, History, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = 60  # up to so many rounds, every step of gradient matching is drawn


def accuracy_by_round(history: History) -> Chart | None:
    """Draw the mean over all clients, the band between the deciles, and the mean of each architecture."""
    rows = history.summaries()
    mean, worst, best = (_percents(rows, key) for key in ("mean", "worst_decile", "best_decile"))
    if not np.isfinite(mean).any():
        return None

    def draw(figure: "Figure") -> None:
        axes = new_axes(figure, "round", "accuracy, %")
        band: dict[str, Any] = {"color": hex_colour("ink"), "alpha": 0.10, "linewidth": 0}
        axes.fill_between(history.rounds, worst, best, label="worst to best decile", **band)
        for index, model in enumerate(sorted(set(history.models))):
            kept = history.of_model(model)
            values = _percents(history.summaries(kept), "mean")
            label = f"{plain(model, 24)} ({kept.sum()})"
            axes.plot(history.rounds, values, label=label, **series_style(index, len(values)))
        axes.plot(history.rounds, mean, label="all clients", **main_style(len(mean)))
        round_ticks(axes, history.rounds)
        percent_limits(axes)
        add_legend(figure, axes)

    known = np.flatnonzero(np.isfinite(mean))
    first, last = (f"{mean[i]:.1f}% at round {history.rounds[i]}" for i in known[[0, -1]])
    return render(
        "accuracy",
        "Accuracy per round",
        draw,
        alt=f"Mean accuracy over all clients against the round: {first}, {last}.",
        caption="Each client's own model on its own test data. The band joins the mean of the worst tenth of "
        "the clients to that of the best; thin lines are the means of one architecture (number of clients). A "
        "client that was not asked in a round keeps its last value.",
    )


def losses_by_round(rounds: Sequence[Line]) -> Chart | None:
    """Draw every loss term that the clients reported, as the mean over the clients of a round."""
    terms = list(dict.fromkeys(term for line in rounds for term in line.get("loss") or {}))
    values = {term: _column(rounds, "loss", term) for term in terms}
    # A term that is always zero does not belong to the method.
    values = {term: column for term, column in values.items() if np.nan_to_num(column, posinf=1, neginf=1).any()}
    if not values:
        return None
    drawn = np.concatenate(list(values.values()))
    log = _wide_range(drawn)

    def draw(figure: "Figure") -> None:
        axes = new_axes(figure, "round", "loss (log scale)" if log else "loss")
        x = _rounds(rounds)
        for index, term in enumerate(term for term in values if term != "total"):
            axes.plot(x, values[term], label=loss_label(term), **series_style(index, len(x)))
        if "total" in values:
            axes.plot(x, values["total"], label="total", **main_style(len(x)))
        _loss_scale(axes, drawn)
        round_ticks(axes, x)
        add_legend(figure, axes)

    return render(
        "losses",
        "Training loss",
        draw,
        alt="Loss terms against the round. Last values: "
        + ", ".join(f"{loss_label(term)} {column[~np.isnan(column)][-1]:.3g}" for term, column in values.items())
        + ".",
        caption="Mean over the clients that trained in the round. Terms are shown before their weights; the total "
        "is what was minimised.",
    )


def bytes_by_round(rounds: Sequence[Line]) -> Chart | None:
    """Draw the bytes that all clients of a round sent and received together."""
    ways = {
        "up": "up, as serialised",
        "up_rows": "up, payload rows alone",
        "down": "down, as serialised",
    }
    values = {way: _column(rounds, "bytes", way) for way in ways}
    if not any(np.isfinite(column).any() for column in values.values()):
        return None
    top = max(float(np.nanmax(column)) for column in values.values() if np.isfinite(column).any())
    power = min(3, max(0, int(np.log10(max(top, 1)) // 3)))

    def draw(figure: "Figure") -> None:
        axes = new_axes(figure, "round", f"{('B', 'kB', 'MB', 'GB')[power]} per round, all clients")
        x = _rounds(rounds)
        for way, index, style in (("up", 0, "-"), ("up_rows", 0, ":"), ("down", 1, "-")):
            look = {**series_style(index, len(x)), "linestyle": style}
            axes.plot(x, values[way] / 1000**power, label=ways[way], **look)
        axes.set_ylim(0, 1.08 * top / 1000**power or 1)
        round_ticks(axes, x)
        add_legend(figure, axes)

    return render(
        "bytes",
        "Traffic per round",
        draw,
        alt="Bytes against the round, all clients together. Means per round: "
        + ", ".join(
            f"{words} {size(float(np.nanmean(values[way])))}"
            for way, words in ways.items()
            if np.isfinite(values[way]).any()
        )
        + ".",
        caption="The sum over the clients of a round, in decimal units. The gap between the solid and the "
        "dotted line is what names, shapes, metrics and the encoding cost.",
    )


def seconds_by_round(rounds: Sequence[Line]) -> Chart | None:
    """Draw the wall-clock time of a round and of its parts."""
    parts = {"train": "training", "server": "server step"}
    values = {part: _column(rounds, "seconds", part) for part in ("round", *parts)}
    if not np.isfinite(values["round"]).any():
        return None

    def draw(figure: "Figure") -> None:
        axes = new_axes(figure, "round", "seconds")
        x = _rounds(rounds)
        for index, (part, words) in enumerate(parts.items()):
            if np.isfinite(values[part]).any():
                axes.plot(x, values[part], label=words, **series_style(index, len(x)))
        axes.plot(x, values["round"], label="whole round", **main_style(len(x)))
        axes.set_ylim(bottom=0)
        round_ticks(axes, x)
        add_legend(figure, axes)

    return render(
        "seconds",
        "Time per round",
        draw,
        alt=f"Seconds against the round; a whole round takes {np.nanmedian(values['round']):.3g} s (median).",
        caption="Wall-clock time on the machines of this run; other work on them shows here.",
    )


def matching_by_round(rounds: Sequence[Line]) -> Chart | None:
    """Draw the gradient-matching loss L_GM within each round; with many rounds, only its first and last values."""
    every = {line["round"]: np.array(hyper_figures(line).get("matching") or (), dtype=np.float64) for line in rounds}
    curves = {round_: curve[np.isfinite(curve)] for round_, curve in every.items() if np.isfinite(curve).any()}
    if not curves:
        return None
    x, drawn = np.array(list(curves)), np.concatenate(list(curves.values()))
    before, after = (np.array([curve[i] for curve in curves.values()]) for i in (0, -1))
    whole = len(curves) <= CURVES
    reach = 0.4 if whole else 0.0  # a round's curve stands around its tick, with a gap to the next one

    def draw(figure: "Figure") -> None:
        axes = new_axes(figure, "round", "L_GM per class (log scale)" if _wide_range(drawn) else "L_GM per class")
        colour = hex_colour("series-0")
        for round_, curve in curves.items() if whole else ():
            axes.plot(round_ + np.linspace(-reach, reach, len(curve)), curve, color=colour, linewidth=2)
        ends: dict[str, Any] = {"color": colour, "markersize": 6, "linewidth": 2}
        ends |= {"linestyle": "", "marker": "o"} if whole else {"linestyle": "-"}
        start = {"markerfacecolor": hex_colour("panel")} if whole else {"linestyle": ":"}
        axes.plot(x - reach, before, label="before the first step", **{**ends, **start})
        axes.plot(x + reach, after, label="after the last step", **ends)
        _loss_scale(axes, drawn)
        round_ticks(axes, x)
        add_legend(figure, axes)

    falls = [f"from {before[i]:.3g} to {after[i]:.3g} in round {x[i]}" for i in sorted({0, len(x) - 1})]
    return render(
        "matching",
        "Gradient matching",
        draw,
        alt=f"Gradient-matching loss per class within each round: {', '.join(falls)}.",
        caption="The gradients that hyper-prototypes give, against those of the clients' real samples: L_GM, mean over "
        "the classes matched in the round. "
        + ("Each curve runs over the steps of one round. " if whole else "")
        + "Clients and heads have changed by the next round, so it starts anew from there.",
        width=FULL,
    )


def _wide_range(values: NDArray[np.float64]) -> bool:
    """Return whether losses need a logarithmic scale: they are positive (or exactly zero) and far apart."""
    values = values[np.isfinite(values) & (values != 0)]
    return values.size > 0 and bool(values.min() > 0 and values.max() > 30 * values.min())


def _loss_scale(axes: "Axes", values: NDArray[np.float64]) -> None:
    """Set a logarithmic scale where it is needed, else one that starts at zero."""
    if _wide_range(values):
        axes.set_yscale("log", nonpositive="mask")
        plain_log_ticks(axes)
    else:
        axes.set_ylim(bottom=min([0.0, *values[np.isfinite(values)]]))


def _rounds(lines: Sequence[Line]) -> NDArray[np.int64]:
    return np.array([line["round"] for line in lines], dtype=np.int64)


def _column(lines: Sequence[Line], part: str, key: str) -> NDArray[np.float64]:
    """Return ``line[part][key]`` of every line; NaN where it is missing or null."""
    return np.array([(line.get(part) or {}).get(key) for line in lines], dtype=np.float64)


def _percents(rows: Sequence[AccuracySummary], key: str) -> NDArray[np.float64]:
    """Return one figure of every row in per cent; NaN where it is unknown."""
    return 100 * np.array([row.get(key) for row in rows], dtype=np.float64)
