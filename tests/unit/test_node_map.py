"""A node's own feature map, and a node without a model: the configuration, who may name code, the doctor."""

import dataclasses

import pytest

from client_app.client import Client
from client_app.doctor import examine
from client_app.in_frame import frame_name
from isoproto.config import RunConfig
from isoproto.deploy.node import NodeConfig
from isoproto.errors import ConfigError
from strategies import STRATEGIES
from strategies.names import unknown_names

GOOD = {"superlink": "127.0.0.1:9", "insecure": True, "state-dir": "state"}
CODE = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
def features(x): return x.flatten(1)
def others(x): return x.flatten(1) ** 2
def broken(x): raise ValueError("no such layer")
"""


@pytest.fixture
def own(tmp_path, pictures):
    (tmp_path / "ward.py").write_text(CODE)
    return lambda **values: NodeConfig.from_mapping({**GOOD, "data": f"npz:{pictures}", **values}, tmp_path)


def run_of(**settings):
    chosen = {"strategy": "isoproto", "feature-dim": 8, "common.map": "own", "models": "mlp", **settings}
    return STRATEGIES["isoproto"].resolve(RunConfig.from_mapping(chosen)).changes()


def found(config):
    return {one.check: one for one in examine(config, feature_dim=8)}


def test_the_map_of_a_node_reaches_its_client(own, tmp_path):
    config = own(**{"map": "ward.py:features", "may-send": ["statistics", "gradients"]})
    assert config.map == config.for_client()["map"] == f"{tmp_path}/ward.py:features"
    client = Client.of(run_of(), config.for_client(), 7)
    assert client.own_map == config.map
    name, dim = frame_name(client)
    assert (name.partition(":")[0], dim > 0) == ("own", True)
    other = Client.of(run_of(), {**config.for_client(), "map": f"{tmp_path}/ward.py:others"}, 7)
    assert frame_name(other)[0] != name  # the server tells two maps apart


def test_a_node_without_a_map_says_nothing_of_one(own):
    assert "map" not in own().for_client()


def test_a_map_must_be_a_function(own):
    with pytest.raises(ConfigError, match=r"`map` must name a function, .*`FILE.py:callable`, got 'scattering'"):
        own(map="scattering")


def test_a_run_that_wants_own_maps_names_the_setting_that_a_node_lacks(own):
    client = Client.of(run_of(), own(**{"may-send": "statistics,gradients"}).for_client(), 7)
    with pytest.raises(ConfigError, match=r"write `map = \"FILE.py:callable\"` in the node's configuration"):
        frame_name(client)


def test_a_server_cannot_make_a_real_node_import_a_map(own, tmp_path):
    settings = run_of(**{"common.map": f"{tmp_path}/ward.py:others"})
    node = own(**{"may-send": "statistics,gradients"}).for_client()
    wanted = r"client .*names code for this device to import, `common.map = .*others'`; only the node's own .*Set `map`"
    with pytest.raises(ConfigError, match=wanted):
        Client.of(settings, node, 7)
    assert not (tmp_path / "imported").exists()
    # Its owner may name a map. Then that one is computed, and not the one that the server names.
    client = Client.of(settings, {**node, "map": f"{tmp_path}/ward.py:features"}, 7)
    assert client.own_map.endswith(":features")
    assert frame_name(client) == frame_name(dataclasses.replace(client, config=RunConfig.from_mapping(run_of())))


def test_in_a_simulation_the_run_may_name_a_map(federation, tmp_path):
    (tmp_path / "ward.py").write_text(CODE)
    settings = {"strategy": "isoproto", "models": "none", "common.dim": 8, "common.features": 0, "rounds": 2}
    run = federation.run(settings={**settings, "common.map": f"{tmp_path}/ward.py:features"})
    assert run.failures() == {}
    assert all(set(e["predictors"]) >= {"common", "joint"} for e in run.of("evaluation")[-1]["clients"])


def test_a_map_that_does_not_exist_is_found_before_a_run():
    (problem,) = unknown_names({"common__map": "scatering"})
    assert "scattering" in problem
    assert not [*unknown_names({"common__map": "wards.py:features"}), *unknown_names({"common__map": "auto"})]


def test_the_doctor_tries_the_map(own):
    well = found(own(map="ward.py:features"))
    assert (well["map"].state, "ward.py:features, checksum " in well["map"].text) == ("ok", True)
    assert well["training"].state == "ok"
    ill = found(own(map="ward.py:broken"))["map"]
    assert (ill.state, "no such layer" in ill.text) == ("failed", True)
    assert "map" not in found(own())


def test_the_doctor_of_a_device_without_a_model_trains_nothing(own, monkeypatch):
    def no_model(*words, **named):
        raise AssertionError("a network was built")

    monkeypatch.setattr("client_app.doctor.build_model", no_model)
    checks = found(own(**{"model": "none", "may-send": ["statistics", "gradients"]}))
    assert {checks[check].state for check in ("data", "map", "training", "disk")} == {"ok"}
    assert "nothing to train" in checks["training"].text
    assert checks["map"].text.startswith("scattering, checksum ")
    assert checks["data"].text.startswith("180 training")


def test_a_device_without_a_model_must_let_its_statistics_leave(own):
    """They are all that it has to send."""
    data = found(own(model="none"))["data"]
    assert data.state == "failed"
    assert "asks for gradients, statistics, and `may-send` of this node allows nothing" in data.text
