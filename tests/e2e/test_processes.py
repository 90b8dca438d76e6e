"""A SuperLink and SuperNodes as real processes on this machine, as on several hosts but for TLS."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import (
    copy_of_the_code,
    flower_environment,
    flwr,
    free_port,
    lines,
    only_run,
    run,
    runs_of,
    started,
    superlink,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]


@contextlib.contextmanager
def supernode(folder: Path, superlink_port: str, node_config: str) -> Iterator[None]:
    """Run a SuperNode with a home and folder of its own."""
    environment = flower_environment(folder)
    command = [str(Path(sys.executable).with_name("flower-supernode")), "--insecure", "--port", str(free_port())]
    command += ["--superlink", f"127.0.0.1:{superlink_port}"]
    if node_config:
        command += ["--node-config", node_config]
    with started(command, folder / "supernode.log", cwd=folder, env=environment):
        yield


def test_nodes_that_cannot_take_part_are_told_why_and_the_others_go_on(tmp_path: Path, pictures: Path) -> None:
    environment = flower_environment(tmp_path / "flower", ISOPROTO_HOME=str(tmp_path / "home"))
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    (tmp_path / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    nodes = {
        "first": f'partition-id=0 num-partitions=2 data-dir="{pictures.parent}"',
        "second": f'partition-id=1 num-partitions=2 data-dir="{pictures.parent}"',
        "unset": "",
        "misspelt": "partiton-id=0 num-partitions=2",
        "beyond": "partition-id=5 num-partitions=4",
    }
    settings = f"rounds=2 partition='iid' min-nodes=2 feature-dim=16 data='npz:{pictures}'"
    with contextlib.ExitStack() as stack:
        stack.enter_context(superlink(tmp_path / "empty", environment))
        for name, node_config in nodes.items():
            stack.enter_context(supernode(tmp_path / name, port, node_config))
        command = flwr("run", str(copy_of_the_code(tmp_path / "isoproto")), "here", "--stream", "-c", settings)
        log = run(command, 1200, cwd=tmp_path / "empty", env=environment)
        (last,) = runs_of(environment, tmp_path / "empty", "here")

    assert last["status"] == "finished:completed", log
    folder = only_run(tmp_path / "home" / "runs")
    assert [line["client"] for line in lines(folder, "client")] == ["0", "1"] * 2
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["clients"]["evaluated"]) == ("completed", 2)

    reasons = sorted(line["reason"] for line in lines(folder, "failure"))
    missing = "node config: neither `partition-id` (with `num-partitions`: its share of the run's data) nor `data`"
    assert len(reasons) == 3
    assert "partition-id = 5, num-partitions = 4" in reasons[0]
    assert missing in reasons[1]
    assert "got ['num-partitions', 'partiton-id']" in reasons[1]
    assert missing in reasons[2]
    assert "got []" in reasons[2]
    assert all(reason in log for reason in reasons)
