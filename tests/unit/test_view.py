"""What a client makes of a broadcast, above all where it is told to use nothing of other clients."""

import pytest
import torch

from isoproto.config import RunConfig
from isoproto.errors import ConfigError
from isoproto.geometry.prototypes import ClassRows
from isoproto.losses import LOSSES
from isoproto.parts import OwnMeans, Sent, ServerState, View, parts_of
from isoproto.parts.alignment import Alignment
from isoproto.parts.anchors import AnchorLosses
from isoproto.parts.relations import CommonFrame
from strategies import STRATEGIES

C, D = 4, 6


def resolved(**settings):
    config = RunConfig.from_mapping({"feature-dim": D, **settings})
    return STRATEGIES[config.strategy].resolve(config)


def rows(seed):
    return torch.randn(C, D, generator=torch.Generator().manual_seed(seed))


def view_of(config, others=0, own=0):
    """A client that holds three classes, after a round in which the federation found prototypes."""
    state = ServerState(prototypes=rows(others), present=torch.ones(C, dtype=torch.bool), age=torch.zeros(C))
    return View(
        client="0",
        server_round=2,
        frame=config.frame,
        arrays={name: array for part in parts_of(config) for name, array in part.downlink(state).items()},
        own_means=OwnMeans(rows(100 + own), torch.tensor([3, 3, 3, 0]), 0.1),
        num_classes=C,
        feature_dim=D,
    )


def aligned_to(config, **seeds):
    (term,) = Alignment.of(config).terms(view_of(config, **seeds))
    return term.target


def anchors_of(config, **seeds):
    """Mean directions and means of the anchors, and the classes that have some."""
    return AnchorLosses.of(config)._summaries(view_of(config, **seeds))


@pytest.mark.parametrize("init", ["normal", "prototypes"])
def test_own_anchors_start_from_the_clients_prototypes(init):
    config = resolved(strategy="isoproto_anchors", anchors="own", **{"hyper.init": init, "hyper.spread": 0.0})
    anchors = anchors_of(config)
    assert anchors is not None
    torch.testing.assert_close(anchors[1][:3], rows(100)[:3])
    assert anchors[2].tolist() == [True, True, True, False]


@pytest.mark.parametrize("frame", ["shared", "procrustes"])
@pytest.mark.parametrize(
    ("anchors", "alignment"),
    [
        (a, f"{loss}+hpcl")
        for a, losses in (("own", ("gcsa", "rcsa", "mse", "cosine")), ("private", ("gcsa", "rcsa")))
        for loss in losses
    ],
)
@pytest.mark.parametrize("shrink", [0.0, 0.5])
def test_controls_use_nothing_of_other_clients(frame, anchors, alignment, shrink):
    settings = {"strategy": "isoproto_anchors", "frame": frame, "anchors": anchors, "relation.shrink": shrink}
    config = resolved(alignment=alignment, **settings)
    assert not torch.equal(*(view_of(config, others).arrays["prototypes"] for others in (1, 2)))
    assert torch.equal(aligned_to(config, others=1), aligned_to(config, others=2))
    for mine, same in zip(anchors_of(config, others=1), anchors_of(config, others=2), strict=True):
        assert torch.equal(mine, same)
    if anchors == "own":
        assert not torch.equal(aligned_to(config), aligned_to(config, own=1))


@pytest.mark.parametrize(("alignment", "distance"), [("gcsa", -1 / (C - 1)), ("rcsa", 2.0)])
def test_private_relations_are_the_simplex(alignment, distance):
    target = aligned_to(resolved(strategy="fedsaf", alignment=alignment, anchors="private"))
    torch.testing.assert_close(target, distance * (1 - torch.eye(C)))


@pytest.mark.parametrize("alignment", ["mse", "cosine+hpal"])
def test_private_vectors_are_no_prototypes_to_align_to(alignment):
    with pytest.raises(ConfigError, match=r"`anchors = private` leaves no prototypes for .* set anchors = 'own'"):
        resolved(strategy="fedsaf", alignment=alignment, anchors="private")


@pytest.mark.parametrize("known", ["gcsa", "rcsa"])
def test_a_loss_gets_the_relations_of_its_kind_whatever_its_name(monkeypatch, known):
    monkeypatch.setitem(LOSSES, "third", LOSSES[known])

    def made(alignment):
        settings = {"strategy": "fedsaf", "alignment": alignment, "frame": "procrustes", "relation.shrink": 0.5}
        server, client = resolved(**settings), resolved(**settings, anchors="own")
        own = Alignment.of(client).own_relations(view_of(client))
        return [view_of(server).arrays["relations"], own, *averaged(server).values()]

    for got, wanted in zip(made("third"), made(known), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def averaged(config):
    """The relations that the server keeps after a round with one client."""
    state = ServerState(prototypes=rows(0), present=torch.ones(C, dtype=torch.bool), age=torch.zeros(C))
    reply = Sent(ClassRows(torch.arange(C), rows(1), torch.full((C,), 5), 5 * C), 0.1, {}, {})
    return CommonFrame.of(config).fold(state, state, [reply]).memory
