"""Draw the figures of docs/common.md."""

import statistics
from collections.abc import Sequence
from typing import Any

from cells import ROOT
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FIGURES = ROOT / "docs" / "figures"
Cell = dict[str, Any]
Questions = dict[str, dict[str, list[Cell]]]
Noises = dict[str, dict[float, list[Cell]]]
ASIS = "as it is"
# Questions on each axis, with the number that the axis shows. The usual setting is part of each.
SIZES: dict[str, dict[str, int]] = {
    "linear coordinates": {
        "128 linear coordinates": 128,
        "256 linear coordinates": 256,
        ASIS: 512,
        "1,024 linear coordinates": 1024,
    },
    "random features": {
        "no random features": 0,
        "256 random features": 256,
        "512 random features": 512,
        ASIS: 1024,
        "2,048 random features": 2048,
    },
    "directions of the scatter": {"8 directions": 8, "16 directions": 16, "32 directions": 32, ASIS: 64},
}
BYTES: dict[str, Sequence[str]] = {
    "float32": ("8 directions", "16 directions", "32 directions", ASIS),
    "float16, 64 directions": ("float16",),
    "int8, 16 and 64 directions": ("int8, 16 directions", "int8"),
}


def draw(asked: Questions, noises: Noises) -> None:
    """Draw accuracy against bytes, size and epsilon, as far as the cells are there."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    wanted = {ASIS, *(name for axis in (*SIZES.values(), *BYTES.values()) for name in axis)}
    if wanted <= asked.keys():
        _sizes(asked)
        _bytes(asked)
    if noises:
        _epsilon(noises)


def _accuracy(runs: list[Cell], counts: str) -> float:
    """Return the mean over runs and clients in the last round, in per cent."""
    ends = [run["evaluations"][-1] for run in runs]
    each = [right / number for end in ends for right, number in zip(end[counts], end["total"], strict=True)]
    return 100 * statistics.fmean(each)


def _sizes(asked: Questions) -> None:
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axes, (title, points) in zip(figure.subplots(1, len(SIZES)), SIZES.items(), strict=True):
        for data in sorted(asked[ASIS]):
            line = [_accuracy(asked[name][data], "correct, joint") for name in points]
            axes.plot(list(points.values()), line, marker="o", label=data)
        axes.set(xlabel=title, ylabel="joint, per cent")
        axes.legend(fontsize="small")
    figure.savefig(FIGURES / "common-size.svg", metadata={"Date": None})


def _bytes(asked: Questions) -> None:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, data in zip(figure.subplots(1, len(asked[ASIS])), sorted(asked[ASIS]), strict=True):
        for kind, names in BYTES.items():
            sizes = [max(cell["largest_reply"] for cell in asked[name][data]) / 1e3 for name in names]
            axes.plot(sizes, [_accuracy(asked[n][data], "correct, joint") for n in names], marker="o", label=kind)
        own = _accuracy(asked[ASIS][data], "correct, own")
        axes.axhline(own, color="grey", linestyle="--", label="own, nothing sent")
        axes.set(title=data, xlabel="first message of a client, kB", ylabel="joint, per cent", xscale="log")
        axes.legend(fontsize="small")
    figure.savefig(FIGURES / "common-bytes.svg", metadata={"Date": None})


def _epsilon(noises: Noises) -> None:
    numbers = sorted({_clients(name) for name in noises})
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes: Axes
    for axes, number in zip(figure.subplots(1, len(numbers), squeeze=False)[0], numbers, strict=True):
        for name, by_noise in noises.items():
            if _clients(name) != number:
                continue
            private = [runs for _, runs in sorted(by_noise.items()) if "privacy" in runs[0]]
            epsilons = [runs[0]["privacy"]["epsilon"] for runs in private]
            label = name.rpartition(" | ")[2]
            axes.plot(epsilons, [_accuracy(runs, "correct, common") for runs in private], marker="o", label=label)
            if 0.0 in by_noise:
                axes.axhline(_accuracy(by_noise[0.0], "correct, common"), linestyle=":", label="no noise")
                own = _accuracy(by_noise[0.0], "correct, own")
                axes.axhline(own, color="grey", linestyle="--", label="own, nothing sent")
        axes.set(title=f"{number} clients", xlabel="epsilon", ylabel="everybody's classifier, per cent", xscale="log")
        axes.legend(fontsize="small")
    figure.savefig(FIGURES / "common-epsilon.svg", metadata={"Date": None})


def _clients(name: str) -> int:
    """Return the number of clients in the name of a cell."""
    return int(name.split(" clients")[0].rpartition(" ")[2])
