"""What the exchange added: worked numbers, siblings that are written as plain loops, and laws."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isoproto.runs.added import (
    DRAWS,
    FEWEST,
    added_figures,
    client_interval,
    paired_p,
    predictor_figures,
    resampled_means,
    sample_interval,
)
from isoproto.runs.metrics import summarise

Z = 1.959963984540054


def entry(client, correct, alone, total, *, lost=0, samples=None, **predictors):
    """The entry of a client that loses ``lost`` samples and gains what is missing to ``correct``."""
    known = {} if samples is None else {"samples": samples}
    counts = {"joint": correct, "alone": alone, **predictors}
    gained = correct - alone + lost
    return {
        "client": client, "model": "cnn", "correct": correct, "total": total, "predictors": counts,
        "gained": gained, "lost": lost, **known,
    }  # fmt: skip


def evaluation(*entries):
    return {"kind": "evaluation", "round": 1, "clients": list(entries)}


# The test of samples


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(9, 1, 22 / 1024), (1, 9, 22 / 1024), (1, 0, 1.0), (5, 0, 1 / 16), (3, 1, 10 / 16), (7, 7, 1.0), (0, 0, 1.0)],
)
def test_the_exact_test_of_few_samples(gained, lost, p):
    assert paired_p(gained, lost) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_exact_test_is_twice_the_sum_of_whole_numbers(gained, lost):
    flips = gained + lost
    tail = sum(math.comb(flips, k) for k in range(min(gained, lost) + 1))
    assert paired_p(gained, lost) == pytest.approx(min(1.0, 2 * tail / 2**flips), rel=1e-9)


def test_the_exact_test_of_many_samples_is_near_that_of_the_normal_law():
    """With the correction for steps: z = (|g - l| - 1) / sqrt(g + l)."""
    gained, lost = 501_500, 498_500
    z = (gained - lost - 1) / math.sqrt(gained + lost)
    assert paired_p(gained, lost) == pytest.approx(2 * statistics.NormalDist().cdf(-z), rel=1e-3)
    assert paired_p(10**6, 0) == 0.0


# The interval of samples


def likelihood(delta, lost_p, gained, lost, total):
    """Log-likelihood of the three counts if a sample is lost with ``lost_p`` and gained with ``lost_p + delta``."""
    cells = ((gained, lost_p + delta), (lost, lost_p), (total - gained - lost, 1 - 2 * lost_p - delta))
    return sum(n * math.log(p) if p > 0 else (-math.inf if n else 0.0) for n, p in cells)


def score_by_search(delta, gained, lost, total):
    """Tango's score, with the most likely probability found by ternary search in place of the formula."""
    low, high = max(0.0, -delta), (1 - delta) / 2
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if likelihood(delta, a, gained, lost, total) < likelihood(delta, b, gained, lost, total):
            low = a
        else:
            high = b
    q = (low + high) / 2
    return (gained - lost - total * delta) / math.sqrt(total * (2 * q + delta - delta**2))


@pytest.mark.parametrize(("gained", "lost", "total"), [(30, 10, 200), (4, 9, 20), (7, 0, 12), (0, 5, 300), (2, 2, 9)])
def test_at_both_ends_the_score_is_that_of_95_per_cent(gained, lost, total):
    low, high = sample_interval(gained, lost, total)
    assert score_by_search(low, gained, lost, total) == pytest.approx(Z, rel=1e-4)
    assert score_by_search(high, gained, lost, total) == pytest.approx(-Z, rel=1e-4)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200))
def test_the_interval_of_samples_holds_the_difference_and_turns_with_the_sides(gained, lost, agreed):
    total = gained + lost + agreed
    assume(total)
    low, high = sample_interval(gained, lost, total)
    assert -1 <= low <= (gained - lost) / total <= high <= 1
    assert sample_interval(lost, gained, total) == pytest.approx((-high, -low), abs=1e-9)


def test_without_disagreement_the_interval_of_samples_is_known():
    assert sample_interval(0, 0, 100) == pytest.approx((-(Z**2) / (100 + Z**2), Z**2 / (100 + Z**2)))


@pytest.mark.parametrize(("gained", "lost", "total"), [(0, 0, 0), (3, 2, 4)])
def test_impossible_counts_of_samples_are_refused(gained, lost, total):
    with pytest.raises(ValueError, match=f"{gained} gained and {lost} lost of {total} test samples cannot be"):
        sample_interval(gained, lost, total)


