"""What the server makes of replies: what fewer clients than ``min-contributors`` told of reaches nobody."""

import dataclasses

import pytest
import torch
from strategies.state import ServerState

from isoproto.config import RunConfig
from isoproto.errors import FrameError
from isoproto.geometry.prototypes import ClassRows
from strategies import STRATEGIES, hyper

C, D = 5, 16
START = ServerState.start(C, D)


def config(**settings):
    settings = {"strategy": "isoproto", "feature-dim": D, "min-contributors": 2, **settings}
    return STRATEGIES[settings["strategy"]].resolve(RunConfig.from_mapping(settings))


def sent(ids, seed, *, last=0.0, classifier=False):
    """A client's reply with random means; those of its last class are off by ``last``."""
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(len(ids), D, generator=g)
    means[-1] += last * torch.randn(D, generator=g)
    counts = torch.full((len(ids),), 20)
    heads = (torch.randn(len(ids), C, D, generator=g), torch.randn(len(ids), C, generator=g)) if classifier else None
    return hyper.Sent(ClassRows(torch.tensor(ids), means, counts, int(counts.sum())), 0.1, None, heads)


def after(present):
    present = torch.tensor(present)
    prototypes = torch.randn(C, D, generator=torch.Generator().manual_seed(9)) * present.unsqueeze(1)
    return dataclasses.replace(START, prototypes=prototypes, present=present)


@pytest.mark.parametrize("frame", ["shared", "procrustes"])
def test_the_servers_head_learns_nothing_of_a_thin_class(frame):
    """It is sent to all clients."""
    settings, state = config(**{"hyper.head": "server", "frame": frame}), after([True] * 3 + [False] * 2)
    one, other = (
        hyper.learn(START, state, settings, [sent([0, 1, 2], 1), sent([0, 1, 2], 2), sent([0, 1, 4], 3, last=last)])
        for last in (0.0, 9.0)
    )
    assert torch.equal(one.memory["head-weight"], other.memory["head-weight"])
    assert not torch.equal(one.memory["head-weight"], hyper.server_head(START, settings)[0])


def test_the_servers_head_stays_if_all_classes_are_thin():
    settings = config(**{"hyper.head": "server"})
    state = hyper.learn(START, START, settings, [sent([0, 1], 1), sent([2, 3], 2)])
    assert torch.equal(state.memory["head-weight"], hyper.server_head(START, settings)[0])


@pytest.mark.parametrize("structural", ["gcsa", "rcsa"])
@pytest.mark.parametrize("frame", ["gram", "procrustes"])
def test_what_one_client_alone_says_of_a_pair_reaches_nobody(frame, structural):
    """Each class has two holders, and class 3 meets each other class in one client only."""
    settings = config(frame=frame, alignment=structural)
    one, other = (
        hyper.relate(
            START,
            settings,
            [sent([0, 1, 2], 1), sent([0, 1, 2], 2), sent([0, 3], 3, last=last), sent([1, 3], 4)],
        )
        for last in (0.0, 9.0)
    )
    assert one.present.tolist() == [True] * 4 + [False]
    assert torch.equal(one.memory["distances"], other.memory["distances"])
    assert not one.memory["seen"][3].any()
    if frame == "gram":
        assert torch.equal(one.prototypes, other.prototypes)


def test_a_class_of_one_aligned_client_is_not_published():
    """Its second holder has no other class, and so no map into the common frame: it vouches for nothing."""
    settings = config(frame="procrustes", alignment="gcsa")
    one, other = (
        hyper.relate(START, settings, [sent([0, 1, 2, 3], 1), sent([0, 1, 2], 2), sent([3], 3, last=last)])
        for last in (0.0, 9.0)
    )
    assert torch.equal(one.prototypes, other.prototypes)
    assert not one.memory["seen"][3].any()


def test_a_thin_class_has_no_part_in_a_retrained_classifier():
    settings = config(strategy="fedhpro", **{"hyper.retrain": "creff"})
    state = dataclasses.replace(START, shared={"head.weight": torch.ones(C, D), "head.bias": torch.zeros(C)})
    one, other = (
        hyper.retrain(
            START,
            state,
            settings,
            [sent([0, 1], 1, classifier=True), sent([0, 1], 2, classifier=True), sent([4], seed, classifier=True)],
        )
        for seed in (3, 4)
    )
    assert torch.equal(one.shared["head.weight"], other.shared["head.weight"])
    assert one.memory["meta-known"].tolist() == [True, True, False, False, False]


def test_the_averaged_classifier_stays_if_all_classes_are_thin():
    settings = config(strategy="fedhpro", **{"hyper.retrain": "creff"})
    state = dataclasses.replace(START, shared={"head.weight": torch.ones(C, D), "head.bias": torch.zeros(C)})
    assert hyper.retrain(START, state, settings, [sent([0, 1], 1, classifier=True)]) is state


def test_a_round_without_a_frame_makes_all_classes_older(monkeypatch):
    def fails(*_, **__):
        raise FrameError("no eigenvalues")

    monkeypatch.setattr(hyper, "embed", fails)
    state = hyper.relate(after([True] * 5), config(frame="gram"), [sent([0, 1, 2], 1)] * 2)
    assert state.age.tolist() == [1] * C


def test_the_gradient_limit_before_training_is_that_of_the_head_that_was_sent():
    method = STRATEGIES["fedhpro"]
    settings = config(strategy="fedhpro", **{"hyper.grad-point": "before-training"})
    strategy = method(settings, None)
    strategy.state = START
    assert strategy._gradient_limit() == float("inf")  # of the head in the reply
    strategy.state = dataclasses.replace(START, shared={"head.weight": torch.ones(C, D)})
    assert strategy._gradient_limit() == pytest.approx(2.02 * 4)
