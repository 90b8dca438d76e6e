"""What the exchange added: each client's prediction compared with its own prediction with nothing exchanged.

Both predictions are made for the same test samples, so the comparison is paired. It is made twice, because the two
answers differ: over clients, where each client counts the same, and over test samples, where each sample counts the
same. All figures are computed from counts in the entries of an evaluation (``docs/run-folder.md``). Accuracies and
their differences are fractions. An unknown figure is None.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isoproto.client_names import client_order
from isoproto.runs.evaluation import Entry

ALONE = "alone"
PREDICTORS = ("head", "common", "own", "joint", ALONE)
"""The ways to predict that a client may count beside each other, in the order in which they are shown."""
DRAWS = 10_000
FEWEST = 6  # clients; see `client_interval`
_SEED = 15  # of the resampling, so that a report does not change when it is made again
_CHUNK = 2_000_000  # numbers drawn at once
_TIE = 1e-12  # two mean differences that are closer are equal
_LEVEL = 0.95
_Z = NormalDist().inv_cdf((1 + _LEVEL) / 2)
Interval = tuple[float, float]


class Means(TypedDict):
    """Mean accuracies with and without the exchange, and their difference."""

    exchanged: float
    alone: float
    difference: float


class ClientsAdded(Means):
    """The comparison over clients. ``low`` and ``high`` are None with fewer than :data:`FEWEST` clients."""

    number: int
    low: float | None
    high: float | None
    gain: int
    lose: int
    tie: int


class SamplesAdded(Means):
    """The comparison over the test samples of all clients together. ``p`` is :func:`paired_p`."""

    number: int
    gained: int
    lost: int
    low: float
    high: float
    p: float


class SizeAdded(Means):
    """The mean over about a third of the clients, whose training samples number ``smallest`` to ``largest``."""

    clients: int
    smallest: int
    largest: int


class Added(TypedDict):
    """What :func:`added_figures` returns."""

    clients: ClientsAdded
    samples: SamplesAdded
    sizes: list[SizeAdded]


def added_figures(entries: Iterable[Entry]) -> Added | None:
    """Compare each client's prediction with its prediction with nothing exchanged.

    Args:
        entries: The entries of one evaluation. Those without ``predictors.alone`` or without test samples are left
            out. The order of the entries does not change the result.

    Returns:
        ``clients``, ``samples`` and ``sizes``; None if no entry can be compared. ``sizes`` has a figure for the
        smallest, the middle and the largest third of the clients by training samples (``samples`` of an entry).
        Clients with the same number of them are in the same third, so thirds may differ in size, and one may be
        missing. ``sizes`` is empty with fewer than three clients, if all clients have the same number, or where a
        client's number is not known.

    Example:
        Client "a" gets 6 of 10 samples right by the exchange and 4 without; it gained 3 samples and lost 1. Client
        "b" gets 9 of 30 right either way:

        >>> entries = [
        ...     {"client": "a", "correct": 6, "total": 10, "predictors": {"alone": 4}, "gained": 3, "lost": 1},
        ...     {"client": "b", "correct": 9, "total": 30, "predictors": {"alone": 9}, "gained": 0, "lost": 0}]
        >>> added = added_figures(entries)
        >>> [round(added[part]["difference"], 6) for part in ("clients", "samples")]
        [0.1, 0.05]
        >>> added["clients"]["gain"], added["clients"]["tie"], round(added["samples"]["p"], 6), added["sizes"]
        (1, 1, 0.625, [])
    """
    kept = sorted(
        (entry for entry in entries if entry["total"] and ALONE in (entry.get("predictors") or {})),
        key=lambda entry: client_order(str(entry["client"])),
    )
    if not kept:
        return None
    return Added(clients=_over_clients(kept), samples=_over_samples(kept), sizes=_by_size(kept))


def predictor_figures(entries: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """Return the accuracy of each predictor: ``mean`` over the clients that have it, and ``micro`` over their samples.

    Example:
        >>> predictor_figures([
        ...     {"correct": 1, "total": 4, "predictors": {"joint": 1, "alone": 2}},
        ...     {"correct": 2, "total": 2, "predictors": {"joint": 2}}])
        {'joint': {'mean': 0.625, 'micro': 0.5}, 'alone': {'mean': 0.5, 'micro': 0.5}}
    """
    figures = {}
    for name in PREDICTORS:
        counts = [
            (entry["predictors"][name], entry["total"])
            for entry in entries
            if entry["total"] and name in (entry.get("predictors") or {})
        ]
        if counts:
            correct, total = np.array(counts, dtype=np.float64).T
            mean = float(np.sort(correct / total).mean())  # sorted, as in `accuracy_summary`
            figures[name] = {"mean": mean, "micro": float(correct.sum() / total.sum())}
    return figures


def client_interval(differences: ArrayLike) -> Interval | None:
    r"""Return the 95 % interval of the mean difference over clients, as if the clients had been drawn at random.

    It is the bootstrap interval BCa (Efron 1987, "Better bootstrap confidence intervals") of the mean, with the
    normal quantile :math:`z` replaced by :math:`\sqrt{n/(n-1)}\,t_{n-1}` (Hesterberg 2015, "What teachers should know
    about the bootstrap", on the expanded percentile interval). Each draw takes ``n`` clients with replacement, each
    with both of its predictions. :data:`DRAWS` draws are made from a fixed seed.

    Why BCa: a few small clients often gain most, so differences are skewed, and BCa corrects for that. Why the
    replacement: the plain interval is too narrow with few clients. In a simulation of 3,000 federations, the
    interval held the true mean as often as this:

    ======================================= ========== ===== ==============
    differences                             percentile BCa   this interval
    ======================================= ========== ===== ==============
    20 clients, normal                      93 %       93 %  94 %
    20 clients, six in ten gain nothing     87 %       89 %  92 %
    6 clients, normal                       86 %       85 %  93 %
    6 clients, six in ten gain nothing      73 %       76 %  82 %
    ======================================= ========== ===== ==============

    Args:
        differences: Accuracy with the exchange minus accuracy without it, one for each client, shape ``[n]``.

    Returns:
        Both ends; None with fewer than :data:`FEWEST` clients. A mean of resampled clients lies between the smallest
        and the largest difference. With ``n`` clients these two hold the median in :math:`1 - 2^{1-n}` of all
        cases: in 94 % for five clients. So no resampling of five clients gives 95 %.

    Example:
        >>> low, high = client_interval([0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14])
        >>> 0 < low < 0.07 < high < 0.14
        True
        >>> client_interval([0.1] * 8), client_interval([0.1, 0.3])
        ((0.1, 0.1), None)
    """
    values = np.sort(np.asarray(differences, dtype=np.float64))
    n = len(values)
    if n < FEWEST:
        return None
    if values[0] == values[-1]:
        return float(values[0]), float(values[0])
    means, mean = resampled_means(values), float(values.mean())
    # A draw of the same total as the clients' is a tie, and must stay one whatever the rounding of its mean.
    below = (np.count_nonzero(means < mean - _TIE) + np.count_nonzero(means <= mean + _TIE)) / (2 * DRAWS)
    normal = NormalDist()
    bias = normal.inv_cdf(min(max(below, 1 / DRAWS), 1 - 1 / DRAWS))
    centred = values - mean
    # The jackknife's acceleration. For a mean, leaving out client i moves the estimate by -centred[i] / (n - 1).
    acceleration = float((centred**3).sum() / (6 * (centred**2).sum() ** 1.5))
    wide = math.sqrt(n / (n - 1)) * student_quantile(n - 1)
    levels = [normal.cdf(bias + (bias + z) / max(1 - acceleration * (bias + z), 1e-9)) for z in (-wide, wide)]
    low, high = np.clip(np.quantile(means, levels), values[0], values[-1])
    return float(low), float(high)


def resampled_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of :data:`DRAWS` samples with replacement, sorted. The seed is fixed.

    Example:
        >>> means = resampled_means(np.array([0.0, 1.0]))
        >>> means.shape, sorted(set(means.tolist()))
        ((10000,), [0.0, 0.5, 1.0])
    """
    rng, n = np.random.default_rng(_SEED), len(values)
    rows = max(1, _CHUNK // n)
    chunks = [min(rows, DRAWS - start) for start in range(0, DRAWS, rows)]
    return np.sort(np.concatenate([values[rng.integers(0, n, (size, n))].mean(axis=1) for size in chunks]))


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, by the expansion of Abramowitz and Stegun, 26.7.5.

    It is off by less than 0.003 from five degrees of freedom on.

    Example:
        Tables have 2.571, 2.093 and 1.984:

        >>> [round(student_quantile(freedom), 2) for freedom in (5, 19, 100)]
        [2.57, 2.09, 1.98]
    """
    z, v = _Z, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def paired_p(gained: int, lost: int) -> float:
    r"""Return the p-value of McNemar's exact test, two-sided.

    If the exchange changed nothing, each of the :math:`m = g + l` samples on which the two predictions disagree would
    be gained or lost like the toss of a coin:

    .. math::
        p = \min\Bigl(1,\; 2 \sum_{k=0}^{\min(g, l)} \binom{m}{k} 2^{-m}\Bigr)

    Reference: McNemar 1947, "Note on the sampling error of the difference between correlated proportions", in the
    exact form.

    Args:
        gained: Samples that only the exchanged prediction gets right, ``g``.
        lost: Samples that only the prediction with nothing exchanged gets right, ``l``.

    Example:
        Of 10 samples 9 are gained: ``2 (1 + 10) / 1024``. Without any sample nothing speaks against chance:

        >>> round(paired_p(9, 1), 9), paired_p(0, 0), paired_p(4, 4)
        (0.021484375, 1.0, 1.0)
    """
    discordant, fewer = gained + lost, min(gained, lost)
    if 2 * fewer >= discordant - 1:  # in or beside the middle the sum is half or more
        return 1.0
    largest = math.exp(
        math.lgamma(discordant + 1)
        - math.lgamma(fewer + 1)
        - math.lgamma(discordant - fewer + 1)
        - discordant * math.log(2)
    )
    # Each term is the one above it times k / (m - k + 1), so none of them overflows.
    k = np.arange(fewer, 0, -1, dtype=np.float64)
    return min(1.0, 2 * largest * (1 + float(np.cumprod(k / (discordant - k + 1)).sum())))


def sample_interval(gained: int, lost: int, total: int) -> Interval:
    r"""Return the 95 % score interval of the difference of two paired accuracies.

    Its ends are the :math:`\delta` for which

    .. math::
        \frac{g - l - n\delta}{\sqrt{n\,(2 q + \delta(1 - \delta))}} = \pm z, \qquad
        q = \frac{-B + \sqrt{B^2 + 8 n l \delta (1 - \delta)}}{4 n}, \quad B = (2n - g + l)\,\delta - g - l

    where :math:`q` is the most likely probability of a lost sample if the difference is :math:`\delta`. Reference:
    Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design", Statistics in Medicine 17.

    Args:
        gained: Samples that only the exchanged prediction gets right, ``g``.
        lost: Samples that only the prediction with nothing exchanged gets right, ``l``.
        total: All test samples ``n``, >= 1.

    Raises:
        ValueError: If ``total`` is less than 1 or than ``gained + lost``.

    Example:
        If the predictions never disagree, the ends are ``z^2 / (n + z^2)`` on both sides: 3.84 / 103.84 for 100:

        >>> [round(end, 4) for end in sample_interval(0, 0, 100)]
        [-0.037, 0.037]
        >>> [round(end, 3) for end in sample_interval(30, 10, 200)]
        [0.04, 0.164]
    """
    if total < max(1, gained + lost):
        raise ValueError(f"sample_interval: {gained} gained and {lost} lost of {total} test samples cannot be")
    estimate = (gained - lost) / total

    def end(side: float) -> float:
        """Bisect between the estimate, where the score is 0, and -1 or 1, where it is beyond z."""
        inside, outside = estimate, side
        for _ in range(60):
            middle = (inside + outside) / 2
            if abs(_score(middle, gained, lost, total)) <= _Z:
                inside = middle
            else:
                outside = middle
        return inside

    return end(-1.0), end(1.0)


def _score(delta: float, gained: int, lost: int, total: int) -> float:
    """Return the left side of the equation in :func:`sample_interval`."""
    b = (2 * total - gained + lost) * delta - gained - lost
    q = (-b + math.sqrt(max(0.0, b * b + 8 * total * lost * delta * (1 - delta)))) / (4 * total)
    distance = gained - lost - total * delta
    variance = total * (2 * q + delta * (1 - delta))
    if variance <= 0:  # all samples gained, all lost or none of either: only that very difference is possible
        return 0.0 if distance == 0 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _counts(entries: Sequence[Entry]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return what each client gets right with and without the exchange, and its test samples, each ``[n]``."""
    rows = [(entry["correct"], entry["predictors"][ALONE], entry["total"]) for entry in entries]
    correct, alone, total = np.array(rows, dtype=np.int64).T
    return correct, alone, total


def _over_clients(entries: Sequence[Entry]) -> ClientsAdded:
    correct, alone, total = _counts(entries)
    differences = (correct - alone) / total
    low, high = client_interval(differences) or (None, None)
    return ClientsAdded(
        number=len(entries),
        **_means(entries),
        low=low,
        high=high,
        gain=int((correct > alone).sum()),
        lose=int((correct < alone).sum()),
        tie=int((correct == alone).sum()),
    )


def _over_samples(entries: Sequence[Entry]) -> SamplesAdded:
    correct, alone, total = (int(counts.sum()) for counts in _counts(entries))
    gained, lost = (sum(int(entry.get(key, 0)) for entry in entries) for key in ("gained", "lost"))
    low, high = sample_interval(gained, lost, total)
    return SamplesAdded(
        number=total,
        exchanged=correct / total,
        alone=alone / total,
        gained=gained,
        lost=lost,
        difference=(correct - alone) / total,
        low=low,
        high=high,
        p=paired_p(gained, lost),
    )


def _by_size(entries: Sequence[Entry]) -> list[SizeAdded]:
    if len(entries) < 3 or any(entry.get("samples") is None for entry in entries):
        return []
    thirds = _thirds([int(entry["samples"]) for entry in entries])
    groups = [[entry for entry, third in zip(entries, thirds, strict=True) if third == i] for i in sorted(set(thirds))]
    if len(groups) < 2:
        return []
    sizes = [sorted(int(entry["samples"]) for entry in group) for group in groups]
    return [
        SizeAdded(clients=len(group), smallest=numbers[0], largest=numbers[-1], **_means(group))
        for group, numbers in zip(groups, sizes, strict=True)
    ]


def _thirds(sizes: Sequence[int]) -> list[int]:
    """Return which third each size is in: 0, 1 or 2, by the middle of the ranks that equal sizes share.

    Example:
        >>> _thirds([30, 10, 20]), _thirds([10, 10, 10, 10, 20, 30])
        ([2, 0, 1], [1, 1, 1, 1, 2, 2])
    """
    ordered = np.sort(sizes)
    # Twice the middle rank, counted from 0, plus one: of n different sizes 1, 3, ..., 2n - 1.
    ranks = np.searchsorted(ordered, sizes, side="left") + np.searchsorted(ordered, sizes, side="right")
    return [int(third) for third in 3 * ranks // (2 * len(sizes))]


def _means(entries: Sequence[Entry]) -> Means:
    """Return the means over clients. They are of sorted numbers, so that rounding does not depend on the order."""
    correct, alone, total = _counts(entries)
    exchanged, alone_, difference = (
        float(np.sort(counts / total).mean()) for counts in (correct, alone, correct - alone)
    )
    return Means(exchanged=exchanged, alone=alone_, difference=difference)