def test_the_interval_of_samples_holds_the_truth_in_about_95_of_100_cases():
    """Counted exactly: the sum over all outcomes of 30 samples, of which 20 % are gained and 10 % lost."""
    n, g, lo, covered = 30, 0.2, 0.1, 0.0
    for gained, lost in itertools.product(range(n + 1), repeat=2):
        if gained + lost <= n:
            low, high = sample_interval(gained, lost, n)
            ways = math.comb(n, gained) * math.comb(n - gained, lost)
            chance = ways * g**gained * lo**lost * (1 - g - lo) ** (n - gained - lost)
            covered += chance * (low <= g - lo <= high)
    assert 0.93 < covered < 0.97


# The interval of clients


def interval_by_loops(differences):
    """BCa of the mean with Student's quantile from a table, as the papers say it, one number at a time."""
    table = {5: 2.5706, 7: 2.3646, 19: 2.0930}
    n, normal = len(differences), statistics.NormalDist()
    mean = sum(differences) / n
    draws = sorted(resampled_means(np.array(sorted(differences))).tolist())
    ties = [abs(m - mean) < 1e-9 for m in draws]
    below = sum(m < mean and not tie for m, tie in zip(draws, ties, strict=True)) + sum(ties) / 2
    z0 = normal.inv_cdf(below / len(draws))
    left_out = [(sum(differences) - d) / (n - 1) for d in differences]
    middle = sum(left_out) / n
    skew = sum((middle - x) ** 3 for x in left_out) / (6 * sum((middle - x) ** 2 for x in left_out) ** 1.5)
    ends = []
    for side in (-1, 1):
        z = z0 + side * math.sqrt(n / (n - 1)) * table[n - 1]
        place = normal.cdf(z0 + z / (1 - skew * z)) * (len(draws) - 1)
        below_, rest = int(place), place % 1
        ends.append(draws[below_] * (1 - rest) + draws[min(below_ + 1, len(draws) - 1)] * rest)
    return tuple(ends)


@pytest.mark.parametrize("clients", [6, 8, 20])
def test_the_interval_of_clients_is_that_of_the_loop(clients):
    differences = [0.3 if i % 7 == 0 else 0.01 * (i % 5) - 0.01 for i in range(clients)]
    assert client_interval(differences) == pytest.approx(interval_by_loops(differences), abs=2e-4)


def test_every_resampled_mean_is_a_mean_of_clients():
    """Draws of two clients are 0, 1/2 and 1 in 1 : 2 : 1; five standard deviations are allowed."""
    means = resampled_means(np.array([0.0, 1.0]))
    share = np.array([(means == value).sum() for value in (0.0, 0.5, 1.0)]) / DRAWS
    assert share.sum() == 1
    assert np.abs(share - [0.25, 0.5, 0.25]).max() < 5 * math.sqrt(0.25 / DRAWS)


def test_many_clients_are_resampled_in_pieces(monkeypatch):
    values = np.linspace(0, 1, 11)
    whole = resampled_means(values)
    monkeypatch.setattr("isoproto.runs.added._CHUNK", 3000)
    assert np.array_equal(resampled_means(values), whole)


@given(st.lists(st.integers(-20, 20), min_size=FEWEST, max_size=30), st.randoms(use_true_random=False))
def test_the_interval_of_clients_lies_among_them_in_any_order(twentieths, random):
    values = [v / 20 for v in twentieths]
    low, high = client_interval(values)
    assert min(values) <= low <= high <= max(values)
    random.shuffle(values)
    assert client_interval(values) == (low, high)


@pytest.mark.parametrize("clients", range(FEWEST))
def test_few_clients_have_no_interval(clients):
    assert client_interval([0.01 * i for i in range(clients)]) is None


def test_the_interval_of_skewed_differences_reaches_further_to_the_long_side():
    values = [0.0] * 15 + [0.4] * 5
    low, high = client_interval(values)
    assert high - 0.1 > 0.1 - low > 0


# All figures


def test_figures_of_three_clients():
    entries = [
        entry("2", 30, 20, 40, lost=2, samples=300),
        entry("0", 5, 6, 10, lost=1, samples=50),
        entry("1", 7, 7, 10, samples=60),
    ]
    added = added_figures(entries)
    assert added["clients"] == {
        "number": 3, "exchanged": pytest.approx(1.95 / 3), "alone": pytest.approx(1.8 / 3),
        "difference": pytest.approx(0.05), "low": None, "high": None, "gain": 1, "lose": 1, "tie": 1,
    }  # fmt: skip
    samples = added["samples"]
    assert (samples["number"], samples["gained"], samples["lost"]) == (60, 12, 3)
    assert (samples["exchanged"], samples["alone"], samples["difference"]) == (42 / 60, 33 / 60, 9 / 60)
    assert samples["p"] == pytest.approx(2 * (1 + 15 + 105 + 455) / 2**15)
    assert (samples["low"], samples["high"]) == sample_interval(12, 3, 60)
    assert [(third["smallest"], third["largest"], third["difference"]) for third in added["sizes"]] == [
        (50, 50, pytest.approx(-0.1)),
        (60, 60, 0.0),
        (300, 300, 0.25),
    ]


