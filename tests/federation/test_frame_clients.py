"""Clients of runs with a common frame: some have no network, some have one that learns from everybody's classifier."""

import pytest
import torch

from client_app import own_model
from client_app.introduction import introduce
from client_app.store import ClientStore
from isoproto.engines.host import Host
from isoproto.errors import ConfigError, FederationError
from tests import fakes
from tests.fakes import Killed, When

FRAME = {
    "strategy": "isoproto",
    "common.dim": 8,
    "common.features": 8,
    "common.copies": 1,
    "models": "mlp,none",
    "rounds": 4,
}
NO_MODELS = {**FRAME, "models": "none"}


def losses(run, server_round):
    return {line["client"]: line["loss"] for line in run.of("client", round=server_round)}


def sums(run):
    """What the server keeps, without checksums, which differ from run to run."""
    return {name: tensor for name, tensor in run.server().items() if ".digest." not in name}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, pictures):
    """Two clients with a network, two without."""
    from isoproto.engines.in_process import task_identity
    from tests.conftest import Federation

    with task_identity():
        return Federation(tmp_path_factory.mktemp("mixed"), pictures).run(settings=FRAME, report=True)


def test_networks_distil_once_the_server_has_sent_a_classifier(federation):
    plain = {**FRAME, "models": "mlp"}
    run = federation.run(settings={**plain, "common.distil": 1.0, "augment": "flip"})
    assert run.failures() == {}
    assert all(loss["distil"] == 0 for loss in losses(run, 1).values())
    assert all(loss["distil"] > 0 for loss in losses(run, 2).values())
    assert "distil" not in losses(federation.run(settings=plain), 2)["0"]


def test_clients_without_a_model_take_part_beside_others(mixed):
    assert mixed.failures() == {}
    assert {line["client"]: line["model"] for line in mixed.of("client")} == {
        "0": "mlp",
        "1": "none",
        "2": "mlp",
        "3": "none",
    }
    server = mixed.server()
    assert all(f"memory.common.{kind}.digest.{client}" in server for kind in ("fit", "held") for client in "0123")
    last = mixed.of("evaluation")[-1]["clients"]
    for entry in last:
        wanted = {"common", "own", "joint", "alone"} | ({"head"} if entry["model"] == "mlp" else set())
        assert set(entry["predictors"]) == wanted
        assert entry["correct"] == entry["predictors"]["joint"]
        assert entry["total"] > 0
    assert mixed.summary["added"]


def test_their_losses_are_not_in_the_mean(mixed):
    for line in mixed.of("round"):
        each = losses(mixed, line["round"])
        assert {name for loss in (each["1"], each["3"]) for name, value in loss.items() if value} == set()
        assert line["loss"]["total"] == pytest.approx((each["0"]["total"] + each["2"]["total"]) / 2)
        assert line["loss"]["total"] > 0


def test_their_samples_count(mixed):
    for line in mixed.of("client", round=4):
        (entry,) = (e for e in mixed.of("evaluation")[-1]["clients"] if e["client"] == line["client"])
        assert 0 < line["samples"] < entry["samples"]  # a tenth is held out


def test_no_network_is_built_or_saved(federation, monkeypatch):
    def no_model(*words):
        raise AssertionError("a network was built")

    monkeypatch.setattr(own_model, "create_model", no_model)
    own_model.skeleton.cache_clear()
    run = federation.run(settings=NO_MODELS)
    assert run.failures() == {}
    assert [line["loss"]["total"] for line in run.of("round")] == [None] * 4
    assert not list((federation.folder / "state").rglob("*.safetensors"))
    assert ClientStore(federation.folder / "state", run.summary["experiment"], "0").load() is None


def test_their_sums_and_predictions_do_not_depend_on_having_a_network(federation):
    """Statistics and the classifier of a run without networks are those of the same run with networks."""
    fixed = {"common.shrink": 0.1, "common.temperature": 0.5}
    without = federation.run(settings={**NO_MODELS, **fixed})
    networks = federation.run(settings={**FRAME, **fixed, "models": "mlp"})
    a, b = ({k: v for k, v in sums(run).items() if not k.endswith("mixtures")} for run in (without, networks))
    assert len(a) > 10
    assert equal(a, b)
    for kind in ("common", "own"):
        found = [[e["predictors"][kind] for e in run.of("evaluation")[-1]["clients"]] for run in (without, networks)]
        assert found[0] == found[1]


def test_a_worker_may_answer_for_them(federation, mixed):
    federation.host = Host(simulated=True, worker=7)
    assert federation.run(federation.grid(clients=1), {**FRAME, "clients": 4}).steady() == mixed.steady()


