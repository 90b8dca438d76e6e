"""What a device decides for itself, and devices that differ, come late, leave and return."""

import json
import re
from pathlib import Path

import pytest
import torch

import client_app.app
import client_app.device
from client_app.client import Client
from client_app.device import choose_device
from client_app.introduction import introduce
from client_app.own_model import load_model
from client_app.store import ClientStore
from client_app.training import extract
from isoproto import wire
from isoproto.engines.host import Host
from isoproto.errors import ConfigError, DataError, FederationError
from isoproto.own_code import own_callable
from isoproto.parts import Measured, View
from tests import fakes
from tests.fakes import FaultyGrid

OWN = """
from torch import nn


class Network(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.convolution = nn.Conv2d(spec.channels, 4, 3, padding=1)
        self.linear = nn.Linear(4 * spec.height * spec.width, 5)

    def forward(self, x):
        maps = self.convolution(x)
        return self.linear(maps.view(len(x), -1)).relu()  # a view: needs the maps as torch lays them out by default


network = Network
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py:network"


def clients(run, server_round):
    return [line["client"] for line in run.of("client", round=server_round)]


def test_an_own_model_of_another_width_trains_with_the_others(federation, own):
    run = federation.run(federation.grid(node_configs={1: {"model": own}}), {"models": "cnn", "rounds": 2})
    assert run.failures() == {}
    assert {line["client"]: line["model"] for line in run.of("client")} == {
        "0": "cnn",
        "1": "own.py:network",
        "2": "cnn",
        "3": "cnn",
    }
    assert all(line["loss"]["prototype"] > 0 for line in run.of("client", round=2))


def test_a_simulations_run_config_may_name_own_models(federation, own):
    run = federation.run(settings={"models": f"resnet,{own}", "rounds": 1})
    assert [line["model"] for line in run.of("client")] == ["resnet", "own.py:network"] * 2


def test_an_own_model_that_does_not_fit_is_told_of_before_round_1(federation, tmp_path):
    (tmp_path / "own.py").write_text("from torch import nn\ndef network(spec): return nn.Linear(7, 7)\n")
    grid = federation.grid(node_configs={1: {"model": f"{tmp_path}/own.py:network"}})
    run = federation.run(grid, {"rounds": 1})
    assert re.search(r"fails on pictures .*RuntimeError: .* \(\w+\.py, line \d+\)", run.failures()[0, "node 10001"])
    assert clients(run, 1) == ["0", "2", "3"]


def test_an_error_in_an_own_model_names_the_users_line_and_logs_the_traceback(federation, tmp_path):
    code = OWN.replace("        maps = self.conv", "        raise KeyError('boom')\n        maps = self.conv")
    (tmp_path / "own.py").write_text(code)
    grid = federation.grid(node_configs={1: {"model": f"{tmp_path}/own.py:network"}})
    run = federation.run(grid, {"rounds": 1})
    line = 1 + code.splitlines().index("        raise KeyError('boom')")
    assert run.failures()[0, "node 10001"].endswith(f"KeyError: 'boom' (own.py, line {line}) (code 2)")
    assert f'own.py", line {line}, in forward' in run.log


def test_no_path_of_a_device_leaves_it(federation, tmp_path):
    """Neither with the name of its own model nor with an error; the device's own log has the whole of it."""
    (tmp_path / "own.py").write_text(OWN)
    settings = {"strategy": "local", "models": "cnn", "data": "digits4"}
    node = {"name": "ward", "data": "digits4", "model": f"{tmp_path}/own.py:network"}
    assert introduce(Client.of(settings, node, 7)).model == "own.py:network"
    grid = FaultyGrid(client_app.app.app, 1, node_configs={0: {**node, "data": f"npz:{tmp_path}/gone.npz"}})
    query = wire.write_query(wire.Query(experiment="e", fingerprint="", settings=settings))
    (reply,) = grid.send_and_receive([grid.create_message(query, "query", next(iter(grid.get_node_ids())), "1")])
    assert "gone.npz" in reply.error.reason
    assert str(tmp_path) not in reply.error.reason


