"""The server's half between rounds: choice of the shrinkage, gradient steps and their end, and the checkpoint."""

import dataclasses

import pytest
import torch

from isoproto.common.classifier import Classifier, solve
from isoproto.common.gradients import preconditioner, stepped
from isoproto.common.mixture import WEIGHTS
from isoproto.common.own import SHRINKAGES, TEMPERATURES
from isoproto.common.statistics import Block, total
from isoproto.parts.common_state import CommonState, FrameRules, Measurements
from isoproto.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tests.points import randn
from tests.unit.common.test_statistics import samples

C, D = 3, 4
FREE = FrameRules(shrink=0.0, temperature=0.0, rounds=5, step=1.0, pull=0.0)
FIXED = FrameRules(shrink=0.1, temperature=0.5, rounds=5, step=1.0, pull=0.0)


def block(n=9, seed=0):
    return Block.of(*samples(n, seed=seed))


def fit(**clients):
    return {("fit", name): (1000 * ord(name) + n, block(n, seed=n)) for name, n in clients.items()}


def losses(client="a", *, shrink=0.01, temperature=0.5, held=2):
    """Say that a pair of candidates is the best."""
    table = torch.full((len(SHRINKAGES), len(TEMPERATURES)), 5.0)
    table[SHRINKAGES.index(shrink), TEMPERATURES.index(temperature)] = 1.0
    return Measurements(client, held, table, None, None)


def judged(best, new, gradient=None, client="a"):
    """Say how the best row so far and the next one do, at every temperature."""
    rows = torch.tensor([[best], [new]]) if new is not None else torch.tensor([[best]])
    return Measurements(client, 2, rows.repeat(1, 1), None, gradient)


def same(one, other):
    a, b = one.to_memory(), other.to_memory()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# The choice


def test_before_anything_is_known_the_first_shrinkage_counts():
    state = CommonState.empty(C).next(FREE, fit(a=9, b=12), [])
    assert len(state.rows) == len(SHRINKAGES)
    best, temperature, asks = state.downlink(FREE)["common-plan"].tolist()
    assert (SHRINKAGES[int(best)], temperature, asks) == (0.1, 0.5, 0.0)
    found = solve(total([b for _, b in fit(a=9, b=12).values()], C, D), SHRINKAGES)
    torch.testing.assert_close(state.rows, torch.stack([c.rows for c in found]))


def test_the_smallest_sum_of_losses_chooses():
    """One client wants the first candidates, two the last ones; these have the smaller sum."""
    state = CommonState.empty(C).next(FREE, fit(a=9, b=12), [])
    measured = [losses("a"), losses("b", shrink=0.3, temperature=1.0), losses("c", shrink=0.3, temperature=1.0)]
    chosen = state.next(FREE, {}, measured)
    assert (chosen.shrink, chosen.temperature, chosen.chosen_of) == (0.3, 1.0, 21.0)
    assert len(chosen.rows) == 1
    assert chosen.downlink(FREE)["common-plan"].tolist() == [0.0, 1.0, 1.0]


def test_nobody_holds_samples_out_so_nothing_is_chosen_and_the_first_stays():
    state = CommonState.empty(C).next(FREE, fit(a=9), [])
    again = state.next(FREE, {}, [Measurements("a", 0, None, None, None)])
    assert same(again, state)


def test_the_choice_stays_while_samples_grow_by_less_than_a_tenth():
    state = CommonState.empty(C).next(FREE, fit(a=30, b=30), []).next(FREE, {}, [losses(shrink=0.1)])
    state = state.next(FREE, fit(c=6), [])
    assert (state.shrink, state.chosen_of, len(state.rows)) == (0.1, 60.0, 1)
    found = solve(total([b for _, b in fit(a=30, b=30, c=6).values()], C, D), [0.1])
    torch.testing.assert_close(state.rows[0], found[0].rows)


