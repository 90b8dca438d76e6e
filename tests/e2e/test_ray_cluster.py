"""Two Ray nodes carry one federation: what a cluster of two machines does, except for the network between them."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, alive, figures, free_port, isoproto, only_run, run, started, until, workers

LIMIT_S = 300


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """Start two nodes of one CPU each, with folders of their own, and give their address and process ids."""
    address = f"127.0.0.1:{free_port()}"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", "--num-cpus=1"]
    ray += ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
    head = ["--head", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"]
    nodes = []
    with contextlib.ExitStack() as stack:
        for role in (head, [f"--address={address}"]):
            # A folder with a short name, since Ray keeps sockets in it.
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True))
            log = tmp_path / f"node-{len(nodes)}.log"
            node = stack.enter_context(started([*ray, *role, f"--temp-dir={folder}"], log, cwd=tmp_path))
            until(lambda log=log: "Ray runtime started" in log.read_text(), 60, "a Ray node", node)
            nodes.append(node.pid)
        yield address, nodes


@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_two_nodes_carry_one_federation(cluster: tuple[str, list[int]], tmp_path: Path) -> None:
    address, nodes = cluster
    command = isoproto("run", "-c", "clients=6 rounds=2 seed=1")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ISOPROTO_HOME": str(tmp_path / "one")}
    alone = {**environment, "ISOPROTO_HOME": str(tmp_path / "two")}

    log = run([*command, "--engine", "flower"], LIMIT_S, cwd=ROOT, env={**environment, "RAY_ADDRESS": address})

    assert "2 clients at once on 2 cores" in log  # a node has one CPU, so each of them has a worker
    assert alive([worker for node in nodes for worker in workers(node)]) == []
    assert list((tmp_path / "one" / "flower").iterdir()) == []  # the bundle lay there
    run(command, LIMIT_S, cwd=ROOT, env=alone)
    assert figures(only_run(tmp_path / "one" / "runs")) == figures(only_run(tmp_path / "two" / "runs"))


@pytest.mark.e2e
def test_a_cluster_that_is_not_there_is_named_at_once() -> None:
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    log = run(isoproto("run", "--engine", "flower"), 60, status=1, cwd=ROOT, env=environment)
    assert "RAY_ADDRESS is '127.0.0.1:1', and there is no Ray cluster at that host:port" in log
