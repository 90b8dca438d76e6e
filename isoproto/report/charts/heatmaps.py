"""The heat maps: which classes are alike, and which client holds samples of which class."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isoproto.client_names import client_order
from isoproto.report.charts.svg import FULL, SINGLE, Chart, hex_colour, plain_log_ticks, render
from isoproto.report.formats import NOTHING, cosine, plain
from isoproto.report.run import ClientShare, hyper_figures
from isoproto.runs.metrics import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# The number of a cell is the opacity of its colour, so that one drawing serves the light and the dark scheme.
BLUE, ORANGE = (0.22, 0.46, 0.86), (0.90, 0.42, 0.10)
POINTED = 2000  # up to so many cells, each cell of the partition has a tooltip


def class_similarity(rounds: Sequence[Line], classes: Sequence[str]) -> Chart | None:
    """Draw which classes are alike, for the hyper-prototypes and for the clients, in the last round that has them."""
    known = [
        (line["round"], hyper_figures(line)["similarity"]) for line in rounds if hyper_figures(line).get("similarity")
    ]
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
        _draw_similarity(figure, maps, names)

    return render(
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
    """Draw how many samples of each class each client holds, with clients grouped by domain."""
    if not (classes and clients):
        return None
    ordered = sorted(clients, key=lambda share: (share.domain, client_order(share.client)))
    counts = np.array([share.train for share in ordered], dtype=np.int64).T  # [C, N]
    held = (counts > 0).sum(axis=0)

    def draw(figure: "Figure") -> None:
        _draw_partition(figure, counts, ordered, classes)

    named = sorted({share.domain for share in ordered if share.domain})
    return render(
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


def _draw_similarity(figure: "Figure", maps: Mapping[str, NDArray[np.float64]], names: Sequence[str]) -> None:
    """Draw one heat map of cosines for each title, side by side, and one colour scale for all of them."""
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


def _draw_partition(
    figure: "Figure", counts: NDArray[np.int64], ordered: Sequence[ClientShare], classes: Sequence[str]
) -> None:
    """Draw the samples of each client: bars of their sum above, and below a heat map of the counts ``[C, N]``."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.ticker import NullLocator

    bars, heat = figure.subplots(2, 1, sharex=True, height_ratios=(70, _heat_height(len(classes))))
    colours = LinearSegmentedColormap.from_list("counts", [(*BLUE, 0.12), (*BLUE, 1.0)], N=48)
    norm = LogNorm(1, max(2, int(counts.max())))
    image = _heat_map(heat, np.ma.masked_equal(counts, 0), cmap=colours, norm=norm)
    bar = figure.colorbar(image, ax=heat, pad=0.01, fraction=0.02, aspect=18, label="samples")
    _scale(bar, colours)
    plain_log_ticks(bar.ax)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    _class_ticks(heat, classes)
    _column_ticks(heat, [share.client for share in ordered])
    heat.set_xlabel("client")
    _draw_bars(bars, counts.sum(axis=0))
    _domain_labels(bars, heat, [share.domain for share in ordered])


def _draw_bars(bars: "Axes", samples: NDArray[np.int64]) -> None:
    """Draw how many samples each client has, shape ``[N]``."""
    filled: dict[str, Any] = {"color": hex_colour("muted"), "alpha": 0.55, "linewidth": 0}
    if len(samples) <= SINGLE:
        bars.bar(range(len(samples)), samples, **filled)
    else:
        bars.stairs(samples, np.arange(len(samples) + 1) - 0.5, fill=True, **filled)
    bars.set_ylabel("samples")
    bars.grid(visible=False, axis="x")
    bars.tick_params(axis="x", length=0, labelbottom=False)


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
    """Draw cells as an image; masked cells stay empty."""
    image = axes.imshow(cells, cmap=cmap, norm=norm, aspect="auto", interpolation="none")
    axes.grid(visible=False)
    rows, columns = cells.shape
    if columns <= 60 and rows <= 60:  # hairlines between the cells
        axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color=hex_colour("panel"), linewidth=1)
        axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color=hex_colour("panel"), linewidth=1)
    axes.set_xlim(-0.5, columns - 0.5)
    return image


def _scale(bar: "Colorbar", colours: "Colormap") -> None:
    """Replace the colour scale of a heat map by an image, without a frame."""
    bar.outline.set_visible(False)
    for patches in bar.ax.collections:  # seams show between translucent patches, and an image has none
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
    """Write as many names below the columns as fit: level if possible, else upright, and numbers in round steps."""
    names = [plain(name, 14) for name in names]
    room = width / len(names)  # pixels of a column
    pixels = 7 * max(map(len, names)) + 10
    upright = pixels > room and not all(name.isdecimal() for name in names)
    least = min(len(names), (15 if upright else pixels) / room)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, len(names)) if step >= least)
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=90 if upright else 0)
    axes.tick_params(axis="x", length=0)


def _domain_labels(bars: "Axes", heat: "Axes", domains: Sequence[str]) -> None:
    """Write the names of the domains above the bars, and draw a line between two domains."""
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
                axes.axvline(start - 0.5, color=hex_colour("ink"), linewidth=1.2)


def _known_cosines(rows: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    """Return cosines ``[C, C]`` with NaN for absent classes, whose cosine even with themselves is 0."""
    cosines = np.array(rows, dtype=np.float64)
    held = cosines.diagonal() > 0
    return np.where(held & held[:, None], cosines, np.nan)


def _pairs(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    return cosines[np.triu_indices(len(cosines), 1)]


def _extremes(cosines: NDArray[np.float64], names: Sequence[str]) -> str:
    """Return in words which two classes are most alike, and which two least."""
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