def test_the_choice_is_made_anew_when_samples_grow_by_more():
    state = CommonState.empty(C).next(FREE, fit(a=30, b=30), []).next(FREE, {}, [losses(shrink=0.1)])
    state = state.next(FREE, fit(c=9), [])
    assert (state.shrink, state.chosen_of, len(state.rows), state.first) == (0.1, 0.0, 5, 2)
    chosen = state.next(FREE, {}, [losses(shrink=0.03)])
    assert (chosen.shrink, chosen.temperature, chosen.chosen_of) == (0.03, 0.5, 69.0)


def test_with_both_settings_fixed_nothing_is_chosen():
    state = CommonState.empty(C).next(FIXED, fit(a=9), [])
    assert (len(state.rows), state.shrink, state.temperature) == (1, 0.1, 0.5)
    assert state.downlink(FIXED)["common-plan"].tolist() == [0.0, 0.5, 1.0]


def test_one_setting_fixed_leaves_the_other_to_choose():
    rules = dataclasses.replace(FREE, shrink=0.07)
    state = CommonState.empty(C).next(rules, fit(a=9), [])
    table = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    chosen = state.next(rules, {}, [Measurements("a", 2, table, None, None)])
    assert (chosen.shrink, chosen.temperature) == (0.07, 1.0)


# Statistics that come and go


def test_what_the_server_has_is_listed():
    new = fit(a=9, b=12)
    state = CommonState.empty(C).next(FIXED, new, [])
    assert state.downlink(FIXED)["common-known"].tolist() == sorted(digest for digest, _ in new.values())
    assert CommonState.empty(C).downlink(FIXED).keys() == {"common-known"}


def test_statistics_of_held_out_samples_are_in_what_predicts_and_not_in_what_is_judged():
    state = CommonState.empty(C).next(FIXED, fit(a=9), [])
    held = {("held", "a"): (5, block(4, seed=77))}
    after = state.next(FIXED, held, [])
    assert torch.equal(after.rows, state.rows)
    (wanted,) = solve(total([block(9, seed=9), block(4, seed=77)], C, D), [0.1])
    torch.testing.assert_close(after.everything, wanted.rows)
    assert after.downlink(FIXED)["common-classifier"].shape == (C, D + 1)


def test_data_that_grew_replace_what_was_sent_before():
    state = CommonState.empty(C).next(FIXED, fit(a=9, b=12), [])
    grown = state.next(FIXED, fit(a=15), [])
    assert same(grown, CommonState.empty(C).next(FIXED, fit(a=15, b=12), []))


def test_who_leaves_last_leaves_nothing():
    state = CommonState.empty(C).next(FIXED, fit(a=9), [])
    assert same(state.without("a", FIXED), CommonState.empty(C))


def test_forgetting_makes_the_choice_anew_since_the_clients_losses_are_in_it():
    state = (
        CommonState.empty(C).next(FREE, fit(a=9, b=30), []).next(FREE, {}, [losses("a", shrink=0.3, temperature=1.0)])
    )
    assert state.shrink == 0.3
    mixing = state.next(FREE, {}, [Measurements("a", 2, None, torch.ones(len(WEIGHTS), dtype=torch.int64), None)])
    assert len(mixing.mixtures) == len(WEIGHTS)
    assert same(mixing.without("a", FREE), CommonState.empty(C).next(FREE, fit(b=30), []))


# Classes that few clients hold

TWO = dataclasses.replace(FIXED, contributors=2)


def of_classes(labels, seed, kind="fit"):
    labels = torch.tensor(labels)
    return {(kind, f"c{seed}"): (seed, Block.of(randn(len(labels), 1, D, seed=seed), labels))}


def test_the_row_of_a_class_that_too_few_clients_sent_is_sent_to_nobody():
    state = CommonState.empty(C).next(TWO, {**of_classes([0, 0, 1, 1], 1), **of_classes([0, 0, 2, 2], 2)}, [])
    assert state.present.tolist() == [True] + [False] * (C - 1)
    moved = state.next(TWO, {}, [judged(1.0, None, randn(C, D + 1), "c1")])
    assert moved.steps == 1
    for found in (state, moved):
        sent = found.downlink(TWO)
        assert sent["common-rows"][:, 0].ne(0).all()
        assert sent["common-rows"][:, 1:].eq(0).all()
        assert sent["common-classifier"][1:].eq(0).all()
    both = moved.next(TWO, of_classes([1, 1], 2, kind="held"), [])
    assert both.present.tolist() == [True, True] + [False] * (C - 2)


