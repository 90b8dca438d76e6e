"""The charts of the report, as SVG.

Drawn by matplotlib's SVG backend, without pyplot and its global state; nothing in the output depends on the
clock or on chance. A chart is drawn in the light colours of :data:`PALETTE`; inside the page they become CSS
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

from isoproto.report.formats import NOTHING, cosine, plain, size
from isoproto.report.run import ClientShare
from isoproto.runs.metrics import AccuracySummary, History, Line, client_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

PALETTE = {  # CSS variable -> (light, dark); every light colour occurs once, see `themed`
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
# Colours of the heat maps: their opacity carries the number, so both schemes can show it.
BLUE, ORANGE = (0.22, 0.46, 0.86), (0.90, 0.42, 0.10)
POINTED = 2000  # cells up to which a drawing of the partition has words for each of them
SINGLE = 500  # clients up to which each has a mark of its own; a thousand bars take matplotlib seconds
CURVES = 60  # rounds up to which every step of gradient matching is drawn
HALF, FULL = 500, 1120  # widths: two charts side by side, and one alone
MARKERS = "os^Dv<>p"


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing and the words that go with it.

    Attributes:
        name: File name in ``plots/`` without ``.svg``; also the prefix of the ids in the drawing.
        title: What is shown.
        svg: A complete SVG file in the light colours.
        alt: What the drawing says, for somebody who does not see it.
        caption: How to read it.
        width: Of the drawing.
        height: Of the drawing.
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
        """Whether it takes the page's whole width."""
        return self.width == FULL


def themed(chart: Chart) -> str:
    """The drawing as an element for an HTML page: colours as CSS variables, ids with the chart's name.

    Only tags are edited, so a client that calls itself after a colour keeps its name.
    """
    colours = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}

    def edit(match: re.Match[str]) -> str:
        tag = re.sub(r"#[0-9a-f]{6}\b", lambda colour: colours.get(colour[0], colour[0]), match[0])
        tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{chart.name}-", tag)
        return re.sub(r"font-family: [^;]*; ", "", tag)

    body = chart.svg[chart.svg.index("<svg") :]
    # A style element would reach the whole page, and the drawing's own title would follow the mouse about.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r"<title>.*?</title>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r"<[^>]+>", edit, body[body.index(">") + 1 :])
    frame = f'viewBox="0 0 {chart.width} {chart.height}" style="max-width: {1.2 * chart.width:.0f}px"'
    return f'<svg role="img" aria-label="{escape(chart.alt)}" {frame}>{body.strip()}'


def accuracy_by_round(history: History) -> Chart | None:
    """Mean over all clients, the band between the deciles, and the mean of each architecture."""
    rows = history.summaries()
    mean, worst, best = (_percents(rows, key) for key in ("mean", "worst_decile", "best_decile"))
    if not np.isfinite(mean).any():
        return None

    def draw(figure: "Figure") -> None:
        axes = _axes(figure, "round", "accuracy, %")
        band: dict[str, Any] = {"color": _colour("ink"), "alpha": 0.10, "linewidth": 0}
        axes.fill_between(history.rounds, worst, best, label="worst to best decile", **band)
        for index, model in enumerate(sorted(set(history.models))):
            kept = _of(history, model)
            values = _percents(history.summaries(kept), "mean")
            label = f"{plain(model, 24)} ({kept.sum()})"
            axes.plot(history.rounds, values, label=label, **_series(index, len(values)))
        axes.plot(history.rounds, mean, label="all clients", **_main(len(mean)))
        _round_ticks(axes, history.rounds)
        _percent_limits(axes)
        _legend(figure, axes)

    known = np.flatnonzero(np.isfinite(mean))
    first, last = (f"{mean[i]:.1f}% at round {history.rounds[i]}" for i in known[[0, -1]])
    return _chart(
        "accuracy",
        "Accuracy per round",
        draw,
        alt=f"Mean accuracy over all clients against the round: {first}, {last}.",
        caption="Each client's own model on its own test data. The band joins the mean of the worst tenth of "
        "the clients to that of the best; thin lines are the means of one architecture (number of clients). A "
        "client that was not asked in a round keeps its last value.",
    )


