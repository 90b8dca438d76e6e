"""The kit of the charts: colours, line styles, axes, and writing SVG.

matplotlib's SVG backend draws the charts, without pyplot and its global state. The output does not depend on the
clock or on chance. A chart is drawn in the light colours of :data:`PALETTE`. Inside the page these become CSS
variables of the same names, so that one drawing serves the light and the dark scheme.

One unit of a drawing is one CSS pixel at its natural size.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = {  # CSS variable -> (light, dark); `themed` needs every light colour to occur once
    "ink": ("#1b2330", "#e8ecf3"),
    "muted": ("#566173", "#9aa6b8"),
    "grid": ("#e2e6ec", "#2b3340"),
    "panel": ("#ffffff", "#171c24"),
    "series-0": ("#2f66c8", "#79aaff"),
    "series-1": ("#cf4a12", "#ff9566"),
    "series-2": ("#0b8264", "#45cfa2"),
    "series-3": ("#8e3bb0", "#d29bf2"),
    "series-4": ("#a56b00", "#e6b94c"),
    "series-5": ("#c22560", "#ff7dab"),
    "series-6": ("#0a7396", "#5ac6ee"),
    "series-7": ("#5a6b2a", "#b3cc66"),
}
SINGLE = 500  # up to so many clients, each has its own mark; matplotlib needs seconds for a thousand bars
HALF, FULL = 500, 1120  # widths: two charts side by side, and one alone
MARKERS = "os^Dv<>p"


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its title, caption and description.

    Attributes:
        name: File name in ``plots/`` without ``.svg``; also the prefix of the ids in the drawing.
        title: What is shown.
        svg: A complete SVG file in the light colours.
        alt: What the drawing shows, for readers who cannot see it.
        caption: How to read the drawing.
        width: Width of the drawing in pixels.
        height: Height of the drawing in pixels.
    """

    name: str
    title: str
    svg: str
    alt: str
    caption: str
    width: int
    height: int

    @property
    def wide(self) -> bool:
        """Whether the chart takes the whole width of the page."""
        return self.width == FULL


def themed(chart: Chart) -> str:
    """Return the drawing as an element for an HTML page: colours as CSS variables, ids with the chart's name.

    Only tags are edited, so that a client whose name is a colour keeps its name.
    """
    colours = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}

    def edit(match: re.Match[str]) -> str:
        tag = re.sub(r"#[0-9a-f]{6}\b", lambda colour: colours.get(colour[0], colour[0]), match[0])
        tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{chart.name}-", tag)
        return re.sub(r"font-family: [^;]*; ", "", tag)

    body = chart.svg[chart.svg.index("<svg") :]
    # A style element would change the whole page, and the drawing's title would pop up under the mouse everywhere.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r"<title>.*?</title>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r"<[^>]+>", edit, body[body.index(">") + 1 :])
    frame = f'viewBox="0 0 {chart.width} {chart.height}" style="max-width: {1.2 * chart.width:.0f}px"'
    return f'<svg role="img" aria-label="{escape(chart.alt)}" {frame}>{body.strip()}'


def render(
    name: str,
    title: str,
    draw: Callable[["Figure"], None],
    *,
    alt: str,
    caption: str,
    width: int = HALF,
    height: int = 315,
    tooltips: Sequence[Sequence[Sequence[str]]] = (),
) -> Chart:
    """Let ``draw`` fill an empty figure, and return it as a chart.

    ``tooltips`` are the texts of the cells of its axes, in their order: one list of rows for each of the first axes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_house_style(name)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a browser may have the glyph
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    heading = f"<title>{escape(title)}</title>"
    svg = re.sub(r"<svg[^>]*>", lambda tag: f"{tag[0]}\n {heading}", file.getvalue(), count=1)
    if tooltips:
        cells = "".join(_tooltips(*pair, height) for pair in zip(figure.axes, tooltips, strict=False))
        svg = svg.replace("</svg>", f'<g fill="none" pointer-events="all">{cells}</g>\n</svg>')
    return Chart(name, title, svg, alt, caption, width, height)


def _house_style(name: str) -> dict[Any, Any]:
    """Return the settings of matplotlib that all charts share; ``name`` makes the ids of a drawing repeatable."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,  # a "$" in a name is a "$"
        "font.size": 12,
        "axes.edgecolor": hex_colour("grid"),
        "axes.facecolor": hex_colour("panel"),
        "axes.labelcolor": hex_colour("muted"),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": hex_colour("grid"),
        "xtick.color": hex_colour("grid"),
        "ytick.color": hex_colour("grid"),
        "xtick.labelcolor": hex_colour("muted"),
        "ytick.labelcolor": hex_colour("muted"),
        "text.color": hex_colour("ink"),
        "legend.frameon": False,
        "legend.borderaxespad": 0,
        "legend.columnspacing": 1.4,
        "figure.facecolor": hex_colour("panel"),
    }


def new_axes(figure: "Figure", xlabel: str, ylabel: str) -> "Axes":
    """Return the only axes of a figure, with the names of both axes."""
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return axes


def hex_colour(name: str) -> str:
    """Return a colour of :data:`PALETTE` as ``#rrggbb``, in the light scheme."""
    return PALETTE[name][0]


def series_style(index: int, count: int) -> dict[str, Any]:
    """Return the style of the ``index``-th line. Lines differ in colour and marker, and from the ninth on in dashes."""
    return {
        "color": hex_colour(f"series-{index % 8}"),
        "linewidth": 1.5,
        "linestyle": "-" if index < 8 else "--",
        "marker": MARKERS[index % 8] if count <= 25 else "",
        "markersize": 4,
    }


def main_style(count: int) -> dict[str, Any]:
    """Return the style of the most important line."""
    return {"color": hex_colour("ink"), "linewidth": 2.6, "marker": "o" if count <= 25 else "", "markersize": 5}


def add_legend(figure: "Figure", axes: "Axes") -> None:
    """Put a legend above the axes, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    for columns in range(min(5, len(labels)), 0, -1):
        legend = figure.legend(handles, labels, loc="outside upper left", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= HALF:
            break
        legend.remove()


def _tooltips(axes: "Axes", words: Sequence[Sequence[str]], height: int) -> str:
    """Return invisible rectangles over the cells of a drawn heat map. Each shows its text under the mouse."""
    if not words:
        return ""
    rows, columns = len(words), len(words[0])
    (left, top), (right, bottom) = axes.transData.transform([(-0.5, -0.5), (columns - 0.5, rows - 0.5)])
    wide, high = (right - left) / columns, (top - bottom) / rows
    return "".join(
        f'<rect x="{left + j * wide:.1f}" y="{height - top + i * high:.1f}" width="{wide:.1f}" height="{high:.1f}">'
        f"<title>{escape(text)}</title></rect>"
        for i, row in enumerate(words)
        for j, text in enumerate(row)
    )


def round_ticks(axes: "Axes", rounds: NDArray[np.int64]) -> None:
    """Put about ten ticks on the axis of rounds, all of them whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if len(rounds) == 1:
        axes.set_xlim(rounds[0] - 1, rounds[0] + 1)


def plain_log_ticks(axes: "Axes") -> None:
    """Write the ticks of a logarithmic axis as plain numbers, since powers would need mathematical text."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 500 * low else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def percent_limits(axes: "Axes") -> None:
    """Set the limits of an axis in per cent: around the drawn values, in steps of five, within 0 to 100."""
    low, high = axes.dataLim.intervaly
    axes.set_ylim(max(0, 5 * np.floor((low - 1) / 5)) - 1, min(100, 5 * np.ceil((high + 1) / 5)) + 1)
