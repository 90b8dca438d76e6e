"""Keys in use: a SuperLink with TLS that takes enrolled SuperNodes only, all through our own commands."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deployment import secure_superlink
from tests.e2e.processes import ROOT, flower_environment, flwr, free_port, isoproto, run, started, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@contextlib.contextmanager
def supernode(folder: Path, keys: Path, name: str, superlink: str) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """Start a SuperNode with a key, and yield it and where its health can be asked."""
    health = f"127.0.0.1:{free_port()}"
    command = [str(Path(sys.executable).with_name("flower-supernode")), "--superlink", superlink]
    command += ["--root-certificates", str(keys / "ca.pem"), "--port", str(free_port())]
    command += ["--auth-supernode-private-key", str(keys / "nodes" / f"{name}.key"), "--health-server-address", health]
    environment = flower_environment(folder)
    with started(command, folder / "supernode.log", cwd=folder, env=environment) as process:
        yield process, health


def test_only_enrolled_nodes_are_taken_and_a_revoked_one_is_put_out(tmp_path: Path) -> None:
    environment = flower_environment(tmp_path / "flower", ISOPROTO_HOME=str(tmp_path / "home"))
    keys, port, health_port = tmp_path / "home" / "keys", free_port(), free_port()

    def ours(*words: str, status: int = 0) -> str:
        return run(isoproto(*words), 120, status=status, cwd=ROOT, env=environment)

    def states() -> list[str]:
        listed = run(flwr("supernode", "list", "isoproto", "--format", "json"), 60, env=environment, cwd=tmp_path)
        return sorted(node["status"] for node in json.loads(listed)["nodes"])

    ours("keys", "init", "--nodes", "2")
    with secure_superlink(tmp_path / "link", keys, port, health_port):
        assert ours("health", f"127.0.0.1:{health_port}") == f"127.0.0.1:{health_port}: serving\n"
        ours("connect", "--address", f"localhost:{port}")
        assert ours("keys", "enrol", "node-0").startswith("node-0: enrolled as node ")
        assert states() == ["registered"]

        with (
            supernode(tmp_path / "known", keys, "node-0", f"localhost:{port}") as (known, health),
            supernode(tmp_path / "unknown", keys, "node-1", f"localhost:{port}") as (unknown, _),
        ):
            assert unknown.wait(120) != 0
            assert "Exit Code: 305" in (tmp_path / "unknown" / "supernode.log").read_text()
            until(lambda: states() == ["online"], 120, "the enrolled node", known)
            assert ours("health", health) == f"{health}: serving\n"

            again = ours("keys", "enrol").splitlines()
            assert again[0].startswith("node-0: was enrolled already, as node ")
            assert again[1].startswith("node-1: enrolled as node ")
            assert states() == ["online", "registered"]
            assert "nodes/node-1.pub: node " in ours("keys", "show")

            assert "is refused from now on; its key is removed" in ours("keys", "revoke", "node-1")
            assert states() == ["online", "unregistered"]
            assert "is refused from now on; its key is removed" in ours("keys", "revoke", "node-0")
            assert states() == ["unregistered", "unregistered"]
            known.wait(120)  # its status is 0 all the same
            assert "SuperNode terminated gracefully" in (tmp_path / "known" / "supernode.log").read_text()
        assert not list((keys / "nodes").iterdir())
        assert "make one with `isoproto keys add NODE`" in ours("keys", "enrol", status=1)
    assert "unreachable" in ours("health", f"127.0.0.1:{health_port}", "--timeout", "2", status=2)
