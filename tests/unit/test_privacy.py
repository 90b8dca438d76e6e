"""Sensitivities against samples, noise against its law, and epsilon against the closed form of one Gaussian."""

import builtins
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoproto.errors import ConfigError
from isoproto.privacy.accountant import Release, epsilon_of, noise_for
from isoproto.privacy.noise import noise, noisy, normals
from isoproto.privacy.sensitivity import clipped, of_gradients, of_losses, of_statistics, with_rounding
from isoproto.privacy.statistics import Moments, Weights, pack, packed_length, positive_part, unpack
from isoproto.secure.fixed_point import decode, encode, limit
from isoproto.secure.messages import Terms
from tests.secure_sums import Sum

CLASSES, WIDTH = 3, 4


def moments_of(phi, labels) -> Moments:
    """Add up sample by sample, as the definition says."""
    counts, sums, moment = np.zeros(CLASSES), np.zeros((CLASSES, WIDTH)), np.zeros((WIDTH, WIDTH))
    for sample, label in zip(phi, labels, strict=True):
        counts[label] += 1
        sums[label] += sample
        moment += np.outer(sample, sample)
    return Moments(counts, sums, moment)


seeds = st.integers(0, 2**32 - 1)
bounds = st.sampled_from([0.3, 1.0, 7.0])


@given(seeds, bounds, st.tuples(*[st.sampled_from([0.1, 1.0, 3.0])] * 3))
def test_a_sample_moves_the_statistics_by_at_most_the_sensitivity(seed, bound, weights):
    rng = np.random.default_rng(seed)
    phi, labels = clipped(rng.normal(size=(6, WIDTH)) * 3 * bound, bound), rng.integers(CLASSES, size=6)
    with_all, without = (pack(moments_of(phi[:n], labels[:n]), Weights(*weights)) for n in (6, 5))
    moved = np.linalg.norm(with_all - without)
    expected = Weights(*weights).sensitivity(bound)
    assert moved <= expected * (1 + 1e-9)
    if np.linalg.norm(phi[5]) > bound * (1 - 1e-9):
        assert moved == pytest.approx(expected)  # no smaller number would do


@given(seeds, bounds)
def test_a_sample_moves_the_gradient_by_at_most_the_sensitivity(seed, bound):
    rng = np.random.default_rng(seed)
    phi = np.append(clipped(rng.normal(size=WIDTH) * 3 * bound, bound), 1.0)
    logits = rng.normal(size=CLASSES) * 20
    error = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    error[rng.integers(CLASSES)] -= 1
    assert np.linalg.norm(np.outer(error, phi)) <= of_gradients(bound) * (1 + 1e-9)


def test_the_bound_of_gradients_is_reached():
    error, phi = np.array([1.0, -1.0, 0.0]), np.array([2.0, 0.0, 0.0, 0.0, 1.0])  # sure of the wrong class
    assert np.linalg.norm(np.outer(error, phi)) == pytest.approx(of_gradients(2.0))


@given(seeds, bounds)
def test_versions_of_a_sample_count_as_one(seed, bound):
    rng = np.random.default_rng(seed)
    versions = clipped(rng.normal(size=(5, WIDTH)) * 3 * bound, bound)
    moment = np.mean([np.outer(v, v) for v in versions], axis=0)
    moved = pack(Moments(np.array([1.0]), versions.mean(0, keepdims=True), moment), Weights())
    assert np.linalg.norm(moved) <= of_statistics(bound) * (1 + 1e-9)


@given(seeds)
def test_rounding_adds_no_more_than_stated(seed):
    rng = np.random.default_rng(seed)
    before, bits = rng.normal(size=50), 3
    after = before + clipped(rng.normal(size=50), 1.0)
    moved = np.linalg.norm((encode(after, bits=bits) - encode(before, bits=bits)) / 2.0**bits)
    assert moved <= with_rounding(1.0, length=50, bits=bits)


def test_worked_sensitivities():
    assert of_statistics(2.0, counts=3.0, sums=2.0, moment=0.5) == pytest.approx(math.sqrt(9 + 16 + 4))
    assert of_losses(4.0, candidates=25) == 20.0
    for call in (lambda: of_statistics(0.0), lambda: of_gradients(math.inf), lambda: clipped([1.0], math.nan)):
        with pytest.raises(ValueError, match="`bound` must be a positive number"):
            call()


@given(seeds)
def test_packing_adds_up_and_comes_back(seed):
    rng = np.random.default_rng(seed)
    weights = Weights(0.5, 2.0, 3.0)
    one, other = (moments_of(rng.normal(size=(5, WIDTH)), rng.integers(CLASSES, size=5)) for _ in range(2))
    back = unpack(pack(one, weights) + pack(other, weights), CLASSES, WIDTH, weights)
    for found, a, b in zip(back, one, other, strict=True):
        np.testing.assert_allclose(found, a + b, atol=1e-12)
    assert len(pack(one, weights)) == packed_length(CLASSES, WIDTH)
    with pytest.raises(ValueError, match=r"3 classes and 4 coordinates have 25 numbers, got \(24,\)"):
        unpack(np.zeros(24), CLASSES, WIDTH, weights)


