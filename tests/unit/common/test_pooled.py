"""Statistics as one vector: it adds up exactly, reads as what it was made of, and bears noise."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoproto.common.classifier import solve
from isoproto.common.pooled import Packing, vector_length, width_of
from isoproto.common.statistics import Block, total

CLASSES, WIDTH = 3, 5


def drawn(seed, samples, versions=2, longest=2.0):
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(samples, versions, WIDTH, generator=generator)
    phi = phi / phi.norm(dim=2, keepdim=True) * longest * torch.rand(samples, versions, 1, generator=generator)
    return phi, torch.randint(CLASSES, (samples,), generator=generator)


@given(st.integers(0, 10**6), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_the_sum_reads_as_the_totals_of_all_samples(seed, sizes):
    packing = Packing(2.0)
    parts = [drawn(seed + i, n) for i, n in enumerate(sizes)]
    vector = sum(packing.packed(phi, labels, CLASSES) for phi, labels in parts)
    found = packing.pooled(vector, CLASSES, 0).totals
    wanted = total([Block.of(phi.double(), labels) for phi, labels in parts], CLASSES, WIDTH)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_a_sample_moves_the_vector_no_further_than_the_sensitivity(seed, samples):
    packing = Packing(1.5, 1.0)  # without noise, the vector also says which classes are held
    phi, labels = drawn(seed, samples, longest=9.0)  # longer than the clip, as a lying map could make them
    moved = packing.packed(phi, labels, CLASSES) - packing.packed(phi[1:], labels[1:], CLASSES)
    assert np.linalg.norm(moved / 2.0**24) <= packing.weights.sensitivity(1.5) + len(moved) ** 0.5 * 2.0**-24


def test_vectors_do_not_depend_on_their_order():
    packing = Packing(2.0)
    vectors = [packing.packed(*drawn(i, 7), CLASSES) for i in range(4)]
    assert (sum(vectors) == sum(reversed(vectors))).all()


def test_a_class_within_the_noise_is_held_by_nobody():
    """Deviation of a count here: 2 (multiplier) x sqrt(3) x 1 (clip) / 1 (weight) = 3.46; three of them are 10.4."""
    packing = Packing(1.0, 2.0)
    phi = torch.full((31, 1, 1), 0.5)
    labels = torch.tensor([0] * 20 + [1] * 11)
    assert packing.pooled(packing.packed(phi, labels, 3), 3, 1).totals.counts.tolist() == [20.0, 11.0, 0.0]
    assert packing.pooled(packing.packed(phi[1:], labels[1:], 3), 3, 1).totals.counts.tolist() == [19.0, 11.0, 0.0]
    assert packing.pooled(packing.packed(phi[:-1], labels[:-1], 3), 3, 1).totals.counts.tolist() == [20.0, 0.0, 0.0]


@pytest.mark.parametrize("multiplier", [0.1, 10.0, 1000.0])
def test_any_noise_leaves_a_scatter_that_can_be_solved(multiplier):
    packing = Packing(2.0, multiplier)
    phi, labels = drawn(1, 40)
    vector = packing.packed(phi, labels, CLASSES) + packing.noise(vector_length(CLASSES, WIDTH), bytes(32))
    found = packing.pooled(vector, CLASSES, 1).totals
    assert float(torch.linalg.eigvalsh(found.scatter).min()) > -1e-6 * float(found.scatter.abs().max() + 1)
    if found.counts.any():
        assert bool(solve(found, [0.1])[0].rows.isfinite().all())


def test_noise_is_shared_out():
    alone, among_four = Packing(2.0, 1.0), Packing(2.0, 1.0, 4)
    one, other = (np.std(packing.noise(20_000, bytes(32))) for packing in (alone, among_four))
    assert one / other == pytest.approx(2.0, rel=1e-6)
    assert alone.deviation(20, 4) == pytest.approx(2 * alone.deviation(20, 1))
    assert among_four.deviation(20, 4) == pytest.approx(alone.deviation(20, 1))


def test_statistics_too_large_for_the_sum_are_an_error():
    with pytest.raises(ValueError, match=r"the statistics of this client has .*values must be below"):
        Packing(1e7).packed(torch.full((3, 1, 1), 1e7), torch.zeros(3, dtype=torch.int64), 1)


@given(st.integers(1, 50), st.integers(1, 300))
def test_the_width_follows_from_the_length(classes, width):
    assert width_of(vector_length(classes, width), classes) == width


@pytest.mark.parametrize("length", [0, 4, 5, 9, 10, 12])
def test_no_width_has_this_length(length):
    """With 2 classes the lengths are 4 + 2 D + D (D + 1) / 2: 7, 11, 16, ..."""
    with pytest.raises(ValueError, match=rf"no statistics of 2 classes have {length} numbers"):
        width_of(length, 2)


def test_a_class_of_too_few_clients_is_not_published():
    packing = Packing(1.0, contributors=2)
    phi = torch.full((2, 1, 1), 0.5)
    vector = packing.packed(phi, torch.tensor([0, 1]), 3) + packing.packed(phi, torch.tensor([0, 0]), 3)
    found = packing.pooled(vector, 3, 0)
    assert found.published.tolist() == [True, False, False]
    assert found.totals.counts.tolist() == [3.0, 1.0, 0.0]