def accuracy_by_client(history: History) -> Chart | None:
    """Final accuracy of every client, sorted within its architecture, with where it started."""
    if not len(history.rounds):
        return None
    accuracy = 100 * history.accuracy()
    first, final = accuracy[0], accuracy[-1]
    models = [model for model in sorted(set(history.models)) if np.isfinite(final[_of(history, model)]).any()]
    if not models:
        return None

    gap = max(1.0, len(final) / 40)
    dot = float(np.clip(560 / len(final), 3, 7))
    hollow: dict[str, Any] = {
        "marker": "o",
        "linestyle": "",
        "markerfacecolor": _colour("panel"),
        "markersize": 0.8 * dot,
    }
    single = len(final) <= SINGLE
    full: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": dot} if single else {"linewidth": 2}

    def draw(figure: "Figure") -> None:
        axes = _axes(figure, "clients, sorted within each architecture", "accuracy, %")
        left, centres = 0.0, []
        for index, model in enumerate(models):
            columns = np.flatnonzero(_of(history, model) & np.isfinite(final))
            columns = columns[np.argsort(final[columns], kind="stable")]
            x = left + np.arange(len(columns))
            colour = _colour(f"series-{index % 8}")
            if single and history.has_start:
                faint = 0.35 if len(final) <= 60 else 0.15
                axes.vlines(x, first[columns], final[columns], color=colour, alpha=faint)
                axes.plot(x, first[columns], color=colour, **hollow)
            if not single and history.has_start:
                axes.plot(x, np.sort(first[columns]), color=colour, linestyle=":", linewidth=1.4)
            axes.plot(x, final[columns], color=colour, **full)
            axes.hlines(final[columns].mean(), x[0] - 0.45, x[-1] + 0.45, color=_colour("ink"), linewidth=1.6)
            centres.append(float(x.mean()))
            left = x[-1] + 1 + gap
        labels = [plain(model, 18) for model in models]
        crowded = sum(map(len, labels)) * 7 > HALF - 80
        axes.set_xticks(centres, labels, rotation=30 if crowded else 0, ha="right" if crowded else "center")
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-1, left - gap)
        axes.grid(visible=False, axis="x")
        _percent_limits(axes)
        if history.has_start:
            mark = {**hollow, "markersize": 5} if single else {"linestyle": ":", "linewidth": 1.4}
            axes.plot([], [], color=_colour("muted"), label="before training", **mark)
        axes.plot([], [], color=_colour("muted"), label="final", **{**full, "markersize": 6})
        axes.plot([], [], color=_colour("ink"), linewidth=1.6, label="mean of the architecture")
        _legend(figure, axes)

    if single:
        caption = "One dot is one client after the last round" + (
            ", the hollow dot below or above it the same client before any training." if history.has_start else "."
        )
    else:
        caption = "A curve joins the clients of an architecture, sorted, after the last round" + (
            "; the dotted one, sorted for itself, before any training." if history.has_start else "."
        )
    means = ", ".join(f"{plain(model, 40)} {np.nanmean(final[_of(history, model)]):.1f}%" for model in models)
    return _chart(
        "clients",
        "Final accuracy per client",
        draw,
        alt=f"Final accuracy of each client, grouped by architecture. Means: {means}.",
        caption=f"{caption} Clients with little test data move in coarse steps.",
    )


def losses_by_round(rounds: Sequence[Line]) -> Chart | None:
    """Every loss term that the clients reported, mean over the clients of a round."""
    terms = list(dict.fromkeys(term for line in rounds for term in line.get("loss") or {}))
    values = {term: _column(rounds, "loss", term) for term in terms}
    # A term that is always zero is not part of the method.
    values = {term: column for term, column in values.items() if np.nan_to_num(column, posinf=1, neginf=1).any()}
    if not values:
        return None
    drawn = np.concatenate(list(values.values()))
    log = _wide_range(drawn)

    def draw(figure: "Figure") -> None:
        axes = _axes(figure, "round", "loss (log scale)" if log else "loss")
        x = _rounds(rounds)
        for index, term in enumerate(term for term in values if term != "total"):
            axes.plot(x, values[term], label=_words(term), **_series(index, len(x)))
        if "total" in values:
            axes.plot(x, values["total"], label="total", **_main(len(x)))
        _loss_scale(axes, drawn)
        _round_ticks(axes, x)
        _legend(figure, axes)

    return _chart(
        "losses",
        "Training loss",
        draw,
        alt="Loss terms against the round. Last values: "
        + ", ".join(f"{_words(term)} {column[~np.isnan(column)][-1]:.3g}" for term, column in values.items())
        + ".",
        caption="Mean over the clients that trained in the round. Terms are shown before their weights; the total "
        "is what was minimised.",
    )


