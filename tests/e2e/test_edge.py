"""`isoproto node` on this machine as on three devices: TLS, keys, own data and models, and one that is killed hard."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from isoproto.runs.checkpoint import load_checkpoint
from tests.e2e.deployment import Deployment, missed, node, trained, until_at_work
from tests.e2e.processes import kill, lines, rounds_done, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

ROUNDS = 8


def test_a_killed_node_comes_back_with_its_own_model(tmp_path: Path, pictures: Path) -> None:
    models = {"node-0": "cnn", "node-1": "resnet", "node-2": "own.py:network"}
    there = Deployment(tmp_path, models, pictures)
    with there.superlink(), contextlib.ExitStack() as stack:
        there.connect()
        configs = {name: there.configure(name, there.port) for name in models}
        refused = there.ours("doctor", "--config", str(configs["node-0"]), status=1)
        assert "the SuperLink does not know this key" in refused
        there.ours("keys", "enrol")
        told = json.loads(there.ours("doctor", "--json", "--config", str(configs["node-2"])))
        checks = (
            "packages",
            "ports",
            "name",
            "link",
            "superlink",
            "clock",
            "key",
            "sends",
            "device",
            "data",
            "training",
        )
        expected = dict.fromkeys((*checks, "memory", "disk"), "ok") | {"user": "ok" if os.geteuid() else "warning"}
        assert {one["check"]: one["state"] for one in told["findings"]} == expected

        nodes = {name: stack.enter_context(node(config)) for name, config in configs.items()}
        federation, folder = stack.enter_context(there.run(f"rounds={ROUNDS} round-timeout=180.0"))
        until(lambda: rounds_done(folder) >= 2, 300, "round 2", federation)
        live = json.loads(there.ours("status", "--json", "--connection", "isoproto"))
        assert live["state"] == "running"
        assert {one["client"]: one["online"] for one in live["clients"]} == dict.fromkeys(models, True)
        until_at_work(configs["node-1"], nodes["node-1"])
        kill(nodes["node-1"].pid)
        at = rounds_done(folder)
        assert list((tmp_path / "node-1" / "state" / "models").rglob("*.safetensors"))
        # For 60 s after its last heartbeat it is taken for alive: the round waits, and it would be refused.
        until(lambda: missed(folder, "node-1", at), 240, "a round without node-1", federation)
        stack.enter_context(node(configs["node-1"]))
        until(lambda: trained(folder, "node-1")[-1]["round"] > at, 400, "node-1 again", federation)
        federation.wait(600)

    assert json.loads((folder / "summary.json").read_text())["status"] == "completed", there.log
    assert sorted({line["client"] for line in lines(folder, "client")}) == sorted(models)
    gone = missed(folder, "node-1", at)
    first, before, back = (trained(folder, "node-1")[i] for i in (0, at - 1, at))
    # It goes on from the model of its last round before the kill, not from a new one.
    assert back["accuracy"]["before"] == before["accuracy"]["after"]
    assert back["loss"]["cross_entropy"] < first["loss"]["cross_entropy"]
    assert [(line["round"], line["client"]) for line in lines(folder, "failure")] == [(at + 1, "node-1")]
    # The others went on without it.
    assert gone == set(range(at + 1, back["round"]))
    assert {(line["round"], line["client"]) for line in lines(folder, "client") if line["round"] in gone} == {
        (number, name) for number in gone for name in ("node-0", "node-2")
    }


def test_devices_add_up_their_statistics_without_showing_them(tmp_path: Path, pictures: Path) -> None:
    """The secure sum over real processes: keys, shares, masked vectors; one device has no network at all."""
    models = {"node-0": "cnn", "node-1": "none", "node-2": "own.py:network"}
    there = Deployment(tmp_path, models, pictures)
    with there.superlink(), contextlib.ExitStack() as stack:
        there.connect()
        there.ours("keys", "enrol")
        for name in models:
            stack.enter_context(node(there.configure(name, there.port)))
        settings = "strategy='isoproto' common.secure=true common.rounds=0 common.dim=16 common.features=16"
        asked = f"{settings} min-contributors=3 rounds=7 evaluate-every=1"
        federation, folder = stack.enter_context(there.run(asked))
        federation.wait(600)

    assert json.loads((folder / "summary.json").read_text())["status"] == "completed", there.log
    assert not lines(folder, "failure"), there.log
    secure = [line["hyper"]["secure"] for line in lines(folder, "round")]
    assert [one["waits_for"] for one in secure][:4] == ["shares", "vector", "reveal", "keys"]
    assert secure[-1]["in_sum"] == 3
    last = lines(folder, "evaluation")[-1]["clients"]
    assert sorted(one["client"] for one in last) == sorted(models)
    assert all("common" in one["predictors"] for one in last)
    assert "head" not in next(one for one in last if one["client"] == "node-1")["predictors"]
    memory = load_checkpoint(folder / "checkpoint").tensors
    assert any("common.pooled" in name for name in memory)
    assert not any("common.fit" in name for name in memory)
