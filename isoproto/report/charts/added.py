"""The chart that compares every client with what it would have with nothing exchanged."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isoproto.report.charts.svg import SINGLE, Chart, add_legend, hex_colour, new_axes, render
from isoproto.report.formats import counted
from isoproto.runs.evaluation import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = 2  # points; at most 51 x 51 dots are drawn, however many clients there are


def exchanged_against_alone(entries: Sequence[Entry]) -> Chart | None:
    """Draw one dot for each client: its accuracy with nothing exchanged, and beside it that with the exchange.

    Args:
        entries: The entries of one evaluation. Those without ``predictors.alone`` or test samples are left out.
    """
    pairs = _pairs(entries)
    if not len(pairs):
        return None
    alone, exchanged = pairs.T
    above, below = int((exchanged > alone).sum()), int((exchanged < alone).sum())
    merged = len(pairs) > SINGLE
    dots = np.unique(GRID * np.round(pairs / GRID), axis=0) if merged else pairs

    def draw(figure: "Figure") -> None:
        axes = new_axes(figure, "accuracy with nothing exchanged, %", "accuracy with the exchange, %")
        _draw_dots(axes, dots)
        add_legend(figure, axes)

    caption = "One dot is one client. Above the line the client is better off with the exchange, below it without."
    return render(
        "added",
        "Each client with and without the exchange",
        draw,
        alt=(
            f"Accuracy of each client with the exchange against its accuracy with nothing exchanged: {above} of "
            f"{counted(len(pairs), 'client')} are above the line of equal accuracy, {below} below it."
        ),
        caption=caption
        + (f" Clients whose two accuracies are the same to {GRID} points share a dot." if merged else ""),
        height=360,
    )


def _pairs(entries: Sequence[Entry]) -> NDArray[np.float64]:
    """Return each client's accuracies without and with the exchange, in per cent, shape ``[n, 2]``."""
    pairs = [
        (100 * entry["predictors"]["alone"] / entry["total"], 100 * entry["correct"] / entry["total"])
        for entry in entries
        if entry["total"] and "alone" in (entry.get("predictors") or {})
    ]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def _draw_dots(axes: "Axes", dots: NDArray[np.float64]) -> None:
    """Draw the dots, and the line on which both accuracies are the same, on two equal axes."""
    from matplotlib.ticker import MaxNLocator

    low = max(0.0, 5 * np.floor((dots.min() - 1) / 5)) - 1
    high = min(100.0, 5 * np.ceil((dots.max() + 1) / 5)) + 1
    axes.plot([low, high], [low, high], color=hex_colour("muted"), linewidth=1.2, linestyle="--", label="no difference")
    size = float(np.clip(120 / np.sqrt(len(dots)), 3, 8))
    style: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": size, "alpha": 0.8, "markeredgewidth": 0}
    axes.plot(dots[:, 0], dots[:, 1], color=hex_colour("series-0"), label="client", **style)
    ticks = MaxNLocator(5).tick_values(low, high)
    inside = ticks[(low <= ticks) & (ticks <= high)]  # the same ticks on both axes, as they have the same scale
    axes.set(xlim=(low, high), ylim=(low, high), xticks=inside, yticks=inside, aspect="equal")
