"""What every entry of STRATEGIES must survive; a new strategy is under test as soon as it has its line there."""

import dataclasses
import math
import re

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

import isoproto.parts
from isoproto import wire
from isoproto.config import AUTO, MethodSettings, RunConfig
from isoproto.engines.in_process import InProcessGrid, task_identity
from isoproto.errors import ConfigError, FederationError
from isoproto.fingerprint import fingerprint
from isoproto.geometry.prototypes import ClassRows
from isoproto.losses import LOSSES, AlignmentLoss
from isoproto.parts import TERMS, Part, ServerState, parts_of
from isoproto.parts.anchors import learns_hyper_prototypes
from isoproto.runs.checkpoint import load_checkpoint, save_checkpoint
from isoproto.runs.run_folder import RunFolder
from strategies import STRATEGIES, PrototypeStrategy

C, D = 4, 3
CLASSES = ("a", "b", "c", "d")
# Written out: what a client of schema 1 reports, whatever the method.
LOSSES_TOLD = dict.fromkeys(("cross-entropy", "prototype", "instance", "hpcl", "hpal", "total"), 0.25)
# What clients of a strategy report besides, as its parts declare it.
OWN_LOSSES = {
    name: [term for part in parts_of(kind.resolve(RunConfig(strategy=name))) for term in part.reports]
    for name, kind in STRATEGIES.items()
}
WEIGHTS = {"head.weight": torch.ones(C, D), "base.bn.num_batches_tracked": torch.tensor(3)}


def reply(value=1.0, ids=(0, 1, 2), samples=None, **changes):
    counts = torch.tensor([5] * len(ids), dtype=torch.int64)
    values = {
        "means": ClassRows(
            torch.tensor(ids, dtype=torch.int64), torch.full((len(ids), D), value), counts, samples or int(counts.sum())
        ),
        "scatter": 0.5,
        "losses": LOSSES_TOLD,
        "before": wire.Evaluation(correct=1, total=4),
        "after": wire.Evaluation(correct=2, total=4),
        "seconds": 0.1,
    }
    return wire.TrainReply(**{**values, **changes})


class ScriptedGrid(InProcessGrid):
    """Clients that answer what they are told to: a ``TrainReply``, an exception, or a record of any kind."""

    def __init__(self, answers, config):
        super().__init__(None, len(answers))
        self.answers, self.config = answers, config
        self.received = []

    def answer(self, message):
        index = list(self._contexts).index(message.metadata.dst_node_id)
        if message.metadata.message_type == "query":
            return Message(wire.write_client_info(self._info(index)), reply_to=message)
        broadcast = wire.read_broadcast(message.content, num_classes=C, feature_dim=D)
        self.received.append(broadcast)
        if message.metadata.message_type == "evaluate":
            evaluation = wire.Evaluation(
                correct=2, total=4, class_correct=(2, 0, 0, 0), class_total=(4, 0, 0, 0), class_predicted=(2, 0, 1, 1)
            )
            return Message(wire.write_evaluate_reply(evaluation, broadcast, str(index)), reply_to=message)
        answer = self.answers[index]
        if callable(answer):
            answer = answer(broadcast, str(index))
        if isinstance(answer, Error):
            return Message(answer, reply_to=message)
        if isinstance(answer, wire.TrainReply):
            own = {name: 0.25 for name in OWN_LOSSES[self.config.strategy] if name not in LOSSES_TOLD}
            answer = dataclasses.replace(answer, losses={**answer.losses, **own})
            if self.config.share != "none":
                answer = dataclasses.replace(answer, shared=shared(self.config.share))
            answer = wire.write_train_reply(answer, broadcast, str(index))
        return Message(answer, reply_to=message)

    def _info(self, index):
        return wire.ClientInfo(
            client=str(index),
            model="cnn",
            feature_dim=D,
            classes=CLASSES,
            train_counts=(5,) * C,
            test_counts=(4, 0, 0, 0),
            partitions=len(self.answers),
            fingerprint=fingerprint(),
            shared=wire.tensor_spec(shared(self.config.share)),
        )


