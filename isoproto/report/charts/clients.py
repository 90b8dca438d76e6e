"""The chart of every client's final accuracy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isoproto.report.charts.svg import HALF, SINGLE, Chart, add_legend, hex_colour, new_axes, percent_limits, render
from isoproto.report.formats import plain
from isoproto.runs.metrics import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, eq=False)
class _Accuracies:
    """What the chart shows.

    Attributes:
        first: Accuracy of each client in the first row of the history, in per cent, shape ``[N]``.
        final: Accuracy of each client in the last row, in per cent, shape ``[N]``; NaN where nothing is known.
        groups: The clients of each architecture, as columns of the two arrays, by rising final accuracy.
        has_start: Whether ``first`` was measured before any training.
    """

    first: NDArray[np.float64]
    final: NDArray[np.float64]
    groups: dict[str, NDArray[np.int64]]
    has_start: bool

    @property
    def single(self) -> bool:
        """Whether each client has a mark of its own; else a curve joins the clients of an architecture."""
        return len(self.final) <= SINGLE

    @property
    def hollow(self) -> dict[str, Any]:
        """Style of the dot of a client before training."""
        dot = float(np.clip(560 / len(self.final), 3, 7))
        return {"marker": "o", "linestyle": "", "markerfacecolor": hex_colour("panel"), "markersize": 0.8 * dot}

    @property
    def full(self) -> dict[str, Any]:
        """Style of the dot of a client after the last round, or of the curve that joins the clients."""
        dot = float(np.clip(560 / len(self.final), 3, 7))
        return {"marker": "o", "linestyle": "", "markersize": dot} if self.single else {"linewidth": 2}


def accuracy_by_client(history: History) -> Chart | None:
    """Draw the final accuracy of every client, sorted within its architecture, and its accuracy before training."""
    found = _accuracies(history)
    if not found:
        return None

    def draw(figure: "Figure") -> None:
        axes = new_axes(figure, "clients, sorted within each architecture", "accuracy, %")
        _draw_groups(axes, found)
        percent_limits(axes)
        _draw_legend(figure, axes, found)

    means = ", ".join(
        f"{plain(model, 40)} {np.nanmean(found.final[history.of_model(model)]):.1f}%" for model in found.groups
    )
    return render(
        "clients",
        "Final accuracy per client",
        draw,
        alt=f"Final accuracy of each client, grouped by architecture. Means: {means}.",
        caption=f"{_caption(found)} Clients with little test data move in coarse steps.",
    )


def _accuracies(history: History) -> _Accuracies | None:
    """Return what there is to draw; None if no client was tested."""
    if not len(history.rounds):
        return None
    accuracy = 100 * history.accuracy()
    first, final = accuracy[0], accuracy[-1]
    groups = {}
    for model in sorted(set(history.models)):
        columns = np.flatnonzero(history.of_model(model) & np.isfinite(final))
        if len(columns):
            groups[model] = columns[np.argsort(final[columns], kind="stable")]
    return _Accuracies(first, final, groups, history.has_start) if groups else None


def _draw_groups(axes: "Axes", found: _Accuracies) -> None:
    """Draw one architecture beside the other, with its name below."""
    gap = max(1.0, len(found.final) / 40)
    left, centres = 0.0, []
    for index, columns in enumerate(found.groups.values()):
        x = left + np.arange(len(columns))
        _draw_group(axes, found, columns, x, hex_colour(f"series-{index % 8}"))
        centres.append(float(x.mean()))
        left = x[-1] + 1 + gap
    labels = [plain(model, 18) for model in found.groups]
    crowded = sum(map(len, labels)) * 7 > HALF - 80
    axes.set_xticks(centres, labels, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-1, left - gap)
    axes.grid(visible=False, axis="x")


def _draw_group(
    axes: "Axes", found: _Accuracies, columns: NDArray[np.int64], x: NDArray[np.floating[Any]], colour: str
) -> None:
    """Draw the clients of one architecture and their mean."""
    first, final = found.first[columns], found.final[columns]
    if found.single and found.has_start:
        axes.vlines(x, first, final, color=colour, alpha=0.35 if len(found.final) <= 60 else 0.15)
        axes.plot(x, first, color=colour, **found.hollow)
    if not found.single and found.has_start:
        axes.plot(x, np.sort(first), color=colour, linestyle=":", linewidth=1.4)
    axes.plot(x, final, color=colour, **found.full)
    axes.hlines(final.mean(), x[0] - 0.45, x[-1] + 0.45, color=hex_colour("ink"), linewidth=1.6)


def _draw_legend(figure: "Figure", axes: "Axes", found: _Accuracies) -> None:
    """Explain the marks in grey, since each architecture has a colour of its own."""
    if found.has_start:
        mark = {**found.hollow, "markersize": 5} if found.single else {"linestyle": ":", "linewidth": 1.4}
        axes.plot([], [], color=hex_colour("muted"), label="before training", **mark)
    axes.plot([], [], color=hex_colour("muted"), label="final", **{**found.full, "markersize": 6})
    axes.plot([], [], color=hex_colour("ink"), linewidth=1.6, label="mean of the architecture")
    add_legend(figure, axes)


def _caption(found: _Accuracies) -> str:
    if found.single:
        return "One dot is one client after the last round" + (
            ", the hollow dot below or above it the same client before any training." if found.has_start else "."
        )
    return "A curve joins the clients of an architecture, sorted, after the last round" + (
        "; the dotted one, sorted for itself, before any training." if found.has_start else "."
    )