def test_a_device_logs_what_it_sends(federation, tmp_path, capsys):
    """Each array with its shape, and each number by its name: the owner need not believe a table in a page."""
    federation.host = Host(simulated=False)
    settings = {"strategy": "fedproto", "models": "mlp", "min-nodes": 2, "rounds": 1, "data": "digits4"}
    own = {"data": "digits4", "model": "mlp", "state-dir": str(tmp_path)}
    grid = federation.grid(clients=2, node_configs=dict.fromkeys(range(2), own))
    federation.run(grid, settings)
    sent = [line for line in capsys.readouterr().out.splitlines() if "sent" in line and "class-ids" in line]
    assert len(sent) == 2
    assert all(re.search(r"proto \[\d+, 8\].*numbers: .*samples", line) for line in sent)


@pytest.mark.parametrize("key", ["models", "data"])
def test_a_server_cannot_make_a_real_node_import_code(federation, tmp_path, key):
    """Outside a simulation, the same run config that simulates is refused, and nothing is imported."""
    mark = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef network(spec): pass\n"
    )
    value = f"{tmp_path}/evil.py:network"
    settings = {**federation.settings, key: value if key == "models" else f"module:{value}"}
    node = {"partition-id": 0, "num-partitions": 2, "name": "ward"}
    with pytest.raises(ConfigError, match=rf"names code for this device to import, `{key} = .*only the node's own"):
        Client.of(settings, node, 7)
    assert not mark.exists()
    # Its owner may name it: what is refused above is who says it, not what.
    with pytest.raises(ConfigError, match="has no function 'none'"):
        own_callable(f"{tmp_path}/evil.py:none", "model")
    assert mark.exists()


def test_a_server_cannot_make_a_real_node_import_the_code_of_a_second_model(federation, tmp_path):
    """A node that names its own model still builds the twin that the run config names."""
    mark = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    settings = {"strategy": "fml", "prototypes": "none", "alignment": "twin", "models": f"{tmp_path}/evil.py:network"}
    node = {"partition-id": 0, "num-partitions": 2, "name": "ward", "model": "mlp"}
    with pytest.raises(ConfigError, match=r"names code for this device to import, `models = .*for a second model"):
        introduce(federation.client(node, settings))
    assert not mark.exists()


def test_no_message_and_no_context_makes_a_real_node_believe_that_it_is_simulated(federation):
    """The app that Flower starts, in a grid whose nodes and run config claim to be a simulation's."""
    claims = {"simulated": True, "worker": 7, "host": "simulated", "clients": 2}
    grid = FaultyGrid(client_app.app.app, 2, node_configs={0: claims, 1: claims})
    for client in (0, 1):
        grid.context(client).run_config.update(claims)
    with pytest.raises(FederationError, match="names data outside of this node's folder"):
        federation.run(grid, {"clients": 2, "min-nodes": 1, "wait-timeout": 0.5})
    assert all("names data outside of this node's folder" in text for text in federation.newest().failures().values())
    assert len(federation.newest().failures()) == 2


def test_classes_are_brought_into_the_federations_order(federation, tmp_path):
    """One device names its five classes otherwise ordered and has one that nobody knows; one has only two."""
    wide = fakes.write_pictures(tmp_path / "wide.npz", classes=5)
    few = fakes.write_pictures(tmp_path / "few.npz", classes=2)
    nodes = {
        0: {"data": f"npz:{few}"},
        1: {"data": f"npz:{wide}", "outside-classes": "drop"},
        2: {"data": f"npz:{wide}"},
    }
    grid = federation.grid(node_configs=nodes)
    for node in nodes:
        config = grid.context(node).node_config
        del config["partition-id"], config["num-partitions"]
        config["name"] = f"ward-{node}"
    run = federation.run(grid, {"classes": "d,c,b,a", "rounds": 2, "models": "cnn", "min-nodes": 3})
    ((where, reason),) = run.failures().items()
    assert where == (0, "node 10002")
    assert re.search(r"samples are of classes that this federation does not have: \{'e': \d+\}", reason)
    assert clients(run, 2) == ["3", "ward-0", "ward-1"]
    partition = json.loads((run.path / "partition.json").read_text())
    table = {one["client"]: one["train"] for one in partition["clients"]}
    assert partition["classes"] == ["d", "c", "b", "a"]
    assert [count > 0 for count in table["ward-0"]] == [False, False, True, True]
    assert all(table["ward-1"])


def test_the_stricter_of_node_and_run_decides_how_small_a_class_may_be(federation):
    node = {"partition-id": 0, "num-partitions": 2}
    for asked, own, used in ((1, 5, 5), (10, 5, 10)):
        config = federation.client({**node, "min-class-samples": own}, {"min-class-samples": asked}).config
        assert config.min_class_samples == used