def shared(share):
    prefix = {"none": None, "head": "head.", "base": "base.", "model": ""}[share]
    return {} if prefix is None else {n: t for n, t in WEIGHTS.items() if n.startswith(prefix)}


def bad_schema(broadcast, client):
    content = wire.write_train_reply(reply(), broadcast, client)
    content["config"]["schema"] = 2
    return content


def wrong_width(broadcast, client):
    contribution = ClassRows(torch.tensor([0]), torch.ones(1, D + 1), torch.tensor([5]), 5)
    return wire.write_train_reply(reply(means=contribution), broadcast, client)


def without(loss):
    return reply(losses={name: value for name, value in LOSSES_TOLD.items() if name != loss})


ERROR = Error(2, "RuntimeError: no")
NOTHING = RecordDict({"x": ConfigRecord({"y": 1})})
NAN = reply(math.nan)


@pytest.fixture(autouse=True)
def _identity():
    with task_identity():
        yield


@pytest.fixture(params=sorted(STRATEGIES))
def kind(request) -> type[PrototypeStrategy]:
    return STRATEGIES[request.param]


@pytest.fixture
def start(kind, tmp_path):
    """Return a function that makes a strategy of this kind and has it meet scripted clients."""

    def started(answers, state=None, **settings):
        name = next(n for n, k in STRATEGIES.items() if k is kind)
        asked = {"strategy": name, "feature-dim": D, "max-empty-rounds": 3, "rounds": 99, **settings}
        config = kind.resolve(RunConfig.from_mapping(asked))
        strategy = kind(config, RunFolder.create(tmp_path, config), state)
        grid = ScriptedGrid(answers, config)
        strategy.meet(grid)
        return strategy, grid

    return started


def play(strategy, grid):
    """Play one round, as Flower's loop does."""
    sent = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    strategy.aggregate_train(1, grid.send_and_receive(sent, timeout=1))
    sent = strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), grid)
    strategy.aggregate_evaluate(1, grid.send_and_receive(sent, timeout=1))
    strategy.folder.commit()
    return strategy.state


def lines(strategy, kind):
    return [line for line in strategy.folder.lines() if line["kind"] == kind]


def same(a: ServerState, b: ServerState) -> bool:
    tensors = all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("prototypes", "present", "age"))
    shared = a.shared.keys() == b.shared.keys() and all(torch.equal(t, b.shared[n]) for n, t in a.shared.items())
    return (
        tensors
        and shared
        and (a.accuracy, a.empty_rounds, a.server_round)
        == (
            b.accuracy,
            b.empty_rounds,
            b.server_round,
        )
    )


def finite(state: ServerState) -> bool:
    tensors = [state.prototypes, *state.shared.values()]
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


# A point on three axes


def test_it_is_a_point_that_leaves_nothing_open(kind):
    config = kind.resolve(RunConfig())
    assert AUTO not in dataclasses.replace(config, device="", strategy="").to_mapping().values()
    assert set(config.alignment.split("+")) <= {"none", *LOSSES, *TERMS}
    assert kind.resolve(config) == config
    assert kind.__doc__


# All but the control, which exchanges nothing whatever is asked of it.
exchanging = pytest.mark.parametrize("kind", [STRATEGIES[name] for name in sorted(STRATEGIES) if name != "local"])


@exchanging
def test_settings_override_the_point(kind):
    chosen = {
        "prototypes": "mean",
        "alignment": "rcsa",
        "share": "head",
        "lambda": 0.5,
        "gamma": 0.25,
        "missing": "self",
    }
    config = kind.resolve(RunConfig.from_mapping(chosen))
    assert {key: config.to_mapping()[key] for key in chosen} == chosen


