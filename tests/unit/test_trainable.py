"""Prototypes that the server trains (FedTGP), against a version written as loops, and with every alignment."""

import dataclasses
import math

import pytest
import torch

from isoproto.config import RunConfig
from isoproto.errors import ConfigError
from isoproto.geometry.prototypes import ClassRows
from isoproto.losses import LOSSES
from isoproto.parts import Sent, ServerState
from isoproto.parts.trainable import PrototypeNet, TrainablePrototypes, adaptive_margin, margin_loss
from isoproto.seeding import torch_generator
from strategies import STRATEGIES

C, D = 4, 6
START = ServerState.start(C, D)


def part(**settings):
    settings = {"strategy": "fedtgp", "feature-dim": D, "tgp.epochs": 3, "tgp.learning-rate": 0.1, **settings}
    return TrainablePrototypes.of(STRATEGIES["fedtgp"].resolve(RunConfig.from_mapping(settings)))


def sent(*clients, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        Sent(
            ClassRows(torch.tensor(ids), torch.randn(len(ids), D, generator=generator), torch.full((len(ids),), 9), 36),
            0.1,
            {},
            {},
        )
        for ids in clients
    ]


def by_loops(net, replies, *, epochs, rate, size, most, generator):
    """The server's step as the paper writes it: pair by pair, with autograd's own gradient."""
    pairs = [(row, int(c)) for s in replies for row, c in zip(s.means.rows, s.means.class_ids, strict=True)]
    means = {c: torch.stack([p for p, k in pairs if k == c]).mean(0) for c in sorted({k for _, k in pairs})}
    gaps = (
        [min(float((m - o).norm()) for k, o in means.items() if k != c) for c, m in means.items()]
        if len(means) > 1
        else [0]
    )
    margin = min(max(gaps), most)
    weights = [t.clone().requires_grad_() for t in net.tensors]
    for _ in range(epochs):
        for index in torch.randperm(len(pairs), generator=generator).split(size):
            e, w1, b1, w2, b2 = weights
            made = (e @ w1.T + b1).relu() @ w2.T + b2
            losses = []
            for i in index:
                row, c = pairs[i]
                logits = torch.stack([-((row - made[k]).norm() + margin * (k == c)) for k in range(C)])
                losses.append(-(logits[c] - logits.logsumexp(0)))
            gradients = torch.autograd.grad(torch.stack(losses).mean(), weights)
            weights = [(w - rate * g).detach().requires_grad_() for w, g in zip(weights, gradients, strict=True)]
    return PrototypeNet(*(w.detach() for w in weights)).prototypes()


def test_the_servers_step_is_that_of_the_loops():
    replies = sent([0, 1, 2], [0, 1], [2], seed=1)
    state = part(**{"batch-size": 4}).fold(START, START, replies)
    wanted = by_loops(
        PrototypeNet.start(C, D, torch_generator(0, "tgp")),
        replies,
        epochs=3,
        rate=0.1,
        size=4,
        most=100.0,
        generator=torch_generator(0, "tgp", 0),
    )
    assert torch.allclose(state.prototypes, wanted, atol=1e-6)
    assert state.present.all()  # class 3 too, which nobody holds


def test_the_network_goes_on_from_round_to_round():
    replies = sent([0, 1, 2, 3])
    first = part().fold(START, START, replies)
    second = part().fold(first, first, replies)
    assert not torch.equal(first.prototypes, second.prototypes)
    again = part().fold(first, dataclasses.replace(first), replies)
    assert torch.equal(second.prototypes, again.prototypes)


def test_training_brings_class_means_nearer_to_their_own_prototype():
    replies = sent([0, 1, 2, 3])
    x, y = torch.cat([s.means.rows for s in replies]), torch.cat([s.means.class_ids for s in replies])
    states = [part(**{"tgp.epochs": epochs}).fold(START, START, replies) for epochs in (0, 200)]
    before, after = (float(margin_loss(x, y, s.prototypes, 0.0)) for s in states)
    assert after < before / 2


def test_a_thin_class_is_not_trained_on():
    few = {"min-contributors": 2}
    one, other = (part(**few).fold(START, START, [*sent([0, 1], [0, 1]), *sent([3], seed=s)]) for s in (5, 6))
    assert torch.equal(one.prototypes, other.prototypes)


def test_without_class_means_the_prototypes_stay():
    known = part().fold(START, START, sent([0, 1]))
    after = part().fold(known, known, [])
    assert torch.equal(after.prototypes, known.prototypes)
    assert after.age.tolist() == [1] * C


@pytest.mark.parametrize("row", [[0.0] * D, [1e30] * D])
def test_equal_and_huge_rows_leave_finite_prototypes(row):
    same = ClassRows(torch.tensor([0, 1]), torch.tensor([row, row]), torch.tensor([3, 3]), 6)
    after = part().fold(START, START, [Sent(same, 0.0, {}, {})])
    assert after.prototypes.isfinite().all()


def test_margins_of_one_class_and_above_the_most():
    one = torch.tensor([True, False])
    assert adaptive_margin(torch.randn(2, 3), one, 100.0) == 0.0
    assert adaptive_margin(torch.tensor([[0.0], [math.e * 1e3]]), torch.tensor([True, True]), 100.0) == 100.0


@pytest.mark.parametrize("alignment", [*LOSSES, "hpcl", "hpal", "gcsa+hpcl+hpal"])
def test_trained_prototypes_work_with_every_alignment(federation, alignment):
    run = federation.run(settings={"strategy": "fedtgp", "alignment": alignment, "rounds": 2, "missing": "mask"})
    assert not run.failures()
    losses = run.of("round", round=2)[0]["loss"]
    assert losses["total"] != pytest.approx(losses["cross_entropy"])


def test_another_frame_is_refused():
    with pytest.raises(
        ConfigError, match="`prototypes = trainable` makes prototypes of another kind; set frame = 'shared'"
    ):
        part(frame="gram")
