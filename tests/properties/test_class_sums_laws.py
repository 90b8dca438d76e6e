"""Small integers add exactly in float32, so equality here needs no tolerance."""

import functools
import operator

import torch
from hypothesis import given
from hypothesis import strategies as st

from isoproto.geometry.class_sums import ClassSums

C, D = 4, 3
rows = st.tuples(st.integers(0, C - 1), st.tuples(*[st.integers(-99, 99)] * D))
batches = st.lists(rows, max_size=12)


def sums(batch):
    labels = torch.tensor([label for label, _ in batch], dtype=torch.int64)
    vectors = torch.tensor([vector for _, vector in batch], dtype=torch.float32).reshape(len(batch), D)
    return ClassSums.of(vectors, labels, C)


def assert_equal(a, b):
    assert torch.equal(a.total, b.total)
    assert torch.equal(a.count, b.count)
    assert torch.equal(a.mean(), b.mean())


@given(batches, batches)
def test_merging_two_batches_equals_pooling_them(a, b):
    assert_equal(sums(a) + sums(b), sums(a + b))


@given(batches)
def test_zeros_are_neutral(a):
    assert_equal(sums(a) + ClassSums.zeros(C, D), sums(a))
    assert_equal(ClassSums.zeros(C, D) + sums(a), sums(a))


@given(st.lists(batches, max_size=5), st.randoms(use_true_random=False))
def test_order_of_merging_is_no_matter(parts, random):
    shuffled = random.sample(parts, len(parts))
    start = ClassSums.zeros(C, D)
    assert_equal(
        functools.reduce(operator.add, map(sums, parts), start),
        functools.reduce(operator.add, map(sums, shuffled), start),
    )


@given(batches, st.permutations(range(C)))
def test_renaming_classes_renames_the_rows(batch, names):
    renamed = sums([(names[label], vector) for label, vector in batch])
    assert torch.equal(renamed.total[list(names)], sums(batch).total)
    assert torch.equal(renamed.count[list(names)], sums(batch).count)


@given(batches)
def test_counts_are_preserved_and_means_stay_between_the_vectors(batch):
    result = sums(batch)
    assert int(result.count.sum()) == len(batch)
    for label, mean in enumerate(result.mean()):
        held = torch.tensor([vector for other, vector in batch if other == label], dtype=torch.float32)
        if len(held):
            assert (mean >= held.amin(0) - 1e-4).all()
            assert (mean <= held.amax(0) + 1e-4).all()
