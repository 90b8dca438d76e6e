"""Accuracy over clients, and the figures of a run from the lines of its ``metrics.jsonl``.

Accuracies are fractions in [0, 1] and become per cent only when they are shown. A line is a parsed JSON object; the
kinds of lines are listed in ``docs/run-folder.md``. Lines of an unknown kind are ignored.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isoproto.client_names import client_order
from isoproto.runs.added import added_figures, predictor_figures
from isoproto.runs.evaluation import LEVELS, domain_figures, pooled_accuracy, pooled_classes, rounds_to

Line = Mapping[str, Any]
LAST_ROUNDS = 5  # `accuracy.last5`


class AccuracySummary(TypedDict):
    """What :func:`accuracy_summary` returns. Every figure is None if no client has test samples."""

    mean: float | None
    micro: float | None
    worst_decile: float | None
    best_decile: float | None
    std: float | None
    variance: float | None
    evaluated: int


def decile_size(clients: int) -> int:
    """Return how many of ``clients`` (>= 1) are a decile: a tenth, rounded down, but at least one."""
    return max(1, clients // 10)


def accuracy_summary(correct: ArrayLike, total: ArrayLike) -> AccuracySummary:
    r"""Summarise the accuracy of N clients: the average, the spread, and the worst and best clients.

    .. math::
        a_i = \frac{c_i}{n_i},\quad
        \text{mean} = \frac{1}{N}\sum_i a_i,\quad
        \text{micro} = \frac{\sum_i c_i}{\sum_i n_i},\quad
        \text{variance} = \frac{1}{N}\sum_i (a_i - \text{mean})^2

    The deciles are the means of the ``k = max(1, floor(0.1 N))`` smallest and largest accuracies. A client without test
    samples has no accuracy and is left out of all figures.

    Args:
        correct: Test samples that each client's model predicts correctly, ``c``, shape ``[N]``.
        total: Test samples of each client, ``n``, shape ``[N]``.

    Returns:
        ``mean``, ``micro``, ``worst_decile``, ``best_decile`` and ``std`` as fractions, ``variance`` as a squared
        fraction (both of the population), and ``evaluated``, the number of clients with test samples. The order of
        the clients does not change the result, not even in the last bit. Without test samples the figures are None.

    Raises:
        ValueError: If the two shapes differ or are not ``[N]``.

    Example:
        Two clients predict 1 of 4 and 9 of 12 samples correctly; the third has no test samples:

        >>> summary = accuracy_summary([1, 9, 0], [4, 12, 0])
        >>> summary["mean"], summary["micro"], summary["std"], summary["evaluated"]
        (0.5, 0.625, 0.25, 2)
        >>> accuracy_summary([], [])["mean"] is None
        True
    """
    hits, samples = np.asarray(correct, dtype=np.float64), np.asarray(total, dtype=np.float64)
    if hits.shape != samples.shape or hits.ndim != 1:
        raise ValueError(
            f"accuracy_summary: correct and total must both have shape [N], got {hits.shape} and {samples.shape}"
        )
    tested = samples > 0
    evaluated = int(tested.sum())
    if not evaluated:
        return AccuracySummary(
            mean=None, micro=None, worst_decile=None, best_decile=None, std=None, variance=None, evaluated=0
        )
    # Sorted, so that rounding does not depend on the order of the clients.
    accuracy = np.sort(hits[tested] / samples[tested])
    k = decile_size(evaluated)
    return AccuracySummary(
        mean=float(accuracy.mean()),
        micro=float(hits[tested].sum() / samples.sum()),
        worst_decile=float(accuracy[:k].mean()),
        best_decile=float(accuracy[-k:].mean()),
        std=float(accuracy.std()),
        variance=float(accuracy.var()),
        evaluated=evaluated,
    )


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The accuracy of every client's model after each round.

    Attributes:
        rounds: The round of each row, ascending, shape ``[R]``; 0 is before any training.
        clients: The client of each column, N names, in :func:`client_order`.
        models: The architecture of each client, N names.
        correct: Correctly predicted test samples, shape ``[R, N]``, int64.
        total: Test samples, shape ``[R, N]``, int64; 0 where nothing is known.
        complete: Whether all clients were measured in this very row, shape ``[R]``, bool. That is so for an
            evaluation, and for a round that trained every client that has test samples.
    """

    rounds: NDArray[np.int64]
    clients: tuple[str, ...]
    models: tuple[str, ...]
    correct: NDArray[np.int64]
    total: NDArray[np.int64]
    complete: NDArray[np.bool_]

    @property
    def has_start(self) -> bool:
        """Whether the first row was measured before any training, and other rows follow it."""
        return len(self.rounds) > 1 and bool(self.rounds[0] == 0)

    def of_model(self, model: str) -> NDArray[np.bool_]:
        """Return which clients have this architecture, shape ``[N]``."""
        return np.array([name == model for name in self.models], dtype=np.bool_)

    def summaries(self, columns: NDArray[np.bool_] | None = None) -> list[AccuracySummary]:
        """Return :func:`accuracy_summary` of every row, over the clients that ``columns`` (bool, ``[N]``) selects."""
        kept = np.ones(len(self.clients), dtype=np.bool_) if columns is None else columns
        return [
            accuracy_summary(correct[kept], total[kept])
            for correct, total in zip(self.correct, self.total, strict=True)
        ]

    def accuracy(self) -> NDArray[np.float64]:
        """Return the accuracy of each client in each row, shape ``[R, N]``; NaN where there are no test samples."""
        accuracy = np.full(self.total.shape, np.nan)
        np.divide(self.correct, self.total, out=accuracy, where=self.total > 0)
        return accuracy


