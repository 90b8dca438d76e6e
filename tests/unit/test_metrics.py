import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoproto.client_names import client_order
from isoproto.runs.metrics import accuracy_history, accuracy_summary, summarise

E16 = [31, 42, 50, 55, 60, 61, 70, 72, 80, 95, 33, 44, 52, 56, 63, 66, 71, 75, 82, 90]  # per cent


def evaluation(round_, **correct):
    """Ten test samples each; the nearest prototype gets one less right, and there is none before round 1."""
    entries = [
        {
            "client": client,
            "model": "cnn",
            "correct": hits,
            "total": 10,
            "correct_prototype": hits - 1 if round_ else None,
        }
        for client, hits in correct.items()
    ]
    return {"kind": "evaluation", "round": round_, "clients": entries}


def trained(round_, client, correct, total=10, up=100):
    return {
        "kind": "client", "round": round_, "client": client, "model": "cnn", "correct": correct, "total": total,
        "bytes": {"up": up, "down": 60, "up_rows": 80},
    }  # fmt: skip


def round_line(round_, seconds=1.0):
    return {"kind": "round", "round": round_, "seconds": {"round": seconds}}


def test_fairness_figures_of_example_e16():
    summary = accuracy_summary(E16, [100] * 20)
    assert summary["worst_decile"] == pytest.approx(0.320)
    assert summary["best_decile"] == pytest.approx(0.925)
    assert summary["mean"] == pytest.approx(0.624)
    assert summary["variance"] == pytest.approx(294.24e-4)
    assert summary["std"] == pytest.approx(0.17153425, abs=5e-9)
    assert summary["evaluated"] == 20


@pytest.mark.parametrize(("clients", "decile"), [(1, 1), (9, 1), (19, 1), (20, 2), (39, 3)])
def test_a_decile_is_a_tenth_rounded_down_but_never_nobody(clients, decile):
    """Client i gets i of 100 right, so the worst k average (k - 1) / 2 per cent."""
    summary = accuracy_summary(np.arange(clients), np.full(clients, 100))
    assert summary["worst_decile"] == pytest.approx((decile - 1) / 200)
    assert summary["best_decile"] == pytest.approx((clients - 1 - (decile - 1) / 2) / 100)


def test_a_client_without_test_samples_changes_no_figure():
    assert accuracy_summary([3, 0, 9], [10, 0, 10]) == accuracy_summary([3, 9], [10, 10])


@pytest.mark.parametrize("total", [[], [0, 0]])
def test_without_any_test_sample_nothing_is_known(total):
    summary = accuracy_summary(total, total)
    assert summary.pop("evaluated") == 0
    assert set(summary.values()) == {None}


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"must both have shape \[N\], got \(2,\) and \(3,\)"):
        accuracy_summary([1, 2], [3, 4, 5])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), st.randoms())
def test_figures_are_ordered_and_do_not_depend_on_the_order_of_clients(pairs, random):
    counts = [(min(pair), max(pair)) for pair in pairs]
    shuffled = random.sample(counts, len(counts))
    summary = accuracy_summary([c for c, _ in counts], [n for _, n in counts])
    assert summary == accuracy_summary([c for c, _ in shuffled], [n for _, n in shuffled])
    if summary["evaluated"]:
        slack = 1e-12
        assert 0 <= summary["worst_decile"] <= summary["mean"] + slack
        assert summary["mean"] <= summary["best_decile"] + slack <= 1 + 2 * slack
        assert summary["std"] ** 2 == pytest.approx(summary["variance"])


def test_client_order_takes_names_of_any_length():
    names = ["9" * 5000, "ward", "10", "9", ""]
    assert sorted(names, key=client_order) == ["9", "10", "9" * 5000, "", "ward"]


def test_a_client_that_was_not_asked_keeps_its_last_value():
    lines = [evaluation(0, a=1, b=1), trained(1, "a", 7), round_line(1), trained(2, "b", 5), round_line(2)]
    history = accuracy_history(lines)
    assert history.clients == ("a", "b")
    assert history.correct.tolist() == [[1, 1], [7, 1], [7, 5]]
    assert history.complete.tolist() == [True, False, False]


