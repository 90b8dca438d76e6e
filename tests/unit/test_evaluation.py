"""The papers' figures of an evaluation, by hand and against scikit-learn's definitions written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoproto.runs.evaluation import class_figures, domain_figures, evaluation_figures, pooled_accuracy, rounds_to
from isoproto.runs.metrics import summarise


def entry(client, correct, total, *, domain="", late=False, predicted=None):
    """Of a client with two classes, ``correct`` and ``total`` by class."""
    return {
        "client": client, "model": "cnn", "correct": sum(correct), "total": sum(total), "domain": domain, "late": late,
        "class_correct": correct, "class_total": total, "class_predicted": predicted or total,
    }  # fmt: skip


def evaluation(round_, *entries, one_model=False):
    return {"kind": "evaluation", "round": round_, "clients": list(entries), "one_model": one_model}


@given(st.integers(2, 6), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(classes, samples, seed):
    rng = np.random.default_rng(seed)
    truth, answer = rng.integers(0, classes, (2, samples))
    table = np.zeros((classes, classes), int)
    np.add.at(table, (truth, answer), 1)
    figures = class_figures(table.diagonal(), table.sum(1), table.sum(0))
    wanted = []
    for c in range(classes):
        if not table[c].sum():
            assert figures["f1"][c] is None
            continue
        recall = table[c, c] / table[c].sum()
        precision = table[c, c] / max(1, table[:, c].sum())
        wanted.append(2 * precision * recall / (precision + recall) if table[c, c] else 0.0)
        assert figures["f1"][c] == pytest.approx(wanted[-1])
        assert figures["accuracy"][c] == pytest.approx(recall)
    assert figures["macro_f1"] == pytest.approx(np.mean(wanted))


def test_always_the_frequent_class_is_a_good_accuracy_and_a_bad_f1():
    figures = class_figures([90, 0], [90, 10], [100, 0])
    assert figures["balanced_accuracy"] == 0.5
    assert figures["macro_f1"] == pytest.approx(90 / 190)


def test_without_test_samples_nothing_is_known_of_classes_and_domains():
    assert class_figures([0, 0], [0, 0], [0, 0]) == {
        "macro_f1": None, "balanced_accuracy": None, "accuracy": [None, None], "f1": [None, None],
    }  # fmt: skip
    assert domain_figures([]) == {"mean": None, "each": []}
    assert pooled_accuracy([]) is None
    assert set(evaluation_figures([], one_model=True).values()) == {None}


def test_the_papers_average_over_domains_counts_each_the_same():
    """FedHPro's printed average of 96.68, 90.43, 76.35 and 51.85 is 78.82; the domains' sizes do not matter."""
    sizes = {"M": 2500, "U": 100, "SV": 900, "SY": 400}
    right = {"M": 0.9668, "U": 0.9043, "SV": 0.7635, "SY": 0.5185}
    entries = [
        {"domain": d, "correct": right[d] * n * part, "total": n * part} for d, n in sizes.items() for part in (1, 2)
    ]
    assert domain_figures(entries)["mean"] == pytest.approx(0.788275)


def test_rounds_to_an_accuracy_are_the_first_that_measured_everybody():
    lines = [evaluation(r, entry("a", [hits, 0], [10, 0])) for r, hits in enumerate([1, 5, 7, 6, 9])]
    low, high = dict.fromkeys(("0.2", "0.3", "0.4", "0.5"), 1), dict.fromkeys(("0.75", "0.8", "0.9"), 4)
    assert summarise(lines)["rounds_to"] == {**low, "0.6": 2, "0.7": 2, **high, "0.95": None}
    assert rounds_to([], [], 0.5) is None


def test_the_averaged_model_is_told_of_only_where_there_is_one():
    lines = [
        evaluation(0, entry("a", [9, 0], [10, 0]), entry("b", [0, 30], [0, 30])),
        evaluation(1, entry("a", [9, 0], [10, 0]), entry("b", [0, 15], [0, 30]), one_model=True),
        evaluation(2, entry("a", [5, 0], [10, 0]), entry("b", [0, 15], [0, 30]), one_model=True),
    ]
    figures = summarise(lines)
    reached = figures["global"].pop("rounds_to")
    assert figures["global"] == {"accuracy": 0.5, "best": 0.6, "best_round": 1, "last5": pytest.approx(0.55)}
    assert (reached["0.2"], reached["0.6"], reached["0.7"]) == (1, 1, None)
    assert (figures["accuracy"]["best_micro"], figures["accuracy"]["best_micro_round"]) == (pytest.approx(39 / 40), 0)
    start = summarise(lines[:1])["global"]
    assert {*start.pop("rounds_to").values(), *start.values()} == {None}


def test_the_mean_over_domains_is_followed_through_the_evaluations():
    lines = [
        evaluation(r, entry("a", [hits, 0], [10, 0], domain="pen"), entry("b", [0, more], [0, 40], domain="scan"))
        for r, (hits, more) in enumerate([(9, 4), (2, 4), (6, 8), (8, 24), (7, 24), (4, 20), (8, 22)])
    ]
    figures = summarise(lines)["domains"]
    assert figures["each"] == [{"domain": "pen", "accuracy": 0.8}, {"domain": "scan", "accuracy": 0.55}]
    assert figures["best_each"] == [{"domain": "pen", "accuracy": 0.8}, {"domain": "scan", "accuracy": 0.6}]
    assert (figures["mean"], figures["best"], figures["best_round"]) == (pytest.approx(0.675), pytest.approx(0.7), 3)
    assert figures["last5"] == pytest.approx(np.mean([0.4, 0.7, 0.65, 0.45, 0.675]))
    reached = figures["rounds_to"]
    assert (reached["0.5"], reached["0.6"], reached["0.7"], reached["0.75"]) == (0, 3, 3, None)
    empty = summarise([])["domains"]
    assert (empty["each"], empty["best_each"], empty["best"]) == ([], [], None)


def test_variance_is_in_squared_fractions():
    lines = [evaluation(0, entry("a", [2, 0], [10, 0]), entry("b", [0, 6], [0, 10]))]
    assert summarise(lines)["accuracy"]["variance"] == pytest.approx(0.04)


def test_late_clients_are_told_apart():
    trained = [
        {"kind": "client", "round": r, "client": c, "model": "cnn", "correct": n, "total": 10}
        for r, c, n in [(1, "a", 4), (2, "a", 6), (3, "a", 8), (3, "b", 5)]
    ]
    start = evaluation(0, entry("a", [1, 0], [10, 0]), entry("b", [2, 0], [10, 0], late=True))
    end = evaluation(3, entry("a", [8, 0], [10, 0]), entry("b", [5, 0], [10, 0], late=True))
    late = {"clients": 1, "mean": 0.5, "others": 0.8, "before": 0.2, "joined": 3}
    assert summarise([start, *trained, end])["late"] == late
    assert summarise([start])["late"] == {**late, "mean": 0.2, "others": 0.1, "joined": None}
    assert summarise([evaluation(0, entry("a", [1, 0], [10, 0]))])["late"]["clients"] == 0


def test_lines_of_an_older_run_have_no_figures_by_class():
    old = {k: v for k, v in entry("a", [1, 2], [3, 4]).items() if k != "class_predicted"}
    figures = summarise([evaluation(0, old)])
    assert figures["classes"] == {"macro_f1": None, "balanced_accuracy": None, "accuracy": [], "f1": []}
