"""The shipped compose file in earnest: built, started, trained with, broken, mended; each test builds on the last."""

import itertools
import json
import shutil
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.compose.deployment import HOME, NODES, UID, Deployment, deployed, docker, give_away, until
from tests.e2e.processes import ROOT, lines

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]

FEDERATION = "data='digits4' partition='domain' models='cnn,resnet,mobilenet' feature-dim=32 seed=11"
FLAGSHIP = f"strategy='isoproto' rounds=5 min-nodes=3 evaluate-every=1 {FEDERATION}"
ROUNDS = 16
# By its network alone, so that a client's accuracy before a round is the one after its last round.
CHAOS = f"strategy='isoproto' common.predict='head' rounds={ROUNDS} min-nodes=3 round-timeout=45.0 {FEDERATION}"
CLOSE = {"rel": 1e-5, "abs": 1e-5}


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("compose")) as deployment:
        yield deployment


def test_containers_run_as_a_plain_user_in_a_read_only_system_without_compilers(there: Deployment):
    for service in ("superlink", "proxy", *NODES):
        found = there.state(service)
        assert found["Config"]["User"].startswith(f"{UID}:")
        assert found["HostConfig"]["ReadonlyRootfs"]
        assert found["HostConfig"]["Memory"]
    keys = "find / -xdev -path /run/secrets -prune -o -name '*.key' -print 2>&-"
    probe = f"id -u; command -v gcc cc g++ make; {keys}; echo x >/x"
    told = docker("exec", there.container("superlink"), "sh", "-c", probe, status=2).splitlines()
    assert told[0] == str(UID)
    assert "Read-only file system" in told[1]
    packages = "import client_app, isoproto, models, server_app, strategies, torch; print(torch.__version__)"
    assert docker("run", "--rm", there.image, "python", "-c", packages).splitlines()[-1].startswith("2.")


def test_nodes_come_as_soon_as_they_are_enrolled(there: Deployment):
    there.ours("connect", "--address", f"127.0.0.1:{there.environment['ISOPROTO_CONTROL_PORT']}")
    until(lambda: there.state("superlink")["State"]["Health"]["Status"] == "healthy", 300, "a healthy SuperLink")
    assert there.nodes() == []
    until(lambda: all(there.restarts(node) for node in NODES), 120, "nodes that were refused and try again")
    there.ours("keys", "enrol")
    until(lambda: there.nodes() == ["online"] * 3, 180, "three nodes")


def test_five_rounds_of_the_flagship_end_as_they_do_in_simulation(there: Deployment, tmp_path: Path):
    there.flwr("run", str(ROOT), "isoproto", "--stream", "-c", FLAGSHIP)
    assert there.last_run()["status"] == "finished:completed"
    home = tmp_path / "simulated"
    home.mkdir()
    home.chmod(0o777)
    command = ["isoproto", "run", "--clients", str(len(NODES)), "-c", FLAGSHIP]
    docker(
        "run", "--rm", "--network=none", f"--user={UID}", f"--volume={home}:{HOME}", there.image, *command, limit_s=600
    )
    (simulated,) = (home / "runs").iterdir()
    real = there.fetch("superlink", f"runs/{max(there.runs())}", tmp_path / "real")

    trained = [lines(folder, "client") for folder in (simulated, real)]
    assert [(line["round"], line["client"]) for line in trained[1]] == [(r, c) for r in range(1, 6) for c in "012"]
    assert len({line["model"] for line in trained[1]}) == 3
    for expected, found in zip(*trained, strict=True):
        for key in ("round", "client", "model", "samples", "correct", "total"):
            assert found[key] == expected[key]
        for key in ("accuracy", "loss"):
            assert found[key] == pytest.approx(expected[key], **CLOSE)
        assert found["scatter"] == pytest.approx(expected["scatter"], **CLOSE)
    for expected, found in zip(*(lines(folder, "evaluation") for folder in (simulated, real)), strict=True):
        assert found == expected
    for number, node in enumerate(NODES):
        mine = models(there.fetch(node, "state", tmp_path / node), str(number))
        wanted = models(home / "state", str(number))
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


def models(state: Path, client: str) -> dict[str, torch.Tensor]:
    """Return the newest model of a client."""
    newest = max(path for path in state.rglob("*.safetensors") if client in path.relative_to(state).parts)
    return safetensors.torch.load_file(newest)


