import math

import pytest
import torch
from torch import nn

from isoproto.geometry.prototypes import ClassRows, average_prototypes, average_tensors


def contribution(ids, means, counts, samples=None):
    counts = torch.tensor(counts, dtype=torch.int64)
    means = torch.tensor(means, dtype=torch.float32)
    return ClassRows(torch.tensor(ids, dtype=torch.int64), means, counts, samples or int(counts.sum()))


# Means (1, 2), (3, -1), (0, 4) of 10, 30 and 60 samples.
THREE_CLIENTS = [contribution([0], [p], [n]) for p, n in (((1, 2), 10), ((3, -1), 30), ((0, 4), 60))]


@pytest.mark.parametrize(
    ("weighting", "wanted"),
    [("uniform", (4 / 3, 5 / 3)), ("class_samples", (1.0, 2.3)), ("client_samples", (1.0, 2.3))],
)
def test_worked_numbers(weighting, wanted):
    """(10*1 + 30*3) / 100 = 1.0 and (20 - 30 + 240) / 100 = 2.3; plain means 4/3 and 5/3."""
    result = average_prototypes(THREE_CLIENTS, 1, 2, weighting=weighting)
    assert torch.allclose(result.vectors[0], torch.tensor(wanted), atol=1e-7)
    assert result.holders.tolist() == [3]


def test_client_samples_weigh_by_everything_a_client_has():
    """Client 1 lacks class 1. The weights are 100 and 50, whatever the class counts are."""
    sent = [contribution([0, 1], [[0.0], [6.0]], [1, 99]), contribution([0], [[3.0]], [50])]
    by = {
        w: average_prototypes(sent, 2, 1, weighting=w).vectors.flatten().tolist() for w in ("uniform", "class_samples")
    }
    assert by["uniform"] == [1.5, 6.0]
    assert by["class_samples"] == pytest.approx([150 / 51, 6.0])
    assert average_prototypes(sent, 2, 1, weighting="client_samples").vectors.flatten().tolist() == [1.0, 6.0]


def test_a_class_nobody_holds_is_absent_and_zero():
    result = average_prototypes([contribution([0, 3], [[1.0], [2.0]], [1, 1])], 5, 1)
    assert result.present.tolist() == [True, False, False, True, False]
    assert result.holders.tolist() == [1, 0, 0, 1, 0]
    assert result.vectors[~result.present].eq(0).all()


def test_one_client_is_the_mean():
    means = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    only = ClassRows(torch.tensor([0, 2, 3]), means, torch.tensor([5, 1, 9]), 15)
    for weighting in ("uniform", "class_samples", "client_samples"):
        assert torch.equal(average_prototypes([only], 4, 7, weighting=weighting).vectors[[0, 2, 3]], means)


def test_nobody_at_all_is_an_ordinary_case():
    result = average_prototypes([], 3, 2)
    assert not result.present.any()
    assert result.vectors.eq(0).all()


def test_clients_without_rows_change_nothing():
    none = ClassRows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 0)
    with_none, without = average_prototypes([none, *THREE_CLIENTS, none], 1, 2), average_prototypes(THREE_CLIENTS, 1, 2)
    assert all(torch.equal(a, b) for a, b in zip(with_none, without, strict=True))


def test_huge_counts_do_not_overflow():
    sent = [contribution([0], [[1.0]], [2**40]), contribution([0], [[3.0]], [2**40])]
    assert average_prototypes(sent, 1, 1).vectors.item() == 2.0


# Whole models


def test_tensors_are_averaged_by_weight():
    states = [{"w": torch.tensor([0.0, 8.0])}, {"w": torch.tensor([4.0, 0.0])}]
    assert average_tensors(states, [3, 1])["w"].tolist() == [1.0, 6.0]


def test_names_are_matched_and_not_positions():
    states = [{"a": torch.zeros(1), "b": torch.ones(1)}, {"b": torch.ones(1), "a": torch.zeros(1)}]
    assert {k: v.item() for k, v in average_tensors(states, [1, 1]).items()} == {"a": 0.0, "b": 1.0}


def test_batch_norm_is_averaged_as_a_whole():
    """Running statistics are averaged; the number of batches seen is the largest."""
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    first(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    second(torch.tensor([[0.0, 0.0], [2.0, 2.0]]))
    second(torch.tensor([[0.0, 0.0], [2.0, 2.0]]))
    average = average_tensors([first.state_dict(), second.state_dict()], [1, 1])
    assert average["num_batches_tracked"].item() == 2
    assert average["num_batches_tracked"].dtype == torch.int64
    assert average["num_batches_tracked"].shape == ()
    assert torch.allclose(average["running_mean"], (first.running_mean + second.running_mean) / 2)
    nn.BatchNorm1d(2).load_state_dict(average)


def test_equal_models_average_to_themselves():
    state = nn.Linear(5, 3).state_dict()
    average = average_tensors([state, state, state], [1, 2, 4])
    assert all(torch.allclose(average[name], tensor, rtol=1e-7) for name, tensor in state.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_dtype_is_kept(dtype):
    assert average_tensors([{"w": torch.ones(2, dtype=dtype)}], [1.0])["w"].dtype == dtype


def test_result_is_finite_for_large_weights():
    average = average_tensors([{"w": torch.ones(1)}, {"w": torch.zeros(1)}], [2**40, 1])
    assert math.isclose(average["w"].item(), 1.0)