def bytes_by_round(rounds: Sequence[Line]) -> Chart | None:
    """What all clients of a round sent and received together."""
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
        axes = _axes(figure, "round", f"{('B', 'kB', 'MB', 'GB')[power]} per round, all clients")
        x = _rounds(rounds)
        for way, index, style in (("up", 0, "-"), ("up_rows", 0, ":"), ("down", 1, "-")):
            look = {**_series(index, len(x)), "linestyle": style}
            axes.plot(x, values[way] / 1000**power, label=ways[way], **look)
        axes.set_ylim(0, 1.08 * top / 1000**power or 1)
        _round_ticks(axes, x)
        _legend(figure, axes)

    return _chart(
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
    """Where the time of a round went, wall clock."""
    parts = {"train": "training", "server": "server step"}
    values = {part: _column(rounds, "seconds", part) for part in ("round", *parts)}
    if not np.isfinite(values["round"]).any():
        return None

    def draw(figure: "Figure") -> None:
        axes = _axes(figure, "round", "seconds")
        x = _rounds(rounds)
        for index, (part, words) in enumerate(parts.items()):
            if np.isfinite(values[part]).any():
                axes.plot(x, values[part], label=words, **_series(index, len(x)))
        axes.plot(x, values["round"], label="whole round", **_main(len(x)))
        axes.set_ylim(bottom=0)
        _round_ticks(axes, x)
        _legend(figure, axes)

    return _chart(
        "seconds",
        "Time per round",
        draw,
        alt=f"Seconds against the round; a whole round takes {np.nanmedian(values['round']):.3g} s (median).",
        caption="Wall-clock time on the machines of this run; other work on them shows here.",
    )


def matching_by_round(rounds: Sequence[Line]) -> Chart | None:
    """The gradient-matching loss L_GM within each round; only from where to where, when the rounds are many."""
    every = {line["round"]: np.array(_hyper(line).get("matching") or (), dtype=np.float64) for line in rounds}
    curves = {round_: curve[np.isfinite(curve)] for round_, curve in every.items() if np.isfinite(curve).any()}
    if not curves:
        return None
    x, drawn = np.array(list(curves)), np.concatenate(list(curves.values()))
    before, after = (np.array([curve[i] for curve in curves.values()]) for i in (0, -1))
    whole = len(curves) <= CURVES
    reach = 0.4 if whole else 0.0  # a round's curve stands around its tick, with a gap to the next one

    def draw(figure: "Figure") -> None:
        axes = _axes(figure, "round", "L_GM per class (log scale)" if _wide_range(drawn) else "L_GM per class")
        colour = _colour("series-0")
        for round_, curve in curves.items() if whole else ():
            axes.plot(round_ + np.linspace(-reach, reach, len(curve)), curve, color=colour, linewidth=2)
        ends: dict[str, Any] = {"color": colour, "markersize": 6, "linewidth": 2}
        ends |= {"linestyle": "", "marker": "o"} if whole else {"linestyle": "-"}
        start = {"markerfacecolor": _colour("panel")} if whole else {"linestyle": ":"}
        axes.plot(x - reach, before, label="before the first step", **{**ends, **start})
        axes.plot(x + reach, after, label="after the last step", **ends)
        _loss_scale(axes, drawn)
        _round_ticks(axes, x)
        _legend(figure, axes)

    falls = [f"from {before[i]:.3g} to {after[i]:.3g} in round {x[i]}" for i in sorted({0, len(x) - 1})]
    return _chart(
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


def class_similarity(rounds: Sequence[Line], classes: Sequence[str]) -> Chart | None:
    """Which classes are alike, for the hyper-prototypes and for the clients, in the last round that says so."""
    known = [(line["round"], _hyper(line)["similarity"]) for line in rounds if _hyper(line).get("similarity")]
    if not known:
        return None
    round_, similarity = known[-1]
    keys = {"hyper": "hyper-prototypes", "clients": "the clients' own"}
    maps = {title: _known_cosines(similarity[key]) for key, title in keys.items() if similarity.get(key)}
    maps = {title: cosines for title, cosines in maps.items() if np.isfinite(_pairs(cosines)).any()}
    if not maps:
        return None
    count = max(map(len, maps.values()))
    names = [plain(name, 40) for name in classes] if len(classes) == count else [str(i) for i in range(count)]

    def draw(figure: "Figure") -> None:
        from matplotlib.colors import LinearSegmentedColormap, Normalize

        stops = [(0.0, (*ORANGE, 1.0)), (0.5, (*ORANGE, 0.06)), (0.5, (*BLUE, 0.06)), (1.0, (*BLUE, 1.0))]
        colours = LinearSegmentedColormap.from_list("cosines", stops, N=48)
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        for axes, (title, cosines) in zip(panels, maps.items(), strict=True):
            image = _heat_map(axes, np.ma.masked_invalid(cosines), cmap=colours, norm=Normalize(-1, 1))
            axes.set_title(title, fontsize=12, fontweight="bold")
            _class_ticks(axes, names)
            _column_ticks(axes, names, width=1000 // len(maps) - 60)
        bar = figure.colorbar(image, ax=list(panels), pad=0.01, fraction=0.02, aspect=18, label="cosine")
        _scale(bar, colours)
        bar.set_ticks([-1, -0.5, 0, 0.5, 1])

    return _chart(
        "similarity",
        "Which classes are alike",
        draw,
        alt=f"Heat maps of the cosines between {count} classes after round {round_}. "
        + " ".join(f"{title}: {_extremes(cosines, names)}." for title, cosines in maps.items()),
        caption=f"Cosines between the classes as seen from their mean, after round {round_}: blue classes lie on the "
        "same side, orange ones on opposite sides. Hyper-prototypes are what the server learned; the clients' own are "
        "their class relations, averaged. Classes that nobody holds are left empty. Point at a cell for its number.",
        width=FULL,
        height=110 + int(np.clip(34 * count, 130, 490)),
        tooltips=[_cosine_words(cosines, names) for cosines in maps.values()],
    )


def partition(classes: Sequence[str], clients: Sequence[ClientShare]) -> Chart | None:
    """Who holds how much of which class: clients x classes, grouped by domain."""
    if not (classes and clients):
        return None
    ordered = sorted(clients, key=lambda share: (share.domain, client_order(share.client)))
    counts = np.array([share.train for share in ordered], dtype=np.int64).T  # [C, N]
    domains = [share.domain for share in ordered]
    held = (counts > 0).sum(axis=0)

    def draw(figure: "Figure") -> None:
        from matplotlib.colors import LinearSegmentedColormap, LogNorm
        from matplotlib.ticker import NullLocator

        bars, heat = figure.subplots(2, 1, sharex=True, height_ratios=(70, _heat_height(len(classes))))
        colours = LinearSegmentedColormap.from_list("counts", [(*BLUE, 0.12), (*BLUE, 1.0)], N=48)
        norm = LogNorm(1, max(2, int(counts.max())))
        image = _heat_map(heat, np.ma.masked_equal(counts, 0), cmap=colours, norm=norm)
        bar = figure.colorbar(image, ax=heat, pad=0.01, fraction=0.02, aspect=18, label="samples")
        _scale(bar, colours)
        _plain_log(bar.ax)
        bar.ax.yaxis.set_minor_locator(NullLocator())
        _class_ticks(heat, classes)
        _column_ticks(heat, [share.client for share in ordered])
        heat.set_xlabel("client")
        samples, filled = counts.sum(axis=0), {"color": _colour("muted"), "alpha": 0.55, "linewidth": 0}
        if len(ordered) <= SINGLE:
            bars.bar(range(len(ordered)), samples, **filled)
        else:
            bars.stairs(samples, np.arange(len(ordered) + 1) - 0.5, fill=True, **filled)
        bars.set_ylabel("samples")
        bars.grid(visible=False, axis="x")
        bars.tick_params(axis="x", length=0, labelbottom=False)
        _domain_labels(bars, heat, domains)

    named = sorted(set(filter(None, domains)))
    return _chart(
        "partition",
        "Who holds what",
        draw,
        alt=f"Heat map of the training samples of {len(ordered)} clients in {len(classes)} classes"
        + (f", grouped by domain ({', '.join(plain(name, 30) for name in named[:12])})" if named else "")
        + f". A client holds {held.min()} to {held.max()} classes and "
        f"{counts.sum(axis=0).min()} to {counts.sum(axis=0).max()} samples.",
        caption="Training samples of each client (columns) in each class (rows); empty cells are classes that "
        "a client has never seen. The bars above add them up. The colour scale is logarithmic."
        + (" Point at a cell for its number." if counts.size <= POINTED else ""),
        width=FULL,
        height=150 + _heat_height(len(classes)),
        tooltips=[[], _count_words(counts, classes, ordered)] if counts.size <= POINTED else (),
    )


def _count_words(counts: NDArray[np.int64], classes: Sequence[str], clients: Sequence[ClientShare]) -> list[list[str]]:
    return [
        [
            f"client {plain(share.client, 30)}, class {plain(name, 30)}: {count}"
            for share, count in zip(clients, row, strict=True)
        ]
        for name, row in zip(classes, counts.tolist(), strict=True)
    ]


def _heat_height(classes: int) -> int:
    return int(np.clip(18 * classes, 90, 460))


def _heat_map(axes: "Axes", cells: NDArray[Any], cmap: "Colormap", norm: "Normalize") -> "AxesImage":
    """Cells as an image; masked ones stay empty."""
    image = axes.imshow(cells, cmap=cmap, norm=norm, aspect="auto", interpolation="none")
    axes.grid(visible=False)
    rows, columns = cells.shape
    if columns <= 60 and rows <= 60:  # hairlines between the cells
        axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color=_colour("panel"), linewidth=1)
        axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color=_colour("panel"), linewidth=1)
    axes.set_xlim(-0.5, columns - 0.5)
    return image


def _scale(bar: "Colorbar", colours: "Colormap") -> None:
    """Tidy up the scale of a heat map."""
    bar.outline.set_visible(False)
    for patches in bar.ax.collections:  # translucent, and their seams show: an image of the same has none
        patches.set_visible(False)
    limits = bar.ax.get_ylim()
    bar.ax.imshow(
        np.linspace(1, 0, colours.N)[:, None],
        cmap=colours,
        extent=(0, 1, 0, 1),
        transform=bar.ax.transAxes,
        aspect="auto",
        interpolation="none",
    )
    bar.ax.set_xlim(0, 1)
    bar.ax.set_ylim(limits)


def _class_ticks(axes: "Axes", classes: Sequence[str]) -> None:
    step = -(-len(classes) * 13 // _heat_height(len(classes)))
    axes.set_yticks(range(0, len(classes), step), [plain(name, 16) for name in classes[::step]])
    axes.tick_params(axis="y", length=0)


def _column_ticks(axes: "Axes", names: Sequence[str], width: int = 1000) -> None:
    """As many names as fit: side by side if possible, numbers in round steps, other names upright."""
    names = [plain(name, 14) for name in names]
    room = width / len(names)  # pixels of a column
    pixels = 7 * max(map(len, names)) + 10
    upright = pixels > room and not all(name.isdecimal() for name in names)
    least = min(len(names), (15 if upright else pixels) / room)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, len(names)) if step >= least)
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=90 if upright else 0)
    axes.tick_params(axis="x", length=0)