def test_a_run_survives_a_killed_node_a_cut_line_and_a_restarted_superlink(there: Deployment):
    before = there.runs()
    process = there.start(CHAOS)
    (name,) = until(lambda: there.runs() - before, 120, "a run folder")

    def done() -> int:
        return len(there.lines(name, "round"))

    def trained(client: str) -> list[int]:
        return [line["round"] for line in there.lines(name, "client") if line["client"] == client]

    def back(client: str) -> bool:
        return trained(client)[-1:] == [done()]

    def missed(client: str, since: int) -> set[int]:
        return set(range(since + 1, done() + 1)) - set(trained(client))

    until(lambda: done() >= 2, 240, "two rounds")
    until(lambda: there.trains("node-1"), 120, "node-1 in training")
    restarts = there.restarts("node-1")
    there.crash("node-1")
    at = done()
    until(lambda: done() > at + 1 and back("1"), 300, "node-1 after a crash")
    assert missed("1", at)
    assert there.restarts("node-1") > restarts
    mine = [line for line in there.lines(name, "client") if line["client"] == "1"]
    for earlier, later in itertools.pairwise(mine):
        assert later["accuracy"]["before"] == earlier["accuracy"]["after"], "node-1 lost its model"

    at = done()
    docker("network", "disconnect", "isoproto-test_nodes", there.container("node-2"))
    time.sleep(60)
    docker("network", "connect", "isoproto-test_nodes", there.container("node-2"))
    until(lambda: done() > at + 1 and back("2"), 300, "node-2 after a minute without network")
    assert missed("2", at)

    at = done()
    there.compose("restart", "superlink")
    process.wait(120)
    until(there.answers, 120, "the SuperLink")
    until(lambda: there.last_run()["status"] == "finished:failed", 240, "the end of the broken run")
    assert at < ROUNDS, "the run was over before the SuperLink was restarted"
    assert f"round {at}/{ROUNDS}" in there.read(f"runs/{name}/log.txt")
    there.ours("resume", name.rpartition("-")[2], "--connection", "isoproto", limit_s=600)
    assert there.last_run()["status"] == "finished:completed"
    assert json.loads(there.read(f"runs/{name}/summary.json"))["status"] == "completed"
    assert [line["round"] for line in there.lines(name, "round")] == list(range(1, ROUNDS + 1))
    assert there.nodes() == ["online"] * 3


def test_strangers_are_refused_and_told_why(there: Deployment):
    there.ours("keys", "add", "stranger")
    give_away(there.keys)
    key, authority = there.keys / "nodes" / "stranger.key", there.keys / "ca.pem"
    command = ("flower-supernode", "--superlink=superlink:8443", "--root-certificates=/run/secrets/ca.pem")
    command += ("--auth-supernode-private-key=/run/secrets/node.key",)
    mounts = (f"{key}:/run/secrets/node.key", f"{authority}:/run/secrets/ca.pem")
    status, told = there.beside_a_node(*command, mounts=mounts)
    assert status != 0
    assert "the SuperLink does not take its key: it is not enrolled (isoproto keys enrol)" in told

    there.ours("keys", "init", "--keys-dir", str(there.folder / "others"))
    mounts = (f"{key}:/run/secrets/node.key", f"{there.folder / 'others' / 'ca.pem'}:/run/secrets/ca.pem")
    give_away(there.folder / "others")
    status, told = there.beside_a_node(*command, mounts=mounts)
    assert status != 0
    assert "certificate verify failed" in told.lower()

    shutil.copy(key, there.folder / "foreign.key")  # whoever runs the tests, else root, is not the container's user
    (there.folder / "foreign.key").chmod(0o000)
    status, told = there.beside_a_node(*command, mounts=(f"{there.folder / 'foreign.key'}:/run/secrets/node.key",))
    assert status == 1
    assert "error: /run/secrets/node.key belongs to user" in told


def test_from_the_nodes_network_nothing_but_the_nodes_own_routes_can_be_reached(there: Deployment):
    before = there.nodes(), there.last_run()["run-id"]
    link = there.state("superlink")["NetworkSettings"]["Networks"]["isoproto-test_server"]["IPAddress"]
    probe = (Path(__file__).parent / "probe.py").resolve()
    mounts = (f"{probe}:/probe.py", f"{there.keys / 'ca.pem'}:/ca.pem")
    status, told = there.beside_a_node("python", "/probe.py", link, mounts=mounts)
    assert status == 0, told
    found = json.loads(told.splitlines()[-1])
    assert found["plain"] == "400 this port takes HTTPS only; start the SuperNode without --insecure"
    assert found["direct"] == "unreachable"
    assert found["health"].startswith("200")
    assert found["fleet"].startswith("401")
    assert found["big"].startswith("413")
    assert set(found["other"].values()) == {"403 open to nodes: /v1/fleet/ and /health"}, found["other"]

    script = (
        "isoproto connect --address superlink:8443 --root-certificates /ca.pem; isoproto keys init --nodes 1;"
        "flwr supernode register /var/lib/isoproto/keys/nodes/node-0.pub isoproto; flwr run /app isoproto"
    )
    mounts = (f"{there.keys / 'ca.pem'}:/ca.pem", f"{ROOT}:/app")
    _, told = there.beside_a_node("sh", "-c", script, mounts=mounts)
    assert told.count("403 Forbidden") == 2, told
    assert (there.nodes(), there.last_run()["run-id"]) == before


def test_no_private_key_is_in_logs_or_layers(there: Deployment):
    assert "PRIVATE KEY" not in there.compose("logs", "--no-color")
    assert "PRIVATE KEY" not in docker("history", "--no-trunc", there.image)