def test_training_and_held_out_samples_of_one_client_are_one_contributor():
    state = CommonState.empty(C).next(TWO, {**of_classes([0, 1], 1), **of_classes([0], 1, kind="held")}, [])
    assert not state.present.any()


# Gradient steps


@pytest.fixture
def ready():
    return CommonState.empty(C).next(FIXED, fit(a=9, b=12), [])


def test_a_step_is_what_the_formula_says(ready):
    gradients = [judged(1.0, None, randn(C, D + 1, seed=s), client) for s, client in ((1, "a"), (2, "b"))]
    state = ready.next(FIXED, {}, gradients)
    totals = total([b for _, b in fit(a=9, b=12).values()], C, D)
    wanted = stepped(
        ready.start,
        ready.start,
        randn(C, D + 1, seed=1) + randn(C, D + 1, seed=2),
        preconditioner(totals, 0.1),
        samples=21,
        temperature=0.5,
        step=1.0,
        pull=0.0,
    )
    torch.testing.assert_close(state.rows, torch.stack([ready.start, wanted]))
    assert (state.steps, state.worse) == (1, 0)


def test_who_takes_part_is_scaled_to_the_whole(ready):
    """Client a holds 9 of 21 samples; its gradient alone is divided by 9."""
    gradient = randn(C, D + 1)
    alone = ready.next(FIXED, {}, [judged(1.0, None, gradient)])
    both = ready.next(FIXED, {}, [judged(1.0, None, gradient), judged(1.0, None, gradient * 12 / 9, "b")])
    torch.testing.assert_close(alone.rows, both.rows)


def test_gradients_of_a_client_without_statistics_are_left_out(ready):
    stranger = judged(1.0, None, 1e6 * randn(C, D + 1), "stranger")
    assert same(ready.next(FIXED, {}, [stranger]), ready)


def test_a_smaller_loss_keeps_the_step(ready):
    gradient = randn(C, D + 1)
    moved = ready.next(FIXED, {}, [judged(1.0, None, gradient)])
    kept = moved.next(FIXED, {}, [judged(1.0, 0.9, gradient)])
    assert torch.equal(kept.rows[0], moved.rows[1])
    assert (kept.steps, kept.worse, len(kept.rows)) == (2, 0, 2)


@pytest.mark.parametrize("new", [1.0, 1.1])
def test_a_loss_that_is_not_smaller_goes_back_and_the_next_step_is_half_as_long(ready, new):
    gradient = randn(C, D + 1)
    moved = ready.next(FIXED, {}, [judged(1.0, None, gradient)])
    back = moved.next(FIXED, {}, [judged(1.0, new, gradient)])  # its gradient is of the row that was dropped
    assert torch.equal(back.rows, moved.rows[:1])
    assert (back.steps, back.worse) == (1, 1)
    half = back.next(FIXED, {}, [judged(1.0, None, gradient)])
    torch.testing.assert_close(half.rows[1] - half.rows[0], (moved.rows[1] - moved.rows[0]) / 2)


def test_two_losses_in_a_row_that_rise_end_it(ready):
    state, gradient = ready, randn(C, D + 1)
    for _ in range(2):
        assert state.downlink(FIXED)["common-plan"][2] == 1
        state = state.next(FIXED, {}, [judged(1.0, None, gradient)])
        state = state.next(FIXED, {}, [judged(1.0, 2.0, gradient)])
    assert torch.equal(state.rows, ready.rows)
    assert state.downlink(FIXED)["common-plan"][2] == 0
    assert same(state.next(FIXED, {}, [judged(1.0, None, gradient)]), state)  # nobody asked for it