@exchanging
def test_it_refuses_an_alignment_without_prototypes(kind):
    with pytest.raises(ConfigError, match="`alignment = mse` needs global prototypes"):
        kind.resolve(RunConfig.from_mapping({"prototypes": "none", "alignment": "mse"}))


def resolved(**settings):
    config = RunConfig.from_mapping(settings)
    return STRATEGIES[config.strategy].resolve(config)


def test_the_order_of_terms_says_nothing():
    one, other = (resolved(strategy="fedhpro", alignment=terms) for terms in ("hpcl+hpal", "hpal + hpcl"))
    assert dataclasses.replace(other, alignment=one.alignment) == one


@pytest.mark.parametrize("alignment", ["gcsa", "rcsa+hpcl+hpal", "hpcl", "cosine"])
@pytest.mark.parametrize("strategy", ["isoproto_anchors", "fedhpro"])
def test_a_methods_own_defaults_hold_whatever_the_alignment(strategy, alignment):
    config, method = resolved(strategy=strategy, alignment=alignment), STRATEGIES[strategy].method
    axes, nothing = {"prototypes", "alignment", "share"}, MethodSettings()
    decided = {
        key: value
        for key, value in dataclasses.asdict(method).items()
        if value != getattr(nothing, key) and key not in axes
    }
    assert decided
    assert decided.items() <= dataclasses.asdict(config).items()


def test_the_weights_of_a_methods_own_loss_are_not_those_of_another():
    own, joined, other = (resolved(strategy="fedproto", alignment=terms) for terms in ("mse", "hpal+mse", "cosine"))
    assert [(c.lambda_, c.gamma, c.missing) for c in (own, joined)] == [(0.0, 1.0, "self")] * 2
    assert (other.lambda_, other.gamma, other.missing) == (0.1, 0.1, "mask")


def test_a_new_loss_starts_from_the_weights_it_is_registered_with(monkeypatch):
    """A table of weights elsewhere would leave it at 0 and 0, and it would do nothing."""
    monkeypatch.setitem(LOSSES, "huber", dataclasses.replace(LOSSES["mse"], weights=(0.5, 0.25)))
    config = resolved(strategy="fedsaf", alignment="huber")
    assert (config.lambda_, config.gamma) == (0.5, 0.25)


def test_a_loss_without_weights_cannot_be_made():
    mse = LOSSES["mse"]
    with pytest.raises(TypeError, match="'weights'"):
        AlignmentLoss(kind="coordinates", pair=mse.pair, target=mse.target, prepare=mse.prepare, compare=mse.compare)


@pytest.mark.parametrize("strategy", ["fedsaf", "fedavg"])
def test_a_loss_that_no_table_has_is_refused(strategy):
    with pytest.raises(ConfigError, match=r"unknown alignment 'huber'.* one of .*'gcsa', 'hpal', 'hpcl'"):
        resolved(strategy=strategy, alignment="huber")


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_weights_of_a_loss_are_those_it_was_given(name):
    config = resolved(strategy="fedsaf", alignment=name)
    assert (config.lambda_, config.gamma) == LOSSES[name].weights


@pytest.mark.parametrize("frame", ["procrustes", "gram"])
def test_an_averaged_head_knows_nothing_of_another_frame(frame):
    assert resolved(strategy="fedhpro", share="head").hyper__head == "shared"
    assert resolved(strategy="fedhpro", share="head", frame=frame).hyper__head == "prototype"
    with pytest.raises(ConfigError, match=rf"`hyper.head = shared` .* `frame = {frame}` .*hyper.head = 'prototype'"):
        resolved(strategy="fedhpro", share="head", frame=frame, **{"hyper.head": "shared"})


