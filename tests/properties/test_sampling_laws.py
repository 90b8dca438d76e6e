from hypothesis import given
from hypothesis import strategies as st

from isoproto.client_names import client_order
from isoproto.sampling import cohort

NAMES = st.sets(st.integers(0, 500).map(str) | st.text("ab0-1", min_size=1, max_size=4), max_size=40)
FRACTIONS = st.floats(0.01, 1.0)
ROUNDS = st.integers(1, 10**6)
SEEDS = st.integers(0, 2**63 - 1)


@given(NAMES, FRACTIONS, SEEDS, ROUNDS, st.randoms(use_true_random=False))
def test_cohort_is_a_set_of_clients_in_order_and_does_not_depend_on_arrival(names, fraction, seed, server_round, rng):
    arrived = sorted(names)
    drawn = cohort(arrived, fraction, seed=seed, server_round=server_round)
    assert set(drawn) <= names
    assert len(set(drawn)) == len(drawn)
    assert drawn == sorted(drawn, key=client_order)
    rng.shuffle(arrived)
    assert cohort(arrived, fraction, seed=seed, server_round=server_round) == drawn


@given(NAMES, FRACTIONS, SEEDS, ROUNDS)
def test_size_is_within_half_a_client_of_the_fraction(names, fraction, seed, server_round):
    drawn = cohort(list(names), fraction, seed=seed, server_round=server_round)
    assert len(drawn) == min(len(names), max(1, len(drawn)))
    assert abs(len(drawn) - fraction * len(names)) <= 0.5 or len(drawn) == 1


@given(NAMES, SEEDS, ROUNDS)
def test_all_means_all(names, seed, server_round):
    assert set(cohort(list(names), 1.0, seed=seed, server_round=server_round)) == names


@given(st.text(max_size=6), st.text(max_size=6))
def test_the_order_is_total(a, b):
    assert (client_order(a) == client_order(b)) == (a == b)
