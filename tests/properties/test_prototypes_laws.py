"""Laws of averaging. Small whole numbers make every sum exact."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from isoproto.geometry.prototypes import ClassRows, average_prototypes, average_tensors

CLASSES, WIDTH = 4, 3
WEIGHTINGS = st.sampled_from(["class_samples", "uniform", "client_samples"])


@st.composite
def contributions(draw: st.DrawFn) -> ClassRows:
    ids = sorted(draw(st.sets(st.integers(0, CLASSES - 1))))
    number = st.integers(-8, 8)
    rows = [draw(st.lists(number, min_size=WIDTH, max_size=WIDTH)) for _ in ids]
    counts = [draw(st.integers(1, 16)) for _ in ids]
    return ClassRows(
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(rows, dtype=torch.float32).view(len(ids), WIDTH),
        torch.tensor(counts, dtype=torch.int64),
        sum(counts) + draw(st.integers(0, 5)),
    )


GROUPS = st.lists(contributions(), max_size=6)


def average(sent, weighting="class_samples"):
    return average_prototypes(sent, CLASSES, WIDTH, weighting=weighting)


@given(GROUPS, WEIGHTINGS, st.randoms(use_true_random=False))
def test_order_changes_no_bit(sent, weighting, rng):
    shuffled = sent[:]
    rng.shuffle(shuffled)
    assert all(torch.equal(a, b) for a, b in zip(average(sent, weighting), average(shuffled, weighting), strict=True))


@given(GROUPS, WEIGHTINGS)
def test_a_mean_lies_between_the_smallest_and_the_largest(sent, weighting):
    result = average(sent, weighting)
    for c in range(CLASSES):
        rows = [s.rows[s.class_ids == c] for s in sent]
        held = torch.cat(rows) if rows else torch.zeros(0, WIDTH)
        assert bool(result.present[c]) == (len(held) > 0)
        assert int(result.holders[c]) == len(held)
        if len(held):
            assert (result.vectors[c] >= held.amin(0) - 1e-5).all()
            assert (result.vectors[c] <= held.amax(0) + 1e-5).all()


@given(contributions(), st.integers(1, 6), WEIGHTINGS)
def test_all_clients_sending_the_same_is_that(one, times, weighting):
    result = average([one] * times, weighting)
    assert torch.equal(result.vectors[one.class_ids], one.rows)


@given(GROUPS, st.permutations(range(CLASSES)))
def test_renaming_classes_renames_the_result(sent, names):
    names = torch.tensor(names)

    def renamed(c: ClassRows) -> ClassRows:
        ids, order = names[c.class_ids].sort()
        return ClassRows(ids, c.rows[order], c.counts[order], c.samples)

    plain, other = average(sent), average([renamed(c) for c in sent])
    assert torch.equal(other.vectors[names], plain.vectors)
    assert torch.equal(other.present[names], plain.present)


@given(GROUPS)
def test_weighted_by_samples_it_is_the_pooled_mean(sent):
    result = average(sent)
    total = torch.zeros(CLASSES, WIDTH, dtype=torch.float64)
    count = torch.zeros(CLASSES, dtype=torch.int64)
    for ids, means, counts, _ in sent:
        total[ids] += means.double() * counts.unsqueeze(1)
        count[ids] += counts
    pooled = total / count.clamp(min=1).unsqueeze(1)
    assert torch.equal(result.vectors, pooled.float())


@given(GROUPS, WEIGHTINGS)
def test_clients_without_data_change_nothing(sent, weighting):
    none = ClassRows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.int64), 0)
    with_none = average([none, *sent, none], weighting)
    assert all(torch.equal(a, b) for a, b in zip(with_none, average(sent, weighting), strict=True))


@given(st.lists(st.tuples(st.integers(-64, 64), st.integers(1, 8)), min_size=1, max_size=6))
def test_averaged_weights_lie_in_the_hull(pairs):
    states = [{"w": torch.tensor([float(value)])} for value, _ in pairs]
    result = average_tensors(states, [weight for _, weight in pairs])["w"].item()
    values = [value for value, _ in pairs]
    assert min(values) - 1e-4 <= result <= max(values) + 1e-4