def accuracy_history(lines: Iterable[Line]) -> History:
    """Follow every client's accuracy through the lines of ``metrics.jsonl``.

    The row of a round holds the new values of the clients that trained in it, and the last values of the other clients.
    The last values are exact as long as clients share nothing but prototypes, since a client's model then changes only
    when it trains. If all clients were evaluated after a round, its row is that evaluation.

    Example:
        >>> start = {"kind": "evaluation", "round": 0, "clients": [
        ...     {"client": "0", "model": "cnn", "correct": 1, "total": 10},
        ...     {"client": "1", "model": "mlp", "correct": 2, "total": 10}]}
        >>> trained = {"kind": "client", "round": 1, "client": "1", "model": "mlp", "correct": 8, "total": 10}
        >>> history = accuracy_history([start, trained])
        >>> history.correct.tolist(), history.complete.tolist()
        ([[1, 2], [1, 8]], [True, False])
    """
    trained: dict[int, dict[str, Line]] = {}
    evaluated: dict[int, dict[str, Line]] = {}
    models: dict[str, str] = {}
    for line in lines:
        if line["kind"] == "evaluation":
            evaluated[line["round"]] = {str(entry["client"]): entry for entry in line["clients"]}
            models |= {str(entry["client"]): str(entry["model"]) for entry in line["clients"]}
        elif line["kind"] == "client":
            trained.setdefault(line["round"], {})[str(line["client"])] = line
            models[str(line["client"])] = str(line["model"])
        elif line["kind"] == "round":
            trained.setdefault(line["round"], {})

    rounds, clients = sorted(trained.keys() | evaluated.keys()), sorted(models, key=client_order)
    column = {client: index for index, client in enumerate(clients)}
    counts = np.zeros((2, len(rounds), len(clients)), dtype=np.int64)
    known: dict[str, Line] = {}
    for row, round_ in enumerate(rounds):
        known |= trained.get(round_, {}) | evaluated.get(round_, {})
        for client, entry in evaluated.get(round_, known).items():
            counts[:, row, column[client]] = entry["correct"], entry["total"]

    has_tests = {client for client, used in zip(clients, counts[1].any(axis=0), strict=True) if used}
    complete = [r in evaluated or (bool(has_tests) and has_tests <= trained[r].keys()) for r in rounds]
    return History(
        rounds=np.array(rounds, dtype=np.int64),
        clients=tuple(clients),
        models=tuple(models[client] for client in clients),
        correct=counts[0],
        total=counts[1],
        complete=np.array(complete, dtype=np.bool_),
    )