@pytest.mark.parametrize(
    ("settings", "learns"),
    [
        ({}, True),
        ({"alignment": "gcsa"}, False),
        ({"anchors": "own"}, False),
        ({"anchors": "private"}, False),
        ({"prototypes": "mean"}, False),
        ({"hyper.learning-rate": 0}, False),
    ],
)
def test_hyper_prototypes_are_learned_only_where_they_are_used(settings, learns):
    assert learns_hyper_prototypes(resolved(strategy="isoproto_anchors", **settings)) is learns


# Rounds


def test_a_normal_round(start):
    strategy, grid = start([reply(1.0), reply(3.0, ids=(1, 3))])
    state = play(strategy, grid)
    assert state.server_round == 1
    assert state.empty_rounds == 0
    assert {client: last.correct for client, last in state.accuracy.items()} == {"0": 2, "1": 2}
    if strategy.config.prototypes == "mean":
        assert state.present.all()
        assert state.prototypes[:, 0].tolist() == [1.0, 2.0, 1.0, 3.0]
    assert wire.tensor_spec(state.shared) == wire.tensor_spec(shared(strategy.config.share))
    assert [line["client"] for line in lines(strategy, "client")] == ["0", "1"]
    assert lines(strategy, "failure") == []


def test_its_first_broadcast_decodes_on_a_client_and_holds_what_it_says(start):
    """Before there are prototypes none are sent, and no weights before there is an average."""
    strategy, grid = start([reply(), reply()])
    for server_round in (1, 2):
        play(strategy, grid)
        for broadcast in grid.received:
            assert broadcast.server_round == server_round
            assert broadcast.experiment == strategy.folder.experiment
            assert RunConfig.from_mapping(broadcast.settings) == strategy.config
            known = server_round > 1 and strategy.config.prototypes != "none"
            assert ("prototypes" in broadcast.arrays) == known
            sent = shared(strategy.config.share) if server_round > 1 else {}
            assert wire.tensor_spec(broadcast.shared) == wire.tensor_spec(sent)
        grid.received.clear()


def test_one_client(start):
    strategy, grid = start([reply(2.0)], **{"min-nodes": 1})
    state = play(strategy, grid)
    if strategy.config.prototypes == "mean":
        assert torch.equal(state.prototypes[:3], torch.full((3, D), 2.0))
        assert state.present.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (ERROR, "the client failed: RuntimeError: no"),
        (NOTHING, "none of isoproto's"),
        (NAN, "holds NaN or infinity"),
        (bad_schema, "wire schema 2, this side speaks 1"),
        (wrong_width, r"expected float32 \(1, 3\), got 'float32' \(1, 4\)"),
        (without("hpal"), "metric 'loss-hpal'"),
        (without("total"), "metric 'loss-total'"),
        (reply(losses={**LOSSES_TOLD, "third": 0.5}), r"unexpected metrics \['loss-third'\]"),
    ],
    ids=["error", "foreign", "nan", "schema", "width", "no-hpal", "no-total", "more-losses"],
)
def test_a_bad_reply_is_left_out_with_its_reason(start, bad, told):
    strategy, grid = start([reply(1.0), bad, reply(1.0)])
    state = play(strategy, grid)
    (failure,) = lines(strategy, "failure")
    assert (failure["client"], failure["round"]) == ("1", 1)
    assert re.search(told, failure["reason"])
    assert finite(state)
    assert state.empty_rounds == 0
    assert sorted(state.accuracy) == ["0", "2"]
    if strategy.config.prototypes == "mean":
        assert state.prototypes[:3].eq(1.0).all()


@pytest.mark.parametrize("bad", [ERROR, NAN, NOTHING], ids=["error", "nan", "foreign"])
def test_a_round_of_bad_replies_changes_nothing_and_some_end_the_run(start, bad):
    strategy, grid = start([reply(1.0), reply(1.0)])
    before = play(strategy, grid)
    grid.answers = [bad, bad]
    for empty in (1, 2):
        state = play(strategy, grid)
        assert (state.server_round, state.empty_rounds) == (1 + empty, empty)
        assert torch.equal(state.prototypes, before.prototypes)
        assert torch.equal(state.present, before.present)
        assert state.accuracy == before.accuracy
    with pytest.raises(FederationError, match="3 rounds in a row had fewer than 1 good replies"):
        play(strategy, grid)


