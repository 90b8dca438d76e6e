"""Laws of the secure sum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoproto.errors import SecureSumError
from isoproto.secure import shamir
from isoproto.secure.fixed_point import decode, encode
from isoproto.secure.graph import holders, smallest_group
from isoproto.secure.messages import Terms
from tests.secure_sums import Sum


@st.composite
def sums_with_drop_outs(draw):
    clients = draw(st.integers(2, 9))
    degree = draw(st.sampled_from([2, 4, 40]))
    length = draw(st.integers(1, 5))
    numbers = st.integers(-(2**40), 2**40)
    vectors = {
        who: np.array(draw(st.lists(numbers, min_size=length, max_size=length)), dtype=np.int64)
        for who in draw(st.sets(st.integers(0, 2**40), min_size=clients, max_size=clients))
    }
    step = st.sampled_from([1, 2, 3, 4, *[5] * draw(st.integers(1, 20))])
    gone: dict[int, list[int]] = {}
    for who in vectors:
        gone.setdefault(draw(step), []).append(who)
    terms = Terms(session="law", length=length, minimum=2, threshold=draw(st.sampled_from([0.5, 0.6])), degree=degree)
    return Sum(terms, vectors, gone)


def enough_left(run: Sum) -> bool:
    """Count by hand what the steps check: clients, holders, groups."""
    if len(run.vectors) - len(run.gone.get(1, ())) < 2:
        return False
    run.keys()
    place = {int(who): k for k, who in enumerate(run.circle.ids)}
    shared, sent, answer = (sorted(place[who] for who in run.there(step)) for step in (2, 3, 4))
    if len(shared) < 2:
        return False
    counts = [sum(h in answer for h in run.circle.holders[u].tolist()) for u in shared]
    alive = np.isin(np.arange(len(place)), sent)
    return len(sent) >= 2 and min(counts) >= run.circle.needed and smallest_group(run.circle.holders, alive) >= 2


@given(sums_with_drop_outs())
@settings(max_examples=60, deadline=None)
def test_the_sum_is_that_of_the_survivors_whoever_drops_out(run):
    if enough_left(run):
        assert run.run().tolist() == sum(run.vectors[who] for who in run.there(3)).tolist()
    else:
        with pytest.raises(SecureSumError):
            run.run()


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.data())
@settings(deadline=None)
def test_any_needed_shares_give_the_secret_back_and_fewer_do_not(secret, seed, data):
    points = data.draw(st.lists(st.integers(1, 10**6), min_size=2, max_size=12, unique=True))
    needed = data.draw(st.integers(2, len(points)))
    shares = dict(zip(points, shamir.split(secret, points, needed, seed), strict=True))
    chosen = data.draw(st.permutations(points))
    assert shamir.join({p: shares[p] for p in chosen[:needed]}) == secret
    assert shamir.join({p: shares[p] for p in chosen[: needed - 1]}) != secret


@given(st.lists(st.lists(st.floats(-1000, 1000), min_size=3, max_size=3), min_size=1, max_size=20), st.randoms())
def test_fixed_point_sums_do_not_depend_on_order(rows, random):
    words = [encode(row) for row in rows]
    mixed = list(words)
    random.shuffle(mixed)
    assert np.array_equal(sum(words), sum(mixed))
    assert np.abs(decode(sum(words)) - np.sum(rows, axis=0)).max() <= len(rows) * 2.0**-25 + 1e-9


@given(st.integers(1, 40), st.sampled_from([2, 4, 10]), st.binary(min_size=32, max_size=32))
def test_everybody_has_the_same_number_of_holders(clients, degree, seed):
    found = holders(clients, degree, seed)
    assert found.shape == (clients, min(clients, degree + 1))
    assert (np.diff(found, axis=1) > 0).all()
    assert (np.bincount(found.flatten(), minlength=clients) == found.shape[1]).all()