def _domain_labels(bars: "Axes", heat: "Axes", domains: Sequence[str]) -> None:
    """Names of the domains above the bars, and a line between two of them."""
    starts = [i for i, domain in enumerate(domains) if i == 0 or domain != domains[i - 1]]
    if not any(domains) or len(starts) > 60:
        return
    for start, end in zip(starts, [*starts[1:], len(domains)], strict=True):
        label = plain(domains[start], 24)
        if len(label) * 7 < 1000 * (end - start) / len(domains):
            above = bars.get_xaxis_transform()
            bars.text((start + end - 1) / 2, 1.06, label, transform=above, ha="center", fontweight="bold")
        if start:
            for axes in (bars, heat):
                axes.axvline(start - 0.5, color=_colour("ink"), linewidth=1.2)


def _hyper(line: Line) -> Line:
    """What a round says of hyper-prototypes, empty in runs without them."""
    return line.get("hyper") or {}


def _known_cosines(rows: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    """Cosines ``[C, C]``, NaN for absent classes: those have the cosine 0 even with themselves."""
    cosines = np.array(rows, dtype=np.float64)
    held = cosines.diagonal() > 0
    return np.where(held & held[:, None], cosines, np.nan)


def _pairs(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    return cosines[np.triu_indices(len(cosines), 1)]


def _extremes(cosines: NDArray[np.float64], names: Sequence[str]) -> str:
    """The two classes most alike and those least alike, in words."""
    pairs, (i, j) = _pairs(cosines), np.triu_indices(len(cosines), 1)
    most, least = (
        f"{names[i[k]]} and {names[j[k]]} ({cosine(pairs[k])})" for k in (np.nanargmax(pairs), np.nanargmin(pairs))
    )
    return f"most alike are {most}, least {least}"


def _cosine_words(cosines: NDArray[np.float64], names: Sequence[str]) -> list[list[str]]:
    return [
        [f"{a} and {b}: {NOTHING if np.isnan(value) else cosine(value)}" for b, value in zip(names, row, strict=True)]
        for a, row in zip(names, cosines, strict=True)
    ]


def _tooltips(axes: "Axes", words: Sequence[Sequence[str]], height: int) -> str:
    """Unseen rectangles over the cells of a heat map that has been drawn; each says its words under the mouse."""
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


def _chart(
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
    """Draw on an empty figure in the house style and wrap it up; ``tooltips`` are for the cells of its first axes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,  # names hold what they hold
        "font.size": 12,
        "axes.edgecolor": _colour("grid"),
        "axes.facecolor": _colour("panel"),
        "axes.labelcolor": _colour("muted"),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _colour("grid"),
        "xtick.color": _colour("grid"),
        "ytick.color": _colour("grid"),
        "xtick.labelcolor": _colour("muted"),
        "ytick.labelcolor": _colour("muted"),
        "text.color": _colour("ink"),
        "legend.frameon": False,
        "legend.borderaxespad": 0,
        "legend.columnspacing": 1.4,
        "figure.facecolor": _colour("panel"),
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts may well have it
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


def _axes(figure: "Figure", xlabel: str, ylabel: str) -> "Axes":
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return axes


def _colour(name: str) -> str:
    return PALETTE[name][0]


def _series(index: int, count: int) -> dict[str, Any]:
    """Line style of the ``index``-th series: told apart by colour, marker and, from the ninth on, dashes."""
    return {
        "color": _colour(f"series-{index % 8}"),
        "linewidth": 1.5,
        "linestyle": "-" if index < 8 else "--",
        "marker": MARKERS[index % 8] if count <= 25 else "",
        "markersize": 4,
    }


def _main(count: int) -> dict[str, Any]:
    """Line style of the series that matters most."""
    return {"color": _colour("ink"), "linewidth": 2.6, "marker": "o" if count <= 25 else "", "markersize": 5}


def _legend(figure: "Figure", axes: "Axes") -> None:
    """A legend above the axes, in as many columns as there is room for."""
    handles, labels = axes.get_legend_handles_labels()
    for columns in range(min(5, len(labels)), 0, -1):
        legend = figure.legend(handles, labels, loc="outside upper left", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= HALF:
            break
        legend.remove()


def _round_ticks(axes: "Axes", rounds: NDArray[np.int64]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if len(rounds) == 1:
        axes.set_xlim(rounds[0] - 1, rounds[0] + 1)


def _wide_range(values: NDArray[np.float64]) -> bool:
    """Whether losses need a logarithmic scale: all positive but for exact zeros, and far apart."""
    values = values[np.isfinite(values) & (values != 0)]
    return values.size > 0 and bool(values.min() > 0 and values.max() > 30 * values.min())


def _loss_scale(axes: "Axes", values: NDArray[np.float64]) -> None:
    """A logarithmic scale where it is needed, else one that starts at zero."""
    if _wide_range(values):
        axes.set_yscale("log", nonpositive="mask")
        _plain_log(axes)
    else:
        axes.set_ylim(bottom=min([0.0, *values[np.isfinite(values)]]))


def _plain_log(axes: "Axes") -> None:
    """Ticks of a logarithmic axis as plain numbers; the powers would need mathematical text."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 500 * low else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _percent_limits(axes: "Axes") -> None:
    """Room around what is drawn, in steps of five, within 0 to 100."""
    low, high = axes.dataLim.intervaly
    axes.set_ylim(max(0, 5 * np.floor((low - 1) / 5)) - 1, min(100, 5 * np.ceil((high + 1) / 5)) + 1)


def _of(history: History, model: str) -> NDArray[np.bool_]:
    """Which clients have this architecture, shape ``[N]``."""
    return np.array([name == model for name in history.models], dtype=np.bool_)


def _rounds(lines: Sequence[Line]) -> NDArray[np.int64]:
    return np.array([line["round"] for line in lines], dtype=np.int64)


def _column(lines: Sequence[Line], part: str, key: str) -> NDArray[np.float64]:
    """``line[part][key]`` of every line, NaN where it is missing or null."""
    return np.array([(line.get(part) or {}).get(key) for line in lines], dtype=np.float64)


def _percents(rows: Sequence[AccuracySummary], key: str) -> NDArray[np.float64]:
    """One figure of every row in per cent, NaN where nothing is known."""
    return 100 * np.array([row.get(key) for row in rows], dtype=np.float64)


def _words(key: str) -> str:
    return plain(key.replace("_", " "), 30)