def test_thirds_by_size_hold_every_client_once():
    entries = [entry(str(i), i % 5, 2, 10, lost=2, samples=1000 - i) for i in range(20)]
    sizes = added_figures(entries)["sizes"]
    assert [third["clients"] for third in sizes] == [7, 6, 7]
    assert [(third["smallest"], third["largest"]) for third in sizes] == [(981, 987), (988, 993), (994, 1000)]
    smallest = [(i % 5 - 2) / 10 for i in range(13, 20)]
    assert sizes[0]["difference"] == pytest.approx(sum(smallest) / 7)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 10)), min_size=3, max_size=40))
def test_clients_of_one_size_are_in_the_same_third(clients):
    entries = [
        entry(str(i), 5, alone, 10, lost=max(0, alone - 5), samples=samples)
        for i, (samples, alone) in enumerate(clients)
    ]
    sizes = added_figures(entries)["sizes"]
    if len({samples for samples, _ in clients}) > 1:
        assert 2 <= len(sizes) <= 3
        assert sum(third["clients"] for third in sizes) == len(clients)
    else:
        assert sizes == []
    for third in sizes:
        inside = [(5 - alone) / 10 for samples, alone in clients if third["smallest"] <= samples <= third["largest"]]
        assert third["clients"] == len(inside)
        assert third["difference"] == pytest.approx(sum(inside) / len(inside))
    assert all(before["largest"] < after["smallest"] for before, after in itertools.pairwise(sizes))


def test_without_training_samples_or_with_two_clients_there_are_no_thirds():
    assert added_figures([entry(str(i), 5, 4, 10) for i in range(9)])["sizes"] == []
    assert added_figures([entry(str(i), 5, 4, 10, samples=9) for i in range(2)])["sizes"] == []


def test_clients_that_cannot_be_compared_change_nothing():
    compared = [entry(str(i), 5 + i % 3, 5, 10, samples=10 * i) for i in range(8)]
    others = [
        entry("8", 0, 0, 0, samples=1),
        {"client": "9", "model": "cnn", "correct": 1, "total": 10},
        {"client": "10", "model": "cnn", "correct": 1, "total": 10, "predictors": {"head": 3}},
    ]
    assert added_figures([*others, *reversed(compared)]) == added_figures(compared)
    assert added_figures(others) is None


def test_one_client_has_figures_and_no_interval():
    added = added_figures([entry("0", 9, 4, 10)])
    assert (added["clients"]["difference"], added["clients"]["low"]) == (0.5, None)
    assert added["samples"]["p"] == pytest.approx(2 / 32)


def test_nothing_gained_and_nothing_lost_is_not_told_apart_from_chance():
    added = added_figures([entry(str(i), 4, 4, 10) for i in range(9)])
    assert (added["clients"]["low"], added["clients"]["high"], added["samples"]["p"]) == (0, 0, 1)


def test_predictors_are_averaged_over_the_clients_that_have_them():
    entries = [entry("0", 5, 4, 10, head=2), entry("1", 20, 10, 40), {"client": "2", "correct": 0, "total": 7}]
    figures = predictor_figures(entries)
    assert figures == {
        "head": {"mean": 0.2, "micro": 0.2},
        "joint": {"mean": 0.5, "micro": 0.5},
        "alone": {"mean": pytest.approx(0.325), "micro": 0.28},
    }
    assert list(figures) == ["head", "joint", "alone"]


def test_the_summary_has_the_figures_of_the_last_evaluation():
    first, last = [entry("0", 5, 5, 10)], [entry("0", 7, 5, 10), entry("1", 5, 5, 10)]
    figures = summarise([evaluation(*first), evaluation(*last)])
    assert figures["added"] == added_figures(last)
    assert figures["predictors"] == predictor_figures(last)


def test_the_summary_of_a_run_with_one_predictor_has_no_further_parts():
    old = {"client": "0", "model": "cnn", "correct": 7, "total": 10}
    assert summarise([evaluation(old)]).keys() == summarise([]).keys()
    assert not {"predictors", "added"} & summarise([]).keys()
    head = {**old, "predictors": {"head": 7}}
    assert summarise([evaluation(head)]).keys() - summarise([]).keys() == {"predictors"}
