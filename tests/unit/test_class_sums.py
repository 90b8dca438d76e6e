import pytest
import torch

from isoproto.geometry.class_sums import ClassSums

VECTORS = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 4.0]])
LABELS = torch.tensor([0, 2, 2])


def test_sums_counts_and_means_of_a_batch():
    sums = ClassSums.of(VECTORS, LABELS, 4)
    assert sums.total.tolist() == [[1, 2], [0, 0], [3, 3], [0, 0]]
    assert sums.count.tolist() == [1, 0, 2, 0]
    assert sums.count.dtype == torch.int64
    assert sums.present.tolist() == [True, False, True, False]
    assert sums.mean().tolist() == [[1, 2], [0, 0], [1.5, 1.5], [0, 0]]


def test_nothing_has_zero_means():
    empty = ClassSums.of(VECTORS[:0], LABELS[:0], 3) + ClassSums.zeros(3, 2)
    assert torch.equal(empty.mean(), torch.zeros(3, 2))
    assert not empty.present.any()


@pytest.mark.parametrize(
    ("given", "kept"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
)
def test_totals_are_at_least_float32(given, kept):
    sums = ClassSums.of(VECTORS.to(given), LABELS, 3)
    assert sums.total.dtype == kept
    assert (sums + ClassSums.zeros(3, 2, dtype=kept)).total.dtype == kept


def test_autocast_does_not_round_the_totals():
    vectors = 1 + VECTORS / 1000  # bfloat16 would round all of them to 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sums = ClassSums.of(vectors, LABELS, 3)
    assert torch.equal(sums.total, ClassSums.of(vectors, LABELS, 3).total)
    assert sums.total[0, 0] > 1


def test_sums_of_different_widths_do_not_add_up():
    with pytest.raises(ValueError, match=r"same classes and width, got totals \(3, 2\) and \(3, 1\)"):
        ClassSums.zeros(3, 2) + ClassSums.zeros(3, 1)
