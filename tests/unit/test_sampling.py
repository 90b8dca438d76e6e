import random

import pytest

from isoproto.client_names import client_order
from isoproto.sampling import cohort

TWENTY = [str(i) for i in range(20)]


def test_partitions_come_by_number_then_nodes_by_name():
    names = ["10", "9", "ward-2", "100", "0", "ward-10"]
    assert sorted(names, key=client_order) == ["0", "9", "10", "100", "ward-10", "ward-2"]


@pytest.mark.parametrize("names", [["0", "00", "000"], ["1", "١", "01"]])
def test_names_of_equal_value_have_an_order_too(names):
    """Otherwise the order of arrival would decide which row is added first."""
    assert len({client_order(name) for name in names}) == len(names)


def test_a_cohort_is_fixed_for_all_time():
    assert cohort(TWENTY, 0.2, seed=0, server_round=1) == ["0", "5", "9", "18"]
    assert cohort(TWENTY, 0.2, seed=0, server_round=2) != cohort(TWENTY, 0.2, seed=0, server_round=1)
    assert cohort(TWENTY, 0.2, seed=1, server_round=1) != cohort(TWENTY, 0.2, seed=0, server_round=1)


def test_order_of_arrival_is_no_matter():
    """Node ids and the order of arrival change with every run; the drawn clients do not."""
    shuffled = TWENTY[:]
    random.Random(3).shuffle(shuffled)
    assert cohort(shuffled, 0.3, seed=7, server_round=4) == cohort(TWENTY, 0.3, seed=7, server_round=4)


@pytest.mark.parametrize(
    ("clients", "fraction", "wanted"),
    [(20, 0.2, 4), (4, 0.5, 2), (5, 0.5, 3), (10, 0.25, 3), (3, 0.01, 1), (3, 1.0, 3), (1, 0.1, 1), (0, 1.0, 0)],
)
def test_size_is_rounded_to_the_nearest_client_and_at_least_one(clients, fraction, wanted):
    assert len(cohort(TWENTY[:clients], fraction, seed=0, server_round=1)) == wanted


def test_over_sampling_draws_a_share_more():
    assert len(cohort(TWENTY, 0.2, seed=0, server_round=1, over_sample=0.5)) == 6
    assert len(cohort(TWENTY, 0.2, seed=0, server_round=1, over_sample=0.01)) == 5
    assert cohort(TWENTY, 0.8, seed=0, server_round=1, over_sample=0.5) == TWENTY


def test_everybody_is_drawn_sooner_or_later():
    drawn = {name for r in range(1, 60) for name in cohort(TWENTY, 0.2, seed=0, server_round=r)}
    assert drawn == set(TWENTY)


def test_draws_are_about_even():
    """In 400 rounds 4 of 20 are drawn: 80 times each, with standard deviation 8."""
    drawn = [name for r in range(1, 401) for name in cohort(TWENTY, 0.2, seed=0, server_round=r)]
    assert all(50 <= drawn.count(name) <= 110 for name in TWENTY)