@pytest.mark.parametrize("server_round", [1, 3])
def test_a_run_with_them_resumes_bit_for_bit(federation, mixed, server_round):
    fault = fakes.killed(after=True), When("train", [server_round], [1])
    with pytest.raises(Killed):
        federation.run(federation.grid(fault), FRAME)
    broken = federation.newest()
    again = federation.run(settings={"resume": broken.path.name})
    assert again.steady() == mixed.steady()
    assert equal(sums(again), sums(mixed))


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "isoproto_anchors"},
        {"strategy": "isoproto_anchors", "frame": "gram", "hyper.head": "server"},
        {"strategy": "fedproto", "proto-weight": "client_samples"},
        {"strategy": "fedsaf"},
        {"strategy": "fedtgp"},
        {"strategy": "feddistill"},
        {"strategy": "local"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_every_part_bears_clients_that_send_no_class(federation, settings):
    run = federation.run(settings={**FRAME, "common.map": "standard", "rounds": 2, **settings})
    assert run.failures() == {}
    assert [len(each) for each in run.cohorts()] == [4, 4]


def test_a_round_in_which_nobody_sends_a_class_keeps_the_prototypes(federation):
    """Nobody has a network, so no prototype comes into being, and the run goes on."""
    settings = {**NO_MODELS, "strategy": "isoproto_anchors", "common.map": "standard", "rounds": 2}
    run = federation.run(settings=settings)
    assert run.failures() == {}
    assert not run.server()["present"].any()


def test_a_node_names_no_model_for_itself(federation):
    grid = federation.grid(node_configs={2: {"model": "none"}})
    run = federation.run(grid, {**FRAME, "models": "mlp", "rounds": 2})
    assert [line["model"] for line in run.of("client", round=2)] == ["mlp", "mlp", "none", "mlp"]


def test_without_a_common_frame_it_cannot_take_part(federation):
    grid = federation.grid(node_configs={2: {"model": "none"}})
    run = federation.run(grid, {"models": "mlp", "rounds": 1, "wait-timeout": 2.0})
    (reason,) = run.failures().values()
    assert "client 2 has no model (`model = 'none'`), but the run has no common frame" in reason
    assert "Set common.map = 'standard', or name a model" in reason
    with pytest.raises(ConfigError, match=r"`models = mlp,none` leaves clients without a model, but the run has no"):
        federation.run(settings={"models": "mlp,none"})


@pytest.mark.parametrize(
    "settings", [{"strategy": "fedavg"}, {"strategy": "fml"}, {"strategy": "fedproto", "share": "head"}]
)
def test_where_weights_are_averaged_everybody_needs_a_model(federation, settings):
    chosen = {**FRAME, "common.map": "standard", **settings}
    with pytest.raises(ConfigError, match=r"leaves clients without a model, but the run averages weights of the"):
        federation.run(settings=chosen)
    grid = federation.grid(node_configs={client: {"model": "none"} for client in range(4)})
    with pytest.raises(FederationError, match=r"client 0 has no model .* the run averages weights of the clients'"):
        federation.run(grid, {**chosen, "models": "mlp"})


def test_where_the_model_predicts_everybody_needs_one(federation):
    chosen = {**FRAME, "common.map": "standard", "common.predict": "head"}
    with pytest.raises(ConfigError, match=r"leaves clients without a model, but `common.predict = head`"):
        federation.run(settings=chosen)


def test_it_says_who_it_is(federation):
    info = introduce(federation.client({"partition-id": 0, "num-partitions": 2, "model": "none"}, resolved()))
    assert (info.model, info.feature_dim, info.shared) == ("none", 8, {})
    assert info.frame.startswith("scattering:")


def resolved():
    from isoproto.config import RunConfig
    from strategies import STRATEGIES

    return STRATEGIES["isoproto"].resolve(RunConfig.from_mapping(FRAME)).changes()


def test_real_devices_take_part_without_a_model_and_with_a_map_of_their_own(federation, tmp_path):
    (tmp_path / "ward.py").write_text("def features(x): return x.flatten(1)\n")
    federation.host = Host(simulated=False, worker=0)
    own = {"data-dir": "/", "map": f"{tmp_path}/ward.py:features", "may-send": "statistics,gradients"}
    nodes = {
        i: {**own, "state-dir": str(tmp_path / f"state-{i}"), "model": model}
        for i, model in enumerate(["none", "mlp", "none"])
    }
    grid = federation.grid(clients=3, node_configs=nodes)
    run = federation.run(grid, {**FRAME, "models": "mlp", "common.map": "own", "state-dir": "", "rounds": 2})
    assert run.failures() == {}
    assert [line["model"] for line in run.of("client", round=2)] == ["none", "mlp", "none"]
    assert [bool(list((tmp_path / f"state-{i}").rglob("*"))) for i in range(3)] == [False, True, False]
