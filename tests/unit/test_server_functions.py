"""What the server makes of replies: what fewer clients than ``min-contributors`` told of reaches nobody."""

import dataclasses

import pytest
import torch

from isoproto.config import RunConfig
from isoproto.errors import FrameError
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import Sent, ServerState, relations
from isoproto.parts.hyper import HyperPrototypes
from isoproto.parts.relations import CommonFrame
from isoproto.parts.retrain import Retrain
from isoproto.parts.server_head import ServerHead, server_head
from strategies import STRATEGIES

C, D = 5, 16
START = ServerState.start(C, D)


def config(**settings):
    settings = {"strategy": "isoproto_anchors", "feature-dim": D, "min-contributors": 2, **settings}
    return STRATEGIES[settings["strategy"]].resolve(RunConfig.from_mapping(settings))


def sent(ids, seed, *, last=0.0, classifier=False):
    """A client's reply with random means; those of its last class are off by ``last``."""
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(len(ids), D, generator=g)
    means[-1] += last * torch.randn(D, generator=g)
    counts = torch.full((len(ids),), 20)
    arrays = {}
    if classifier:
        arrays["grad-weight"] = torch.randn(len(ids), C, D, generator=g)
        arrays["grad-bias"] = torch.randn(len(ids), C, generator=g)
    return Sent(ClassRows(torch.tensor(ids), means, counts, int(counts.sum())), 0.1, arrays, {})


def after(present):
    present = torch.tensor(present)
    prototypes = torch.randn(C, D, generator=torch.Generator().manual_seed(9)) * present.unsqueeze(1)
    return dataclasses.replace(START, prototypes=prototypes, present=present)


@pytest.mark.parametrize("frame", ["shared", "procrustes"])
def test_the_servers_head_learns_nothing_of_a_thin_class(frame):
    """It is sent to all clients."""
    settings, state = config(**{"hyper.head": "server", "frame": frame}), after([True] * 3 + [False] * 2)
    part = ServerHead.of(settings)
    one, other = (
        part.fold(START, state, [sent([0, 1, 2], 1), sent([0, 1, 2], 2), sent([0, 1, 4], 3, last=last)])
        for last in (0.0, 9.0)
    )
    assert torch.equal(one.memory["head-weight"], other.memory["head-weight"])
    assert not torch.equal(one.memory["head-weight"], server_head(START, settings.seed)[0])


def test_the_servers_head_stays_if_all_classes_are_thin():
    settings = config(**{"hyper.head": "server"})
    state = ServerHead.of(settings).fold(START, START, [sent([0, 1], 1), sent([2, 3], 2)])
    assert torch.equal(state.memory["head-weight"], server_head(START, settings.seed)[0])


@pytest.mark.parametrize("structural", ["gcsa", "rcsa"])
@pytest.mark.parametrize("frame", ["gram", "procrustes"])
def test_what_one_client_alone_says_of_a_pair_reaches_nobody(frame, structural):
    """Each class has two holders, and class 3 meets each other class in one client only."""
    part = CommonFrame.of(config(frame=frame, alignment=structural))
    one, other = (
        part.fold(
            START,
            START,
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
    part = CommonFrame.of(config(frame="procrustes", alignment="gcsa"))
    one, other = (
        part.fold(START, START, [sent([0, 1, 2, 3], 1), sent([0, 1, 2], 2), sent([3], 3, last=last)])
        for last in (0.0, 9.0)
    )
    assert torch.equal(one.prototypes, other.prototypes)
    assert not one.memory["seen"][3].any()


def test_a_thin_class_has_no_part_in_a_retrained_classifier():
    settings = config(strategy="fedhpro", **{"hyper.retrain": "creff"})
    state = dataclasses.replace(START, shared={"head.weight": torch.ones(C, D), "head.bias": torch.zeros(C)})
    one, other = (
        Retrain.of(settings).fold(
            START,
            state,
            [sent([0, 1], 1, classifier=True), sent([0, 1], 2, classifier=True), sent([4], seed, classifier=True)],
        )
        for seed in (3, 4)
    )
    assert torch.equal(one.shared["head.weight"], other.shared["head.weight"])
    assert one.memory["meta-known"].tolist() == [True, True, False, False, False]


def test_the_averaged_classifier_stays_if_all_classes_are_thin():
    settings = config(strategy="fedhpro", **{"hyper.retrain": "creff"})
    state = dataclasses.replace(START, shared={"head.weight": torch.ones(C, D), "head.bias": torch.zeros(C)})
    assert Retrain.of(settings).fold(START, state, [sent([0, 1], 1, classifier=True)]) is state


def test_a_round_without_a_frame_makes_all_classes_older(monkeypatch):
    def fails(*_, **__):
        raise FrameError("no eigenvalues")

    monkeypatch.setattr(relations, "embed", fails)
    before = after([True] * 5)
    state = CommonFrame.of(config(frame="gram")).fold(before, before, [sent([0, 1, 2], 1)] * 2)
    assert torch.equal(state.prototypes, before.prototypes)
    assert state.age.tolist() == [1] * C


def test_the_gradient_limit_before_training_is_that_of_the_head_that_was_sent():
    part = HyperPrototypes.of(config(strategy="fedhpro", **{"hyper.grad-point": "before-training"}))
    reply = {"head.weight": torch.full((C, D), 3.0)}
    assert part.limits(START)["grad"](reply).longest == pytest.approx(2.02 * 12)  # of the head in the reply
    assert part.limits(START)["grad"]({}).longest == float("inf")
    sent = dataclasses.replace(START, shared={"head.weight": torch.ones(C, D)})
    assert part.limits(sent)["grad"](reply).longest == pytest.approx(2.02 * 4)