def test_a_round_nobody_came_through_shows_the_values_before_it():
    history = accuracy_history([evaluation(0, a=4), round_line(1)])
    assert history.correct.tolist() == [[4], [4]]
    assert history.complete.tolist() == [True, False]


def test_an_evaluation_stands_for_its_round_and_for_nobody_who_did_not_answer():
    lines = [evaluation(0, a=1, b=1), trained(1, "a", 7), trained(1, "b", 7), evaluation(1, a=9)]
    history = accuracy_history(lines)
    assert history.total[1].tolist() == [10, 0]
    assert summarise(lines)["accuracy"]["mean"] == 0.9
    assert summarise(lines)["clients"] == {"total": 2, "evaluated": 1, "failed": []}


def test_a_round_that_trained_everybody_with_test_samples_is_complete():
    lines = [evaluation(0, a=1), trained(1, "a", 7), trained(1, "b", 0, total=0), trained(2, "b", 0, total=0)]
    assert accuracy_history(lines).complete.tolist() == [True, True, False]


def test_best_looks_only_at_rounds_that_measured_everybody():
    """Round 2 has the highest mean, 0.95, but a's value there is from round 1."""
    lines = [
        evaluation(0, a=1, b=1), trained(1, "a", 9), trained(1, "b", 5), trained(2, "b", 10), evaluation(3, a=4, b=6),
    ]  # fmt: skip
    accuracy = summarise(lines)["accuracy"]
    assert (accuracy["best"], accuracy["best_round"]) == (0.7, 1)
    assert accuracy["mean"] == 0.5


def test_best_is_the_earliest_of_equals_and_may_be_zero():
    accuracy = summarise([evaluation(0, a=0), evaluation(1, a=0)])["accuracy"]
    assert (accuracy["best"], accuracy["best_round"]) == (0.0, 0)


def test_last5_is_the_mean_of_the_last_five_rounds_and_never_of_the_untrained_models():
    lines = [evaluation(r, a=r) for r in range(8)]
    assert summarise(lines)["accuracy"]["last5"] == pytest.approx(0.5)  # rounds 3 to 7
    assert summarise(lines[:3])["accuracy"]["last5"] == pytest.approx(0.15)  # rounds 1 and 2


def test_nearest_prototype_is_the_last_evaluations_and_null_before_there_are_prototypes():
    lines = [evaluation(0, a=1, b=3), evaluation(1, a=5, b=9)]
    assert summarise(lines)["accuracy"]["nearest_prototype"] == pytest.approx(0.6)
    assert summarise(lines[:1])["accuracy"]["nearest_prototype"] is None


def test_traffic_time_and_failures():
    failure = {"kind": "failure", "round": 1, "client": "c", "reason": "no answer"}
    lines = [trained(1, "a", 5, up=100), trained(1, "b", 5, up=300), failure, round_line(1, 2.0), round_line(2, 6.0)]
    figures = summarise(lines)
    assert figures["bytes"] == {"up": 200, "down": 60, "up_rows": 80}
    assert figures["seconds"] == {"round": 4.0, "total": 8.0}
    assert figures["clients"]["total"] == 3
    assert figures["clients"]["failed"] == [{"client": "c", "round": 1, "reason": "no answer"}]


def test_a_run_that_has_not_begun_has_no_figures():
    figures = summarise([])
    assert set(figures["accuracy"].values()) == {None}
    assert set(figures["bytes"].values()) == {None}
    assert figures["seconds"] == {"round": None, "total": 0}
    assert figures["clients"] == {"total": 0, "evaluated": 0, "failed": []}


def test_kinds_of_a_later_version_are_passed_over():
    lines = [evaluation(0, a=1), trained(1, "a", 5)]
    assert summarise([*lines, {"kind": "weather", "round": 9}]) == summarise(lines)