def test_the_last_step_is_judged_before_it_counts(ready):
    rules, gradient = dataclasses.replace(FIXED, rounds=1), randn(C, D + 1)
    moved = ready.next(rules, {}, [judged(1.0, None, gradient)])
    plan = moved.downlink(rules)
    assert plan["common-plan"].tolist() == [0.0, 0.5, 0.0]
    torch.testing.assert_close(plan["common-classifier"], ready.downlink(rules)["common-classifier"])
    kept = moved.next(rules, {}, [judged(1.0, 0.5)])
    assert torch.equal(kept.rows, moved.rows[1:])
    changed = kept.downlink(rules)["common-classifier"] - plan["common-classifier"]
    torch.testing.assert_close(changed, (moved.rows[1] - moved.rows[0]).float(), rtol=1e-3, atol=1e-5)


def test_without_held_out_samples_every_step_is_kept(ready):
    gradient = randn(C, D + 1)
    moved = ready.next(FIXED, {}, [Measurements("a", 0, None, None, gradient)])
    kept = moved.next(FIXED, {}, [Measurements("a", 0, None, None, gradient)])
    assert torch.equal(kept.rows[0], moved.rows[1])


def test_a_round_that_nobody_answers_changes_nothing(ready):
    moved = ready.next(FIXED, {}, [judged(1.0, None, randn(C, D + 1))])
    assert same(moved.next(FIXED, {}, []), moved)


def test_new_statistics_start_the_steps_anew(ready):
    moved = ready.next(FIXED, {}, [judged(1.0, None, randn(C, D + 1))])
    late = moved.next(FIXED, fit(c=8), [judged(1.0, 0.5, randn(C, D + 1))])
    assert same(late, CommonState.empty(C).next(FIXED, fit(a=9, b=12, c=8), []))


# Mixtures and the checkpoint


def test_mixtures_are_shares_of_all_held_out_samples(ready):
    """3 of 4 wrong in one client, 1 of 6 in the other: 4 of 10."""
    counts = [torch.full((len(WEIGHTS),), wrong) for wrong in (3, 1)]
    measured = [Measurements(c, h, None, m, None) for c, h, m in zip("ab", (4, 6), counts, strict=True)]
    state = ready.next(FIXED, {}, measured)
    assert state.mixtures.tolist() == [0.4] * len(WEIGHTS)
    torch.testing.assert_close(state.downlink(FIXED)["common-mixtures"], torch.full((len(WEIGHTS),), 0.4))


def test_the_order_of_clients_makes_no_difference():
    measured = [judged(1.0, None, randn(C, D + 1, seed=1)), judged(1.5, None, randn(C, D + 1, seed=2), "b")]
    new = fit(a=9, b=12, c=5)
    forth = CommonState.empty(C).next(FIXED, new, [])
    back = CommonState.empty(C).next(FIXED, dict(reversed(new.items())), [])
    assert same(forth, back)
    assert same(forth.next(FIXED, {}, measured), back.next(FIXED, {}, measured))


def test_a_checkpoint_holds_all_of_it_to_the_last_bit(ready, tmp_path):
    measured = [judged(1 / 3, None, randn(C, D + 1)), Measurements("b", 3, None, torch.ones(66).long(), None)]
    state = ready.next(FIXED, {("held", "a.b:c"): (7, Block.of(*samples(7), rank=2))}, []).next(FIXED, {}, measured)
    save_checkpoint(tmp_path, Checkpoint(1, state.to_memory(), {}))
    read = CommonState.of(load_checkpoint(tmp_path).tensors)
    assert same(read, state)
    assert read.blocks.keys() == state.blocks.keys()
    assert (read.digests, read.temperature, read.steps) == (state.digests, state.temperature, state.steps)
    assert all(read.blocks[key].floor == state.blocks[key].floor for key in state.blocks)
    for one in (read, state):
        assert isinstance(one.first, int)
        assert isinstance(Classifier(one.rows[0], one.present), Classifier)
    following = judged(1.0, 0.5, randn(C, D + 1, seed=4))
    assert same(read.next(FIXED, {}, [following]), state.next(FIXED, {}, [following]))


def test_no_state_in_a_checkpoint_of_a_run_without_a_frame():
    assert CommonState.of({"prototypes": torch.zeros(2, 2)}) is None
