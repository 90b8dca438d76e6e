"""Sum, then solve: who holds which samples, in what order they come and when, makes no difference to the classifier."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from isoproto.common.classifier import solve
from isoproto.common.gradients import class_gradients
from isoproto.common.statistics import Block, Totals, total
from isoproto.parts.common_state import CommonState, FrameRules
from tests import plain_common as plain

C, D, V = 4, 5, 2
SHRINKAGES = (0.01, 0.1, 1.0)
RULES = FrameRules(shrink=0.1, temperature=0.5, rounds=0, step=1.0, pull=0.0)


@st.composite
def federations(draw, most=24):
    """Samples, and which of up to five clients holds each."""
    n = draw(st.integers(1, most))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    spread = draw(st.sampled_from([1.0, 1e-3, 1e3]))
    phi = spread * torch.randn(n, V, D, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, draw(st.integers(1, C)), (n,), generator=generator)
    owners = torch.randint(0, draw(st.integers(1, 5)), (n,), generator=generator)
    return phi, labels, owners


def dealt(phi, labels, owners):
    return [(phi[owners == k], labels[owners == k]) for k in owners.unique().tolist()]


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a.present, b.present)
        scale = b.rows.abs().max().clamp(min=1)
        torch.testing.assert_close(a.rows / scale, b.rows / scale, rtol=1e-9, atol=1e-9)


@given(federations())
def test_the_sum_over_clients_is_the_pooled_computation(federation):
    phi, labels, owners = federation
    blocks = [Block.of(*part) for part in dealt(phi, labels, owners)]
    assert_same(solve(total(blocks, C, D), SHRINKAGES), solve(Totals.of(phi, labels, C), SHRINKAGES))


@given(federations(most=10))
def test_the_sum_over_clients_is_what_loops_give(federation):
    phi, labels, owners = federation
    parts = dealt(phi, labels, owners)
    found = total([Block.of(*part) for part in parts], C, D)
    counts, sums, scatter = plain.pooled(parts, C, D)
    size = phi.square().sum()
    assert torch.equal(found.counts, counts)
    torch.testing.assert_close(found.sums, sums)
    torch.testing.assert_close(found.scatter / size, scatter / size, rtol=0, atol=1e-12)


@given(federations(), st.randoms(use_true_random=False))
def test_neither_order_nor_grouping_matters(federation, random):
    phi, labels, owners = federation
    blocks = [Block.of(*part) for part in dealt(phi, labels, owners)]
    wanted = solve(total(blocks, C, D), SHRINKAGES)
    random.shuffle(blocks)
    assert_same(solve(total(blocks, C, D), SHRINKAGES), wanted)
    others = torch.tensor([random.randrange(3) for _ in range(len(labels))])
    regrouped = [Block.of(*part) for part in dealt(phi, labels, others)]
    assert_same(solve(total(regrouped, C, D), SHRINKAGES), wanted)


@given(federations(), st.randoms(use_true_random=False))
def test_the_server_ends_the_same_whenever_a_client_comes(federation, random):
    """Clients send in any round, held-out samples after the others or with them; some send old data first."""
    blocks = {("fit", str(number)): (number, Block.of(*part)) for number, part in enumerate(dealt(*federation))}
    at_once = CommonState.empty(C).next(RULES, blocks, [])
    state, waiting = CommonState.empty(C), list(blocks.items())
    random.shuffle(waiting)
    if random.random() < 0.5:  # replaced later, by what the same client sends anew
        key = waiting[0][0]
        state = state.next(RULES, {key: (999, Block.of(torch.ones(3, V, D).double(), torch.tensor([0, 1, 2])))}, [])
    while waiting:
        some = [waiting.pop() for _ in range(random.randint(1, len(waiting)))]
        state = state.next(RULES, dict(some), [])
    assert state.digests == at_once.digests
    for name in ("present", "rows", "start", "everything"):
        assert torch.equal(getattr(state, name), getattr(at_once, name)), name  # the server adds up in one order


@given(federations())
def test_taking_a_client_out_is_as_if_it_had_never_come(federation):
    blocks = {
        (kind, str(n)): (n, Block.of(*part)) for n, part in enumerate(dealt(*federation)) for kind in ("fit", "held")
    }
    others = {key: value for key, value in blocks.items() if key[1] != "0"}
    found = CommonState.empty(C).next(RULES, blocks, []).without("0", RULES)
    wanted = CommonState.empty(C).next(RULES, others, []) if others else CommonState.empty(C)
    assert (found.blocks.keys(), found.digests) == (wanted.blocks.keys(), wanted.digests)
    for name in ("present", "rows", "start", "everything"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name


@given(federations(), st.integers(1, D + 1))
def test_a_cut_rank_keeps_counts_sums_and_trace(federation, rank):
    phi, labels, _ = federation
    whole, cut = (total([Block.of(phi, labels, r)], C, D) for r in (0, rank))
    assert torch.equal(whole.counts, cut.counts)
    assert torch.equal(whole.sums, cut.sums)
    # Traces are differences of large sums, so they agree to the size of these.
    size = phi.square().sum()
    torch.testing.assert_close(whole.scatter.trace() / size, cut.scatter.trace() / size, rtol=0, atol=1e-9)
    if rank >= D:
        torch.testing.assert_close(whole.scatter / size, cut.scatter / size, rtol=0, atol=1e-9)


@given(federations(), st.sampled_from([0.25, 1.0]))
def test_gradients_add_up_over_clients_with_one_prior(federation, temperature):
    phi, labels, owners = federation
    (classifier,) = solve(Totals.of(phi, labels, C), [0.1])
    prior = torch.zeros(C)
    parts = [class_gradients(*part, classifier, temperature, prior) for part in dealt(phi, labels, owners)]
    wanted = class_gradients(phi, labels, classifier, temperature, prior)
    scale = wanted.abs().max().clamp(min=1)
    torch.testing.assert_close(sum(parts) / scale, wanted / scale, rtol=0, atol=1e-9)