def test_zero_replies(start):
    strategy, grid = start([reply(), reply()])
    list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    strategy.aggregate_train(1, [])
    strategy.folder.commit()
    assert strategy.state.empty_rounds == 1
    assert [line["reason"] for line in lines(strategy, "failure")] == ["no reply within 3600 s (`round-timeout`)"] * 2
    assert strategy.aggregate_evaluate(1, []) is None


def test_a_class_nobody_has(start):
    strategy, grid = start([reply(1.0, ids=(0,)), reply(1.0, ids=(0, 2))])
    state = play(strategy, grid)
    made = strategy.config.prototypes == "trainable"  # of all classes, whoever holds them
    assert made or state.prototypes[[1, 3]].eq(0).all()
    assert state.present[[1, 3]].tolist() == [made, made]
    assert finite(state)


def test_a_client_without_rows(start):
    strategy, grid = start([reply(1.0), reply(ids=(), samples=7)])
    assert finite(play(strategy, grid))
    assert lines(strategy, "failure") == []


def test_the_next_state_is_a_function_of_state_and_replies(start):
    """The order in which clients are listed is fixed by the caller; nothing else goes in."""
    strategy, grid = start([reply(1.0), reply(2.0, ids=(3,))])
    play(strategy, grid)
    before = strategy.state
    results = []
    for _ in range(2):
        strategy.state = before
        results.append(play(strategy, grid))
    assert same(*results)


class Third(Part):
    """A part whose one loss term no other part has."""

    reports = ("third-term",)

    @classmethod
    def of(cls, config):
        return cls()


def test_a_part_reports_its_terms_and_no_others_are_missed(start, monkeypatch):
    monkeypatch.setattr(isoproto.parts, "PARTS", (*isoproto.parts.PARTS, Third))
    strategy, grid = start([reply(losses={**LOSSES_TOLD, "third-term": 1.5}), reply(2.0)])
    assert isinstance(strategy.parts[-1], Third)
    play(strategy, grid)
    (failure,) = lines(strategy, "failure")
    assert failure["client"] == "1"
    assert "metric 'loss-third-term'" in failure["reason"]
    (client,) = lines(strategy, "client")
    assert client["loss"]["third_term"] == 1.5
    assert lines(strategy, "round")[-1]["loss"]["third_term"] == 1.5


# State


def test_its_state_survives_save_and_load(start, tmp_path):
    strategy, grid = start([reply(1.0), reply(2.0, ids=(1, 3))])
    play(strategy, grid)
    state = play(strategy, grid)
    save_checkpoint(tmp_path / "saved", state.to_checkpoint())
    loaded = ServerState.from_checkpoint(load_checkpoint(tmp_path / "saved"))
    assert same(loaded, state)


def test_a_resumed_strategy_goes_on_as_the_unbroken_one(start, tmp_path):
    answers = [reply(1.0), reply(2.0, ids=(1, 3))]
    unbroken, grid = start(answers)
    for _ in range(2):
        play(unbroken, grid)
    save_checkpoint(tmp_path / "saved", unbroken.state.to_checkpoint())
    loaded = ServerState.from_checkpoint(load_checkpoint(tmp_path / "saved"))
    resumed, other = start(answers, loaded)
    assert same(play(resumed, other), play(unbroken, grid))


def test_nothing_of_a_strategy_is_shared_between_instances(start):
    first, grid = start([reply(1.0), reply(1.0)])
    play(first, grid)
    second, _ = start([reply(5.0), reply(5.0)])
    assert second.state.server_round == 0
    assert second.state.accuracy == {}
    assert isinstance(second, PrototypeStrategy)
