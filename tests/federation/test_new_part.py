"""A part of a method that is declared here, and nowhere else, takes part in whole federations."""

import contextlib
import itertools
import re
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from isoproto.errors import FederationError
from isoproto.parts import Field, LossTerm, Part, PartState
from tests.fakes import When, add_part, altered


@dataclass(frozen=True)
class MeanNorms(PartState):
    mean_norms: Tensor


class Shrinking(LossTerm):
    """Pull features to the origin."""

    names = ("shrinking",)
    weights = torch.tensor([0.1])

    def batches(self, labels):
        return itertools.repeat(lambda batch: batch.features.square().mean().view(1), len(labels))


class Shrink(Part):
    """Clients tell how long their features of a class are; from round 2 on they keep them short."""

    down = (Field(name="mean-norms", shape="C"),)
    up = (Field(name="norms", shape="P", may_send="gradients", noun="lengths of features"),)
    reports = ("shrinking",)
    measures = "after"
    sends = up

    @classmethod
    def of(cls, config):
        return cls()

    def downlink(self, state):
        kept = MeanNorms.of(state)
        return {} if kept is None else {"mean-norms": kept.mean_norms}

    def fold(self, before, after, sent):
        total, clients = torch.zeros(len(after.present)), torch.zeros(len(after.present))
        for rows in (s.rows("norms") for s in sent):
            total.index_add_(0, rows.class_ids, rows.rows.squeeze(1))
            clients[rows.class_ids] += 1
        return MeanNorms(total / clients.clamp(min=1)).put(after)

    def terms(self, view):
        return [Shrinking()] if "mean-norms" in view.arrays else []

    def measure(self, measured):
        lengths, labels = measured.features.norm(dim=1).cpu(), measured.labels
        total = torch.zeros(measured.view.num_classes).index_add_(0, labels, lengths)
        return {"norms": total / torch.bincount(labels, minlength=len(total)).clamp(min=1)}


@pytest.fixture(autouse=True)
def _one_part_more(monkeypatch):
    add_part(monkeypatch, Shrink)


@pytest.mark.parametrize("settings", [{}, {"cohort": "off"}, {"wire.dtype": "int8"}, {"strategy": "fedavg"}], ids=str)
def test_its_arrays_its_loss_and_its_state_go_the_whole_way(federation, settings):
    if settings.get("strategy") == "fedavg":
        settings = {**settings, "models": "resnet"}
    run = federation.run(settings=settings)
    assert run.failures() == {}
    first, *others = (line["loss"]["shrinking"] for line in run.of("round"))
    assert first == 0  # nothing was sent yet
    assert all(value > 0 for value in others)
    assert all("shrinking" in line["loss"] for line in run.of("client"))
    norms = run.server()["memory.mean-norms"]
    assert norms.shape == (4,)
    assert (norms > 0).all()


def test_its_rows_are_counted(federation, monkeypatch):
    run = federation.run()
    monkeypatch.undo()
    plain = federation.run()
    pairs = zip(run.of("round"), plain.of("round"), strict=True)
    more = [(a["bytes"]["up_rows"] - b["bytes"]["up_rows"], a["bytes"]["down"] > b["bytes"]["down"]) for a, b in pairs]
    # A number for each of the 14 classes that the four clients hold.
    assert more == [(14 * 4, False), (14 * 4, True), (14 * 4, True)]


def test_its_loss_is_expected_of_every_reply(federation):
    def edit(content):
        del content["metrics"]["loss-shrinking"]

    run = federation.run(federation.grid((altered(edit), When("train", [2], [1]))))
    assert list(run.failures()) == [(2, "1")]
    assert "metric 'loss-shrinking': expected a finite number, got None" in run.failures()[2, "1"]


def test_a_devices_owner_is_asked(federation):
    run = federation.run(federation.grid(node_configs={2: {"may-send": ""}}), {"rounds": 1})
    assert "asks for gradients, and `may-send` of this node allows nothing" in run.failures()[0, "node 10002"]


class Unreported(Shrink):
    reports = ()


class NeverMeasured(Shrink):
    measures = ""


@pytest.mark.parametrize("cohort", ["on", "off"])
@pytest.mark.parametrize(
    ("part", "server_round", "reason"),
    [
        (Unreported, 2, r"terms \['shrinking'\] are reported by no part; add them to `reports` of Unreported"),
        (NeverMeasured, 1, r"NeverMeasured sends \['norms'\] and measures it '': `measures` must be before or after"),
    ],
)
def test_what_it_forgets_to_declare_is_told(federation, monkeypatch, part, server_round, reason, cohort):
    monkeypatch.undo()
    add_part(monkeypatch, part)
    settings = {"models": "mlp", "batch-size": 10, "max-empty-rounds": 5, "cohort": cohort}
    with contextlib.suppress(FederationError):  # if the fault is there from the first round on
        federation.run(settings=settings)
    failures = federation.newest().failures()
    assert min(failures) == (server_round, "0")
    assert re.search(reason, failures[server_round, "0"])