def summarise(lines: Iterable[Line]) -> dict[str, dict[str, Any]]:
    """Compute the figures of ``summary.json`` from the lines of ``metrics.jsonl`` alone.

    Args:
        lines: The parsed lines, in the order of the file. The run may still be in progress.

    Returns:
        The following parts. An unknown figure is None.

        - ``accuracy``: ``mean``, ``micro``, ``worst_decile``, ``best_decile``, ``std`` and ``variance`` of the last
          row of :func:`accuracy_history`, which is the final evaluation once there is one; ``best`` and ``best_round``,
          the highest ``mean`` of a complete row and its round (the earliest, if several are equal); ``best_micro`` and
          ``best_micro_round``, the same of ``micro``; ``last5``, the mean of ``mean`` over the last five rounds;
          ``nearest_prototype``, the clients' mean in the last evaluation when the nearest global prototype predicts;
          ``initial``, the mean before round 1.
        - ``rounds_to``: for each of ``LEVELS``, the first complete row whose ``mean`` reaches it.
        - ``classes``, of the last evaluation: ``macro_f1``, ``balanced_accuracy``, by class ``accuracy`` and ``f1``.
        - ``domains``: ``accuracy`` of ``each`` and their ``mean``, of the last evaluation; ``best``, ``best_round``,
          ``last5`` and ``rounds_to`` of that mean over the evaluations, and ``best_each``, the same in the best round.
        - ``global``: ``accuracy``, ``best``, ``best_round``, ``last5`` and ``rounds_to`` of the averaged model on all
          test samples; known only for evaluations in which all clients tested the same model.
        - ``late``: how many ``clients`` were kept from training at first; their ``mean`` and the mean of the ``others``
          in the last row; their mean ``before`` the first of them trained; and the round in which they ``joined``.
        - ``bytes``: ``up``, ``down``, ``up_rows``, means over the replies of clients.
        - ``seconds``: ``round``, the median, and ``total``, the sum over rounds.
        - ``clients``: the ``total`` number, the number ``evaluated`` in the mean, and those that ``failed``, as
          ``{"client", "round", "reason"}``.
        - ``predictors``, ``added``, of the last evaluation: see ``isoproto.runs.added``. They are absent where clients
          have one predictor only, or no prediction with nothing exchanged.
        - ``privacy``: ``epsilon``, ``delta``, ``unit`` and ``releases``. It is absent in runs without noise.

    Example:
        >>> def evaluation(round_, *correct):
        ...     entries = [{"client": str(i), "model": "cnn", "correct": c, "total": 10}
        ...                for i, c in enumerate(correct)]
        ...     return {"kind": "evaluation", "round": round_, "clients": entries}
        >>> accuracy = summarise([evaluation(0, 1, 1), evaluation(1, 9, 7), evaluation(2, 8, 6)])["accuracy"]
        >>> accuracy["initial"], accuracy["best"], accuracy["best_round"], accuracy["mean"], accuracy["last5"]
        (0.1, 0.8, 1, 0.7, 0.75)
    """
    lines = list(lines)
    evaluations, trained, rounds, failures = (
        [line for line in lines if line["kind"] == kind] for kind in ("evaluation", "client", "round", "failure")
    )
    history = accuracy_history(lines)
    rows = history.summaries()
    last = evaluations[-1]["clients"] if evaluations else []
    return {
        "accuracy": _accuracy(history, rows, _nearest_prototype(last)),
        "rounds_to": _reached((r, row["mean"]) for r, row in _measured(history, rows)),
        "classes": dict(pooled_classes(last)),
        "domains": _domains(evaluations),
        "global": _global(evaluations),
        "late": _late(history, last, trained),
        "bytes": {
            way: _mean([line["bytes"][way] for line in trained if way in line.get("bytes", {})])
            for way in ("up", "down", "up_rows")
        },
        "seconds": _seconds([line["seconds"]["round"] for line in rounds if "seconds" in line]),
        "clients": {
            "total": len({*history.clients, *(str(line["client"]) for line in failures)}),
            "evaluated": rows[-1]["evaluated"] if rows else 0,
            "failed": [{key: line[key] for key in ("client", "round", "reason")} for line in failures],
        },
        **_predictors(last),
        **_privacy(rounds),
    }


def _privacy(rounds: Sequence[Line]) -> dict[str, Any]:
    """Return the part of a summary that only runs with noise have: the figures of the last round that has some."""
    known = [found for line in rounds if (found := (line.get("hyper") or {}).get("privacy"))]
    return {"privacy": known[-1]} if known else {}


