"""What a client makes of a broadcast, above all where it is told to use nothing of other clients."""

from types import SimpleNamespace

import pytest
import torch
from client_app.view import Own, View
from strategies.state import ServerState

from client_app.local_round import _alignment
from isoproto import wire
from isoproto.config import RunConfig
from isoproto.errors import ConfigError
from isoproto.geometry.prototypes import ClassRows
from isoproto.losses import LOSSES
from strategies import STRATEGIES, hyper

C, D = 4, 6
CLIENT = SimpleNamespace(num_classes=C, device=torch.device("cpu"))


def resolved(**settings):
    config = RunConfig.from_mapping({"feature-dim": D, **settings})
    return STRATEGIES[config.strategy].resolve(config)


def rows(seed):
    return torch.randn(C, D, generator=torch.Generator().manual_seed(seed))


def view_of(config, others=0, own=0):
    """A client that holds three classes, after a round in which the federation found prototypes."""
    state = ServerState(prototypes=rows(others), present=torch.ones(C, dtype=torch.bool), age=torch.zeros(C))
    broadcast = wire.Broadcast(
        experiment="e",
        server_round=2,
        settings={},
        prototypes=state.prototypes,
        present=state.present,
        **hyper.downlink(state, config),
    )
    return View(config, "0", broadcast, Own(rows(100 + own), torch.tensor([3, 3, 3, 0]), 0.1))


def aligned_to(view):
    found = _alignment(view, CLIENT)
    return None if found is None else found.target


@pytest.mark.parametrize("init", ["normal", "prototypes"])
def test_own_anchors_start_from_the_clients_prototypes(init):
    config = resolved(strategy="isoproto", anchors="own", **{"hyper.init": init, "hyper.spread": 0.0})
    view = view_of(config)
    anchors = view._summaries(C, D)
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
    settings = {"strategy": "isoproto", "frame": frame, "anchors": anchors, "relation.shrink": shrink}
    config = resolved(alignment=alignment, **settings)
    one, other = (view_of(config, others) for others in (1, 2))
    assert aligned_to(one) is not None
    assert torch.equal(aligned_to(one), aligned_to(other))
    for mine, same in zip(one._summaries(C, D), other._summaries(C, D), strict=True):
        assert torch.equal(mine, same)
    if anchors == "own":
        assert not torch.equal(aligned_to(one), aligned_to(view_of(config, own=1)))


@pytest.mark.parametrize(("alignment", "distance"), [("gcsa", -1 / (C - 1)), ("rcsa", 2.0)])
def test_private_relations_are_the_simplex(alignment, distance):
    target = aligned_to(view_of(resolved(strategy="fedsaf", alignment=alignment, anchors="private")))
    torch.testing.assert_close(target, distance * (1 - torch.eye(C)))


@pytest.mark.parametrize("alignment", ["mse", "cosine+hpal"])
def test_private_vectors_are_no_prototypes_to_align_to(alignment):
    with pytest.raises(ConfigError, match=r"`anchors = private` leaves no prototypes for .* set anchors = 'own'"):
        resolved(strategy="fedsaf", alignment=alignment, anchors="private")


@pytest.mark.parametrize("known", ["gcsa", "rcsa"])
def test_a_loss_gets_the_relations_of_its_kind_whatever_its_name(monkeypatch, known):
    monkeypatch.setitem(LOSSES, "third", LOSSES[known])
    monkeypatch.setattr(hyper, "RELATIONAL", hyper.RELATIONAL | {"third"})

    def made(alignment):
        settings = {"strategy": "fedsaf", "alignment": alignment, "frame": "procrustes", "relation.shrink": 0.5}
        server, client = resolved(**settings), resolved(**settings, anchors="own")
        return [view_of(server).broadcast.relations, view_of(client).relations(C), *averaged(server).values()]

    for got, wanted in zip(made("third"), made(known), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def averaged(config):
    """The relations that the server keeps after a round with one client."""
    state = ServerState(prototypes=rows(0), present=torch.ones(C, dtype=torch.bool), age=torch.zeros(C))
    reply = hyper.Sent(ClassRows(torch.arange(C), rows(1), torch.full((C,), 5), 5 * C), 0.1, None)
    return hyper.relate(state, config, [reply]).memory