@given(seeds)
def test_the_positive_part_is_the_matrix_itself_where_it_is_positive(seed):
    rows = np.random.default_rng(seed).normal(size=(3, WIDTH))
    np.testing.assert_allclose(positive_part(rows.T @ rows), rows.T @ rows, atol=1e-9)
    assert np.linalg.eigvalsh(positive_part(rows.T @ rows - np.eye(WIDTH))).min() > -1e-9


def test_noise_is_normal():
    found = np.sort(normals(200_001, b"n" * 32))
    grid = np.linspace(-4, 4, 81)
    below = np.searchsorted(found, grid) / len(found)
    expected = [0.5 * math.erfc(-x / math.sqrt(2)) for x in grid]
    assert np.abs(below - expected).max() < 1.95 / math.sqrt(len(found))  # Kolmogorov's bound at 0.1 %
    halves = normals(200_000, b"m" * 32).reshape(2, -1)
    assert abs(np.corrcoef(halves)[0, 1]) < 0.01


def test_noise_shared_out_adds_up_to_the_noise_of_one():
    arguments = {"sensitivity": 2.0, "noise_multiplier": 1.5}
    shares = [noise(50_000, seed=bytes([k]) * 32, contributors=10, **arguments) for k in range(10)]
    assert sum(shares).std() == pytest.approx(3.0, rel=0.02)
    assert np.array_equal(shares[0], noise(50_000, seed=bytes(32), contributors=10, **arguments))
    for wrong in ({"contributors": 0}, {"noise_multiplier": -1.0}, {"sensitivity": math.nan}):
        with pytest.raises(ValueError, match="noise needs at least 1 contributor"):
            noise(3, seed=bytes(32), **{**arguments, **wrong})


def test_a_noisy_message_is_values_plus_noise_for_the_rounded_sensitivity():
    values, seed = np.linspace(-3, 3, 1000), b"s" * 32
    words = noisy(values, sensitivity=2.0, noise_multiplier=1.5, seed=seed, contributors=4, bits=6)
    sensitivity = with_rounding(2.0, length=1000, bits=6)
    added = noise(1000, sensitivity=sensitivity, noise_multiplier=1.5, seed=seed, contributors=4)
    assert np.array_equal(words, encode(values, bits=6) + encode(added, bits=6))
    with pytest.raises(ValueError, match="the message has a value of magnitude"):
        noisy(np.array([limit() / 2]), sensitivity=0.0, noise_multiplier=0.0, seed=seed)


def test_a_noisy_secure_sum_has_the_noise_of_one():
    vectors = {who: np.full(20_000, float(who)) for who in range(4)}
    seeds = {who: bytes([who]) * 32 for who in vectors}
    arguments = {"sensitivity": 2.0, "noise_multiplier": 1.5, "contributors": 4}
    words = {who: noisy(vectors[who], seed=seeds[who], **arguments) for who in vectors}
    found = decode(Sum(Terms(session="noisy", length=20_000, minimum=4), words).run())
    assert found.mean() == pytest.approx(6.0, abs=0.1)
    assert found.std() == pytest.approx(3.0, rel=0.02)


def closed_form(multiplier: float, delta: float) -> float:
    """Epsilon of one Gaussian of this multiplier, from Balle and Wang (ICML 2018), theorem 8, by bisection."""

    def normal_below(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    def delta_of(epsilon):
        a, b = 1 / (2 * multiplier), epsilon * multiplier
        return normal_below(a - b) - math.exp(epsilon) * normal_below(-a - b)

    low, high = 0.0, 600.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("multiplier", [0.1, 0.7, 2.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_one_release_costs_what_the_closed_form_says(multiplier, delta):
    exact = closed_form(multiplier, delta)
    found = epsilon_of([Release(multiplier)], delta)
    assert exact - 1e-6 <= found <= exact * 1.001 + 1e-3


@given(st.lists(st.tuples(st.floats(1.0, 20.0), st.integers(1, 20)), min_size=1, max_size=3))
@settings(max_examples=8, deadline=None)
def test_different_releases_compose_as_gaussians_do(kinds):
    # Costs 1 / z**2 add up: Dong, Roth and Su, "Gaussian Differential Privacy", 2022, corollary 3.3.
    together = epsilon_of([Release(z, n) for z, n in kinds], 1e-5)
    exact = closed_form(sum(n / z**2 for z, n in kinds) ** -0.5, 1e-5)
    assert exact - 1e-6 <= together <= exact * 1.002 + 5e-3


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_noise_for_a_budget_spends_it(epsilon):
    factor = noise_for(epsilon, 1e-5, [Release(1.0), Release(3.0, times=5)])
    spent = epsilon_of([Release(factor), Release(3 * factor, times=5)], 1e-5)
    assert 0.99 * epsilon < spent <= epsilon


def test_nothing_sent_costs_nothing_and_nonsense_is_refused():
    assert epsilon_of([], 1e-5) == 0.0
    assert epsilon_of([Release(1.0, times=0)], 1e-5) == 0.0
    with pytest.raises(ValueError, match="`delta` must be between 0 and 1"):
        epsilon_of([Release(1.0)], 0.0)
    with pytest.raises(ValueError, match="epsilon above 0 and at least one message"):
        noise_for(1.0, 1e-5, [])
    with pytest.raises(ValueError, match="noise multiplier above 0"):
        Release(0.0)


def test_a_missing_accountant_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'isoproto\[privacy\]'"):
        epsilon_of([Release(1.0)], 1e-5)
