"""`isoproto node` on this machine as on three devices: TLS, keys, own data and models, and one that is killed hard."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.processes import (
    ROOT,
    copy_of_the_code,
    family,
    flower_environment,
    flwr,
    free_port,
    isoproto,
    kill,
    lines,
    only_run,
    rounds_done,
    run,
    started,
    until,
)
from tests.e2e.test_keys import secure_superlink

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

ROUNDS = 16
RECONNECT_S = 65  # a SuperLink takes a session for alive for 60 s after a node's last heartbeat
OWN = """
from torch import nn


def network(spec):
    return nn.Sequential(nn.Conv2d(spec.channels, 8, 5, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(12))
"""


def configure(folder: Path, keys: Path, name: str, port: int, pictures: Path, model: str) -> Path:
    folder.mkdir()
    (folder / "own.py").write_text(OWN.replace("LazyLinear(12)", "Linear(8 * ((spec.height - 5) // 4 + 1) ** 2, 12)"))
    (folder / "node.toml").write_text(
        f'superlink = "localhost:{port}"\nroot-certificates = "{keys / "ca.pem"}"\n'
        f'private-key = "{keys / "nodes" / f"{name}.key"}"\ndata = "npz:{pictures}"\nmodel = "{model}"\n'
        f'classes = ["d", "c", "b", "a"]\nstate-dir = "state"\nruntime-port = {free_port()}\nmin-class-samples = 2\n'
    )
    return folder / "node.toml"


@contextlib.contextmanager
def node(config: Path) -> Iterator["subprocess.Popen[bytes]"]:
    environment = flower_environment(config.parent / "unused")
    with started(
        isoproto("node", "--config", str(config)), config.parent / "node.log", cwd=ROOT, env=environment
    ) as one:
        yield one


def test_a_killed_node_comes_back_with_its_own_model(tmp_path: Path, pictures: Path) -> None:
    environment = flower_environment(tmp_path / "flower", ISOPROTO_HOME=str(tmp_path / "home"))
    keys, port = tmp_path / "home" / "keys", free_port()

    def ours(*words: str, status: int = 0) -> str:
        return run(isoproto(*words), 120, status=status, cwd=ROOT, env=environment)

    ours("keys", "init", "--nodes", "3")
    (tmp_path / "link").mkdir()
    models = {"node-0": "cnn", "node-1": "resnet", "node-2": "own.py:network"}
    with secure_superlink(tmp_path / "link", keys, port, free_port()), contextlib.ExitStack() as stack:
        ours("connect", "--address", f"localhost:{port}")
        configs = {name: configure(tmp_path / name, keys, name, port, pictures, m) for name, m in models.items()}
        assert "the SuperLink does not know this key" in ours("doctor", "--config", str(configs["node-0"]), status=1)
        ours("keys", "enrol")
        told = json.loads(ours("doctor", "--json", "--config", str(configs["node-2"])))
        checks = ("packages", "ports", "name", "link", "superlink", "clock", "key", "device", "data", "training")
        expected = dict.fromkeys((*checks, "memory", "disk"), "ok") | {"user": "ok" if os.geteuid() else "warning"}
        assert {one["check"]: one["state"] for one in told["findings"]} == expected

        nodes = {name: stack.enter_context(node(config)) for name, config in configs.items()}
        runs = tmp_path / "home" / "runs"
        settings = (
            f"rounds={ROUNDS} min-nodes=3 feature-dim=16 round-timeout=45.0 strategy='fedsaf' output-dir='{runs}'"
        )
        app = copy_of_the_code(tmp_path / "isoproto")
        command = flwr("run", str(app), "isoproto", "--stream", "-c", settings)
        federation = stack.enter_context(started(command, tmp_path / "run.log", cwd=tmp_path / "link", env=environment))
        folder = until(lambda: only_run(runs), 120, "a run folder", federation)

        until(lambda: rounds_done(folder) >= 2, 300, "round 2", federation)
        live = json.loads(ours("status", "--json", "--connection", "isoproto"))
        assert live["state"] == "running"
        assert {one["client"]: one["online"] for one in live["clients"]} == dict.fromkeys(models, True)
        before = _last(folder, "node-1")
        state = tmp_path / "node-1" / "state" / "models"
        # In the middle of a round: its process for a message is alive.
        until(lambda: _at_work(nodes["node-1"].pid), 60, "a message to node-1", federation)
        kill(nodes["node-1"].pid)
        kept = {path.name for path in state.rglob("*.safetensors")}
        assert kept
        time.sleep(RECONNECT_S)
        stack.enter_context(node(configs["node-1"]))
        until(lambda: _last(folder, "node-1")["round"] > before["round"] + 2, 400, "node-1 again", federation)
        federation.wait(600)

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed", (tmp_path / "run.log").read_text()[-3000:]
    assert sorted({line["client"] for line in lines(folder, "client")}) == sorted(models)
    rounds = [line for line in lines(folder, "client") if line["client"] == "node-1"]
    back = next(i for i in range(1, len(rounds)) if rounds[i]["round"] > rounds[i - 1]["round"] + 1)
    # It goes on from the model of its last round before the kill, not from a new one.
    assert rounds[back]["accuracy"]["before"] == rounds[back - 1]["accuracy"]["after"]
    assert rounds[back]["loss"]["cross_entropy"] < rounds[0]["loss"]["cross_entropy"]
    assert {line["client"] for line in lines(folder, "failure")} == {"node-1"}
    # The others went on without it.
    missing = range(rounds[back - 1]["round"] + 1, rounds[back]["round"])
    assert {(line["round"], line["client"]) for line in lines(folder, "client") if line["round"] in missing} == {
        (number, name) for number in missing for name in ("node-0", "node-2")
    }


def _last(folder: Path, client: str) -> dict[str, int]:
    found = [line for line in lines(folder, "client") if line["client"] == client]
    return found[-1] if found else {"round": 0}


def _at_work(pid: int) -> bool:
    for process in family(pid):
        with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
            if "flwr-clientapp" in " ".join(process.cmdline()):
                return True
    return False