@pytest.mark.parametrize("samples", [1, 3])
def test_gradients_are_never_of_fewer_samples_than_the_node_allows(federation, samples):
    settings = {"strategy": "fedhpro", "models": "cnn", "hyper.head": "shared", "share": "head"}
    settings |= {"prototypes": "hyper", "alignment": "hpcl+hpal", "frame": "shared"}
    settings |= {"hyper.learning-rate": 0.1, "hyper.retrain": "creff"}

    def sent(floor, asked):
        node = {"partition-id": 0, "num-partitions": 2, "min-class-samples": floor}
        client = federation.client(node, {**settings, "hyper.grad-samples": asked})
        model = load_model(client, "none", before=1).model
        view = View(
            client=client.name,
            server_round=1,
            frame=client.config.frame,
            arrays={},
            own_means=None,
            num_classes=client.num_classes,
            feature_dim=client.spec.feature_dim,
        )
        features = extract(model, client.data.train_x)
        measured = Measured(features, client.data.train_y, lambda: model.linear_head, model.head, view)
        found = {name: array for part in client.parts for name, array in part.measure(measured).items()}
        return torch.cat([found["grad"].flatten(1), found["grad-weight"].flatten(1)], dim=1)

    everything = sent(1000, 0)
    torch.testing.assert_close(sent(1000, samples), everything)
    assert not torch.allclose(sent(1, samples), everything, rtol=0.01)


def kinds(folder: Path) -> list[str]:
    """Every kind of data that takes a path, at one outside of a node's folder, and ways to it."""
    (folder / "link").symlink_to(folder.parent / "elsewhere", target_is_directory=True)
    there = folder.parent / "elsewhere"
    absolute = [f"{kind}:{there}/x{end}" for kind, end in KINDS]
    return [*absolute, f"csv:{there}/x@20", f"csv:../{there.name}/x", "npz:link/x", "imagefolder:link@8", "hf:../../x"]


KINDS = [("npz", ""), ("imagefolder", ""), ("imagefolder", "@8"), ("csv", ""), ("jsonl", ""), ("hf", "")]


def test_a_server_cannot_make_a_real_node_read_outside_of_its_folder(tmp_path):
    """Not even whether something is there is told: nothing of it is looked at."""
    own, there = tmp_path / "own", tmp_path / "elsewhere"
    own.mkdir()
    there.mkdir()
    (there / "x").write_text("secret\n")
    node = {"partition-id": 0, "num-partitions": 2, "name": "ward", "data-dir": str(own)}
    for data in kinds(own):
        with pytest.raises(
            ConfigError, match=r"client 0: .* names data outside of this node's folder .*/own: `data = "
        ):
            Client.of({"data": data}, node, 7)
    for data in ("npz:x.npz", f"npz:{own}/x.npz"):
        with pytest.raises(DataError, match=r"nothing found at .*/own/x\.npz"):
            Client.of({"data": data}, node, 7)
    with pytest.raises(DataError, match=r"nothing found at .*/elsewhere/y"):  # its owner may
        Client.of({}, {**node, "data": f"npz:{there}/y"}, 7)


def test_a_servers_data_folder_is_not_a_nodes_own(tmp_path):
    node = {"partition-id": 0, "num-partitions": 2}
    for data in ("cifar10", "npz:x", "digits4"):
        with pytest.raises(ConfigError, match=rf"`data = '{data}'`, `data-dir = '{tmp_path}'`"):
            Client.of({"data": data, "data-dir": str(tmp_path)}, node, 7)
    assert Client.of({"data": "digits4"}, node, 7).num_classes == 10


