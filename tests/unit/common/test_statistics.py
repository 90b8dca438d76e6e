"""Class sums and scatter: worked numbers, a loop-written sibling, and samples of odd kinds."""

import pytest
import torch

from isoproto.common.statistics import Block, Totals, moments, total
from tests import plain_common as plain
from tests.points import randn


def samples(n=9, versions=2, width=4, classes=3, seed=0):
    return randn(n, versions, width, seed=seed), torch.arange(n) % classes


def scatter_of(block):
    factor = block.factor.double()
    return factor.T @ factor + block.floor * torch.eye(factor.shape[1], dtype=torch.float64)


def test_a_block_says_what_loops_over_samples_say():
    phi, labels = samples()
    block, (counts, sums, scatter) = Block.of(phi, labels), plain.statistics(phi, labels)
    assert dict(zip(block.class_ids.tolist(), block.counts.tolist(), strict=True)) == counts
    torch.testing.assert_close(block.sums, torch.tensor([sums[c] for c in sorted(sums)], dtype=torch.float64))
    torch.testing.assert_close(scatter_of(block), scatter)


def test_totals_say_what_loops_over_clients_say():
    parts = [samples(n, seed=n) for n in (1, 5, 9)]
    found = total([Block.of(*part) for part in parts], num_classes=4, width=4)
    counts, sums, scatter = plain.pooled(parts, 4, 4)
    torch.testing.assert_close(found.counts, counts)
    torch.testing.assert_close(found.sums, sums)
    torch.testing.assert_close(found.scatter, scatter)


def test_worked_numbers_of_two_clients():
    """Class 0 is at 0 and 2 in one client, at 4 in the other: mean 2, scatter 4 + 0 + 4."""
    one = Block.of(torch.tensor([0.0, 2.0]).double().view(2, 1, 1), torch.tensor([0, 0]))
    other = Block.of(torch.tensor([4.0]).double().view(1, 1, 1), torch.tensor([0]))
    found = total([one, other], num_classes=1, width=1)
    assert (found.counts.item(), found.sums.item()) == (3.0, 6.0)
    assert found.scatter.item() == pytest.approx(8.0)
    assert found.moment.item() == pytest.approx(0 + 4 + 16)


def test_versions_share_the_weight_of_their_sample():
    """Versions at 1 and 3 count as one sample at 2, and scatter by (1 + 1) / 2."""
    block = Block.of(torch.tensor([[[1.0], [3.0]]]).double(), torch.tensor([0]))
    assert (block.counts.tolist(), block.sums.tolist()) == ([1], [[2.0]])
    assert scatter_of(block).item() == pytest.approx(1.0)


def test_the_factor_is_not_the_samples():
    """As many rows as samples would otherwise be the samples about their mean."""
    phi, labels = samples(n=3, versions=1, width=6, classes=1)
    block = Block.of(phi, labels)
    centred = (phi - phi.mean(0))[:, 0]
    assert not any(torch.allclose(row.abs(), sample.abs()) for row in block.factor for sample in centred)


def test_a_client_with_many_samples_is_as_exact_as_one_with_few():
    """The root of a whole number is float32 in torch, so counts are converted first."""
    phi, labels = samples(n=3000, versions=1)
    phi = phi + 100
    split = total([Block.of(phi[:7], labels[:7]), Block.of(phi[7:], labels[7:])], 3, 4)
    whole = Totals.of(phi, labels, 3)
    torch.testing.assert_close(split.scatter / 3000, whole.scatter / 3000, rtol=0, atol=1e-9)


def test_a_cut_rank_keeps_the_trace_and_the_leading_directions():
    phi, labels = samples(n=200, width=12, versions=1)
    phi = phi * torch.linspace(3, 0.2, 12).double()
    whole = scatter_of(Block.of(phi, labels))
    cut = Block.of(phi, labels, rank=4)
    assert cut.factor.shape == (4, 12)
    assert scatter_of(cut).trace().item() == pytest.approx(whole.trace().item(), rel=1e-9)
    assert cut.floor > 0
    leading = torch.linalg.eigvalsh(whole)[-4:]
    torch.testing.assert_close(torch.linalg.eigvalsh(scatter_of(cut))[-4:], leading, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("rank", [12, 13, 9999])
def test_a_rank_of_the_width_or_more_is_the_whole_scatter(rank):
    phi, labels = samples(n=40, width=12)
    torch.testing.assert_close(scatter_of(Block.of(phi, labels, rank)), scatter_of(Block.of(phi, labels)))


def test_fewer_samples_than_coordinates():
    phi, labels = samples(n=3, versions=1, width=8, classes=2)
    block = Block.of(phi, labels, rank=5)
    assert block.factor.shape == (3, 8)
    torch.testing.assert_close(scatter_of(block), plain.statistics(phi, labels)[2])


@pytest.mark.parametrize("rank", [0, 2])
def test_samples_that_are_all_the_same_do_not_scatter(rank):
    phi = torch.full((7, 2, 5), 3.0, dtype=torch.float64)
    block = Block.of(phi, torch.zeros(7, dtype=torch.int64), rank)
    assert scatter_of(block).abs().max() == 0
    assert block.sums.tolist() == [[21.0] * 5]


def test_a_client_without_samples_adds_nothing():
    nothing = Block.of(torch.zeros(0, 3, 4).double(), torch.zeros(0, dtype=torch.int64))
    assert (len(nothing.class_ids), nothing.factor.shape) == (0, (0, 4))
    block = Block.of(*samples())
    alone, both = total([block], 3, 4), total([nothing, block], 3, 4)
    for a, b in zip(alone, both, strict=True):
        torch.testing.assert_close(a, b)


def test_no_blocks_at_all():
    found = total([], num_classes=2, width=3)
    assert all(tensor.abs().max() == 0 for tensor in found)


def test_many_rows_are_added_in_chunks(monkeypatch):
    blocks = [Block.of(*samples(seed=seed)) for seed in range(7)]
    at_once = total(blocks, 3, 4)
    monkeypatch.setattr("isoproto.common.statistics._ROWS", 10)
    monkeypatch.setattr("isoproto.common.statistics._COLUMNS", 3)
    for a, b in zip(at_once, total(blocks, 3, 4), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_totals_of_one_client_are_those_of_its_block():
    phi, labels = samples()
    for a, b in zip(Totals.of(phi, labels, 3), total([Block.of(phi, labels)], 3, 4), strict=True):
        torch.testing.assert_close(a, b)


def test_moments_of_groups_add_up_to_that_of_all():
    phi, labels = samples()
    each = moments(phi, labels, 4)
    assert each[3].abs().max() == 0
    torch.testing.assert_close(each.sum(0), Totals.of(phi, labels, 3).moment)
