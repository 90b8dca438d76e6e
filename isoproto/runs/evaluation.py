"""Figures of an evaluation besides accuracy over clients: by class, by domain, of one shared model, of late clients.

All figures are computed from counts: the entries of an evaluation (``docs/run-folder.md``, `kind: evaluation`), or
accuracies by round. An unknown figure is None, never NaN.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

Entry = Mapping[str, Any]
# For each of these accuracies, a summary names the first round that reaches it.
LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)


class ClassFigures(TypedDict):
    """What :func:`class_figures` returns."""

    macro_f1: float | None
    balanced_accuracy: float | None
    accuracy: list[float | None]
    f1: list[float | None]


class DomainFigures(TypedDict):
    """What :func:`domain_figures` returns."""

    mean: float | None
    each: list[dict[str, Any]]


def class_figures(correct: ArrayLike, total: ArrayLike, predicted: ArrayLike) -> ClassFigures:
    r"""Summarise predictions by class, over all clients together. Use these figures where some classes are rare.

    .. math::
        F_1^c = \frac{2\,t_c}{n_c + p_c}, \qquad
        \text{macro-}F_1 = \frac{1}{|U|}\sum_{c \in U} F_1^c, \qquad
        \text{balanced} = \frac{1}{|U|}\sum_{c \in U} \frac{t_c}{n_c}

    with :math:`t_c` correct predictions, :math:`n_c` samples and :math:`p_c` predictions of class :math:`c`, and
    :math:`U` the classes that have samples.

    Args:
        correct: Correctly predicted samples of each class, :math:`t`, shape ``[C]``.
        total: Samples of each class, :math:`n`, shape ``[C]``.
        predicted: Samples that were predicted as each class, :math:`p`, shape ``[C]``.

    Example:
        Two classes have 8 and 2 samples; 6 and 1 are correct, the other 3 are predicted as the other class:

        >>> figures = class_figures([6, 1, 0], [8, 2, 0], [7, 3, 0])
        >>> figures["accuracy"], figures["f1"], figures["balanced_accuracy"], figures["macro_f1"]
        ([0.75, 0.5, None], [0.8, 0.4, None], 0.625, 0.6000000000000001)
    """
    t, n, p = (np.asarray(counts, dtype=np.float64) for counts in (correct, total, predicted))
    tested = n > 0
    accuracy, f1 = t / np.where(tested, n, 1), 2 * t / np.where(tested, n + p, 1)
    return ClassFigures(
        macro_f1=_mean(f1[tested]),
        balanced_accuracy=_mean(accuracy[tested]),
        accuracy=_known(accuracy, tested),
        f1=_known(f1, tested),
    )


def are_groups(domains: Sequence[str]) -> bool:
    """Return whether clients are grouped by their domains: at least half of them have one domain each.

    Args:
        domains: Each client's domain; empty for several or none. With skewed classes a client may have one by chance.

    Example:
        >>> are_groups(["pen", "scan"]), are_groups(["pen", "", ""]), are_groups([])
        (True, False, False)
    """
    return any(domains) and 2 * sum(map(bool, domains)) >= len(domains)


def domain_figures(entries: Iterable[Entry]) -> DomainFigures:
    """Return the accuracy on each domain's test samples, and the mean over domains, in which each counts the same.

    The papers report this mean in their tables of domain skew and of feature shift. Clients without a domain, or with
    several, are left out. If they are the most, domains are no groups of clients, and there are no figures.

    Example:
        >>> domain_figures([
        ...     {"domain": "pen", "correct": 1, "total": 4}, {"domain": "pen", "correct": 2, "total": 2},
        ...     {"domain": "scan", "correct": 1, "total": 1}, {"domain": "", "correct": 0, "total": 9}])
        {'mean': 0.75, 'each': [{'domain': 'pen', 'accuracy': 0.5}, {'domain': 'scan', 'accuracy': 1.0}]}
    """
    sums: dict[str, NDArray[np.int64]] = {}
    tested = [entry for entry in entries if entry["total"]]
    for entry in tested if are_groups([entry.get("domain", "") for entry in tested]) else ():
        if entry.get("domain"):
            counts = np.array([entry["correct"], entry["total"]])
            sums[entry["domain"]] = sums.get(entry["domain"], np.zeros(2, np.int64)) + counts
    accuracy = {domain: float(correct / total) for domain, (correct, total) in sorted(sums.items())}
    each = [{"domain": domain, "accuracy": value} for domain, value in accuracy.items()]
    return DomainFigures(mean=_mean(list(accuracy.values())), each=each)


def pooled_accuracy(entries: Iterable[Entry]) -> float | None:
    """Return the accuracy on the test samples of all clients together.

    If every client tests the same model and no two clients share a test sample, this is the accuracy of that model on
    the whole test set.

    Example:
        >>> pooled_accuracy([{"correct": 1, "total": 4}, {"correct": 2, "total": 2}])
        0.5
    """
    counts = [(entry["correct"], entry["total"]) for entry in entries]
    correct, total = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return correct / total if total else None


def evaluation_figures(entries: Sequence[Entry], *, one_model: bool) -> dict[str, Any]:
    """Return the figures that stand in the line of an evaluation besides its entries.

    Args:
        entries: One entry for each client that answered.
        one_model: Whether all clients tested the same averaged model.

    Example:
        >>> entries = [{"correct": 3, "total": 4, "domain": "pen", "late": False, "class_correct": [3, 0],
        ...             "class_total": [4, 0], "class_predicted": [3, 1]}]
        >>> evaluation_figures(entries, one_model=True)["global_accuracy"]
        0.75
    """
    classes = pooled_classes(entries)
    late = [entry["correct"] / entry["total"] for entry in entries if entry.get("late") and entry["total"]]
    return {
        "macro_f1": classes["macro_f1"],
        "balanced_accuracy": classes["balanced_accuracy"],
        "domain_mean": domain_figures(entries)["mean"],
        "global_accuracy": pooled_accuracy(entries) if one_model else None,
        "late_mean": _mean(late),
    }


def pooled_classes(entries: Sequence[Entry]) -> ClassFigures:
    """Return :func:`class_figures` of an evaluation; all figures are None if its entries do not count predictions."""
    keys = ("class_correct", "class_total", "class_predicted")
    if not entries or not all(entry.get(key) for entry in entries for key in keys):
        return class_figures([], [], [])
    return class_figures(*(np.sum([entry[key] for entry in entries], axis=0) for key in keys))


def rounds_to(rounds: ArrayLike, accuracy: ArrayLike, level: float) -> int | None:
    """Return the first round whose accuracy is at least ``level``; None if no round reaches it.

    Args:
        rounds: The rounds, ascending, shape ``[R]``.
        accuracy: The accuracy after each round, a fraction, shape ``[R]``; NaN where it is unknown.
        level: The accuracy to reach, a fraction.

    Example:
        >>> rounds_to([0, 1, 2, 3], [0.1, 0.7, float("nan"), 0.9], 0.8)
        3
    """
    reached = np.asarray(rounds)[np.asarray(accuracy, dtype=np.float64) >= level]
    return int(reached[0]) if len(reached) else None


def _known(values: NDArray[np.float64], known: NDArray[np.bool_]) -> list[float | None]:
    return [value if there else None for value, there in zip(values.tolist(), known.tolist(), strict=True)]


def _mean(values: ArrayLike) -> float | None:
    values = np.asarray(values, dtype=np.float64)
    return float(values.mean()) if values.size else None