def test_a_server_cannot_make_a_real_node_write_where_it_says(tmp_path):
    node = {"partition-id": 0, "num-partitions": 2}
    with pytest.raises(
        ConfigError, match=r"names a folder of this device to write to, `state-dir = '.*only the node's"
    ):
        Client.of({"state-dir": str(tmp_path)}, node, 7)
    own = Client.of({"state-dir": "/elsewhere"}, {**node, "state-dir": str(tmp_path)}, 7)
    assert own.store("e").folder.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("settings", "allowed", "asked"),
    [
        ({"strategy": "fedsaf"}, "", ""),
        ({"strategy": "isoproto_anchors"}, "", "gradients"),
        ({"strategy": "isoproto_anchors"}, "gradients", ""),
        ({"strategy": "fedavg", "models": "cnn"}, "head", "base"),
        ({"strategy": "fedavg", "models": "cnn"}, "head,base", ""),
    ],
)
def test_a_run_that_wants_more_than_may_leave_is_refused(federation, settings, allowed, asked):
    grid = federation.grid(node_configs={2: {"may-send": allowed}})
    run = federation.run(grid, {"rounds": 1, **settings})
    if not asked:
        assert run.failures() == {}
        return
    reason = run.failures()[0, "node 10002"]
    assert f"asks for {asked}, and `may-send` of this node allows {allowed or 'nothing'} besides class means" in reason
    assert clients(run, 1) == ["0", "1", "3"]


def test_a_device_leaves_returns_and_keeps_its_model_and_another_comes_late(federation):
    """Client 1 is away in rounds 2 and 3; client 3 comes before round 3."""
    away = lambda client, newest: (client == 1 and newest in (1, 2)) or (client == 3 and newest < 2)  # noqa: E731
    run = federation.run(federation.grid(away=away), {"rounds": 5, "min-nodes": 3})
    assert run.failures() == {}
    assert [clients(run, r) for r in range(1, 6)] == [
        ["0", "1", "2"],
        ["0", "2"],
        ["0", "2", "3"],
        ["0", "1", "2", "3"],
        ["0", "1", "2", "3"],
    ]
    own = {line["round"]: line["accuracy"] for line in run.of("client") if line["client"] == "1"}
    assert own[4]["before"] == own[1]["after"]
    store = ClientStore(federation.folder / "state", run.summary["experiment"], "1")
    assert store.load() is not None


def test_a_refused_device_is_asked_again_when_it_comes_back(federation):
    """Its owner stops it, mends its configuration, and starts it again with the same key: the same node id."""

    def away(client: int, newest: int) -> bool:
        if client == 3 and newest == 1:
            grid.context(3).node_config.pop("device", None)
            return True
        return False

    grid = federation.grid(node_configs={3: {"device": "tpu"}}, away=away)
    run = federation.run(grid, {"rounds": 4})
    assert list(run.failures()) == [(0, "node 10003")]
    assert [clients(run, r) for r in range(1, 5)] == [["0", "1", "2"]] * 2 + [["0", "1", "2", "3"]] * 2


def test_a_refused_device_that_was_not_away_at_a_rounds_start_is_asked_again_after_a_while(federation, monkeypatch):
    """Mended and started again within a round: nobody saw it leave."""
    monkeypatch.setattr("strategies.refusals._ASK_AGAIN_S", 0.0)

    def away(client: int, newest: int) -> bool:
        if newest == 2:
            grid.context(3).node_config.pop("device", None)
        return False

    grid = federation.grid(node_configs={3: {"device": "tpu"}}, away=away)
    run = federation.run(grid, {"rounds": 4, "min-nodes": 3})
    assert list(run.failures()) == [(0, "node 10003"), (1, "node 10003"), (2, "node 10003")]
    assert [clients(run, r) for r in range(1, 5)] == [["0", "1", "2"]] * 2 + [["0", "1", "2", "3"]] * 2


def test_a_refused_device_is_asked_ever_less_often(federation, monkeypatch):
    clock = iter(range(0, 10**6, 10))  # each look at it is 10 s later
    monkeypatch.setattr("strategies.refusals._now", lambda: next(clock))
    monkeypatch.setattr("strategies.refusals._ASK_AGAIN_S", 15.0)
    grid = federation.grid(node_configs={3: {"device": "tpu"}})
    run = federation.run(grid, {"rounds": 12, "min-nodes": 3})
    assert list(run.failures()) == [(round_, "node 10003") for round_ in (0, 2, 5, 11)]


def test_threads_are_the_nodes_own(federation, monkeypatch):
    asked = []
    monkeypatch.setattr(client_app.device.torch, "set_num_threads", asked.append)
    federation.client({"partition-id": 0, "num-partitions": 2, "threads": 3})
    assert asked == [3]


@pytest.mark.parametrize("name", ["cpu:x", "cpu:", "cpu:1:2", "tpu", "cuda:x"])
def test_a_device_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match=rf"`device` '{name}' is not on this machine, which has \['cpu'\]"):
        choose_device(name)
