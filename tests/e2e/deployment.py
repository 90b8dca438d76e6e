"""A deployment on this machine as on several: TLS, keys, a SuperLink, nodes with data and models of their own."""

import contextlib
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.processes import (
    ROOT,
    copy_of_the_code,
    flower_environment,
    flwr,
    free_port,
    isoproto,
    lines,
    only_run,
    rounds_done,
    run,
    started,
    until,
)

Process = subprocess.Popen[bytes]

_OWN = """
from torch import nn


def network(spec):
    side = (spec.height - 5) // 4 + 1
    return nn.Sequential(nn.Conv2d(spec.channels, 8, 5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * side**2, 12))
"""


class Deployment:
    """Keys, and where everything is; its methods start what runs.

    Args:
        folder: Where all files go.
        models: Model of each node, which are called node-0, node-1, and so on; or ``own.py:network``.
        pictures: The data of all nodes.
    """

    def __init__(self, folder: Path, models: Mapping[str, str], pictures: Path) -> None:
        self.folder, self.models, self.port = folder, models, free_port()
        self.keys = folder / "home" / "keys"
        self.environment = flower_environment(folder / "flower", ISOPROTO_HOME=str(folder / "home"))
        self._pictures = pictures
        self.ours("keys", "init", "--nodes", str(len(models)))

    def ours(self, *words: str, limit_s: float = 120, status: int = 0) -> str:
        """Run our command as an operator would."""
        return run(isoproto(*words), limit_s, status=status, cwd=ROOT, env=self.environment)

    def superlink(self) -> contextlib.AbstractContextManager[Process]:
        """Run the SuperLink on its database, which it finds again when it is started again."""
        database = str(self.folder / "link.db")
        return secure_superlink(self.folder / "link", self.keys, self.port, free_port(), "--database", database)

    def connect(self) -> None:
        """Let commands find the SuperLink, as ``isoproto``."""
        self.ours("connect", "--address", f"localhost:{self.port}")

    def configure(self, name: str, port: int) -> Path:
        """Write the configuration of a node that reaches the SuperLink at a port."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "own.py").write_text(_OWN)
        (folder / "node.toml").write_text(
            f'superlink = "localhost:{port}"\nroot-certificates = "{self.keys / "ca.pem"}"\n'
            f'private-key = "{self.keys / "nodes" / f"{name}.key"}"\ndata = "npz:{self._pictures}"\n'
            f'model = "{self.models[name]}"\nclasses = ["d", "c", "b", "a"]\nstate-dir = "state"\n'
            f'runtime-port = {free_port()}\nmin-class-samples = 2\nmay-send = ["statistics", "gradients"]\n'
        )
        return folder / "node.toml"

    @contextlib.contextmanager
    def run(self, settings: str) -> Iterator[tuple[Process, Path]]:
        """Start a run of all nodes, and yield the process that shows its log, and its folder."""
        app = copy_of_the_code(self.folder / "isoproto")
        strategy = "" if "strategy=" in settings else "strategy='fedsaf'"
        settings = f"min-nodes={len(self.models)} feature-dim=16 {strategy} {settings}"
        command = flwr("run", str(app), "isoproto", "--stream", "-c", settings)
        with started(command, self.folder / "run.log", cwd=self.folder / "link", env=self.environment) as process:
            yield process, until(lambda: only_run(self.folder / "home" / "runs"), 120, "a run folder", process)

    @property
    def log(self) -> str:
        """The end of what the run has shown."""
        return (self.folder / "run.log").read_text()[-3000:]


@contextlib.contextmanager
def secure_superlink(folder: Path, keys: Path, port: int, health_port: int, *options: str) -> Iterator[Process]:
    """Run a SuperLink with certificates that refuses unknown nodes, once it answers."""
    folder.mkdir(exist_ok=True)
    command = [str(Path(sys.executable).with_name("flower-superlink")), "--enable-supernode-auth", *options]
    command += ["--host", "127.0.0.1", "--port", str(port), "--health-server-address", f"127.0.0.1:{health_port}"]
    command += ["--ssl-ca-certfile", str(keys / "ca.pem")]
    command += ["--ssl-certfile", str(keys / "server.pem"), "--ssl-keyfile", str(keys / "server.key")]
    trusting = ssl.create_default_context(cafile=keys / "ca.pem")
    environment = flower_environment(folder, ISOPROTO_HOME=str(keys.parent))
    with started(command, folder / "superlink.log", cwd=folder, env=environment) as process:

        def healthy() -> bool:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"https://localhost:{port}/health", timeout=1, context=trusting).close()
                return True
            return False

        until(healthy, 120, "a SuperLink", process)
        yield process


@contextlib.contextmanager
def node(config: Path) -> Iterator[Process]:
    """Run a node with a configuration."""
    environment = flower_environment(config.parent / "unused")
    with started(
        isoproto("node", "--config", str(config)), config.parent / "node.log", cwd=ROOT, env=environment
    ) as one:
        yield one


def until_at_work(config: Path, one: Process) -> None:
    """Wait until a node begins to work on a message: it has all of it, and a process for it has started."""
    log = config.parent / "node.log"

    def begun() -> int:
        text = log.read_text()
        return min(map(text.count, ("Received successfully", "Start `flwr-clientapp` process")))

    before = begun()
    until(lambda: begun() > before, 120, f"a message to {config.parent.name}", one)


def trained(folder: Path, client: str) -> list[dict[str, Any]]:
    """Return what a run's metrics tell of a client, round by round."""
    return [line for line in lines(folder, "client") if line["client"] == client]


def missed(folder: Path, client: str, since: int) -> set[int]:
    """Return the rounds after a round that ended without a client."""
    return set(range(since + 1, rounds_done(folder) + 1)) - {line["round"] for line in trained(folder, client)}