def _predictors(entries: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """Return the parts of a summary that only runs with several predictors have."""
    predictors, added = predictor_figures(entries), added_figures(entries)
    parts = {"predictors": predictors, "added": added and dict(added)}
    return {name: part for name, part in parts.items() if part}


def _accuracy(history: History, rows: Sequence[AccuracySummary], nearest_prototype: float | None) -> dict[str, Any]:
    """Return the figures of accuracy over clients, from the rows of a history."""
    final = rows[-1] if rows else accuracy_summary([], [])
    known = [(int(r), mean) for r, row in zip(history.rounds, rows, strict=True) if (mean := row["mean"]) is not None]
    measured = _measured(history, rows)
    best_round, best = _best((r, row["mean"]) for r, row in measured)
    best_micro_round, best_micro = _best((r, row["micro"]) for r, row in measured)
    return {
        "mean": final["mean"],
        "micro": final["micro"],
        "best": best,
        "best_round": best_round,
        "best_micro": best_micro,
        "best_micro_round": best_micro_round,
        "last5": _mean([mean for r, mean in known if r > 0][-LAST_ROUNDS:]),
        "worst_decile": final["worst_decile"],
        "best_decile": final["best_decile"],
        "std": final["std"],
        "variance": final["variance"],
        "nearest_prototype": nearest_prototype,
        "initial": dict(known).get(0),
    }


def _measured(history: History, rows: Sequence[AccuracySummary]) -> list[tuple[int, AccuracySummary]]:
    """Return the rounds whose row measured everybody, with that row."""
    return [(int(r), row) for r, row, all_ in zip(history.rounds, rows, history.complete, strict=True) if all_]


def _seconds(rounds: Sequence[float]) -> dict[str, float | None]:
    """Return how long rounds took: the median and the sum."""
    return {"round": statistics.median(rounds) if rounds else None, "total": sum(rounds)}


def _best(points: Iterable[tuple[int, float | None]]) -> tuple[int | None, float | None]:
    """Return the round with the highest figure, and the figure. If several are equal, return the earliest."""
    known = [(r, value) for r, value in points if value is not None]
    return max(known, key=lambda point: point[1], default=(None, None))


def _reached(points: Iterable[tuple[int, float | None]]) -> dict[str, int | None]:
    """Return for each level the first round whose figure reaches it."""
    known = np.array([(r, value) for r, value in points if value is not None]).reshape(-1, 2)
    return {str(level): rounds_to(known[:, 0], known[:, 1], level) for level in LEVELS}


def _over_rounds(points: Sequence[tuple[int, float | None]]) -> dict[str, Any]:
    """Return the best and the last values of a figure that each evaluation has."""
    best_round, best = _best(points)
    trained = [value for r, value in points if value is not None and r > 0]
    last = _mean(trained[-LAST_ROUNDS:])
    return {"best": best, "best_round": best_round, "last5": last, "rounds_to": _reached(points)}


def _global(evaluations: Sequence[Line]) -> dict[str, Any]:
    """Return the accuracy of the averaged model on all test samples."""
    points = [(line["round"], pooled_accuracy(line["clients"])) for line in evaluations if line.get("one_model")]
    known = [value for r, value in points if value is not None and r > 0]
    return {"accuracy": known[-1] if known else None, **_over_rounds(points)}


def _domains(evaluations: Sequence[Line]) -> dict[str, Any]:
    """Return the accuracy on each domain's test samples, in the last and in the best evaluation."""
    nothing = domain_figures([])
    figures = {line["round"]: domain_figures(line["clients"]) for line in evaluations}
    over_rounds = _over_rounds([(r, found["mean"]) for r, found in figures.items()])
    latest = next(reversed(figures.values()), nothing)
    best_each = figures.get(over_rounds["best_round"], nothing)["each"]
    return {**latest, **over_rounds, "best_each": best_each}


def _late(history: History, entries: Sequence[Line], trained: Sequence[Line]) -> dict[str, Any]:
    """Compare the clients that were kept from training at first with the other clients."""
    names = {str(entry["client"]) for entry in entries if entry.get("late")}
    columns = np.array([client in names for client in history.clients], dtype=np.bool_)
    joined = min((line["round"] for line in trained if str(line["client"]) in names), default=None)
    before = history.rounds < (np.inf if joined is None else joined)
    late, others = (history.summaries(kept) if names else [] for kept in (columns, ~columns))
    apart = [row["mean"] for row, early in zip(late, before, strict=False) if early]
    return {
        "clients": len(names),
        "mean": late[-1]["mean"] if late else None,
        "others": others[-1]["mean"] if others else None,
        "before": apart[-1] if apart else None,
        "joined": joined,
    }


def _nearest_prototype(entries: Sequence[Line]) -> float | None:
    """Return the clients' mean accuracy when the nearest global prototype answers."""
    entries = [entry for entry in entries if entry.get("correct_prototype") is not None]
    correct, total = ([entry[key] for entry in entries] for key in ("correct_prototype", "total"))
    return accuracy_summary(correct, total)["mean"]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
