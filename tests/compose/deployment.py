"""The shipped compose files on a real Docker engine: what a test asks of them, in words."""

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.processes import ROOT, flower_environment, flwr, free_port, isoproto, run, runs_of

NODES = ("node-0", "node-1", "node-2")
# Who the containers run as; root's keys would be root's alone.
UID = os.getuid() or 1000
HOME = "/var/lib/isoproto"
_PROJECT = "isoproto-test"
_TAG = "compose-test"
_POLL_S = 0.5
_FIRST_PORT = 18101


def docker(*words: str, limit_s: float = 120, status: int = 0, **options: Any) -> str:
    """Run a command of Docker's and return its output."""
    return run(["docker", *words], limit_s, status=status, **options)


def compose_command() -> list[str]:
    """Return the compose command that is there."""
    return ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]


@dataclass
class Deployment:
    """The containers of the compose file in the repository's root, and the environment to call them in."""

    folder: Path
    environment: dict[str, str]

    @property
    def keys(self) -> Path:
        return Path(self.environment["ISOPROTO_KEYS_DIR"])

    @property
    def image(self) -> str:
        return f"isoproto:{_TAG}"

    def compose(self, *words: str, limit_s: float = 300) -> str:
        return run([*compose_command(), *words], limit_s, cwd=ROOT, env=self.environment)

    def ours(self, *words: str, limit_s: float = 300, status: int = 0) -> str:
        """Run our command on the host, as an operator would."""
        return run(isoproto(*words), limit_s, status=status, cwd=ROOT, env=self.environment)

    def flwr(self, *words: str, limit_s: float = 600) -> str:
        return run(flwr(*words), limit_s, cwd=self.folder, env=self.environment)

    def start(self, settings: str) -> "subprocess.Popen[bytes]":
        """Start a run without waiting for its end, and return the process that shows its log."""
        command = flwr("run", str(ROOT), "isoproto", "--stream", "-c", settings)
        with (self.folder / "flwr.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def answers(self) -> bool:
        """Say whether the SuperLink answers to the operator."""
        return bool(json.loads(self.flwr("ls", "isoproto", "--format", "json"))["success"])

    def last_run(self) -> dict[str, Any]:
        return runs_of(self.environment, self.folder, "isoproto")[0]

    def container(self, service: str) -> str:
        labels = f"label=com.docker.compose.project={_PROJECT}", f"label=com.docker.compose.service={service}"
        return docker("ps", "--all", "--quiet", "--filter", labels[0], "--filter", labels[1]).strip()

    def state(self, service: str) -> dict[str, Any]:
        return json.loads(docker("inspect", self.container(service)))[0]

    def restarts(self, service: str) -> int:
        return int(self.state(service)["RestartCount"])

    def crash(self, service: str) -> None:
        """Kill every process of a container hard; unlike `docker kill`, that is nothing Docker was asked for."""
        with contextlib.suppress(AssertionError):  # the shell that does it is among them
            docker("exec", self.container(service), "sh", "-c", "kill -KILL -1")

    def trains(self, service: str) -> bool:
        """Say whether a node works on a message."""
        return "flwr-clientapp" in docker("top", self.container(service), "-eo", "pid,args")

    def fetch(self, service: str, inside: str, to: Path) -> Path:
        """Copy a folder out of a container."""
        docker("cp", f"{self.container(service)}:{HOME}/{inside}", str(to))
        return to

    def read(self, inside: str) -> str:
        """Return the text of a file of the SuperLink's, empty if it is not there."""
        return docker("exec", self.container("superlink"), "sh", "-c", f"cat {HOME}/{inside} 2>/dev/null || true")

    def runs(self) -> set[str]:
        """Return the names of the run folders, which begin with the time."""
        return set(docker("exec", self.container("superlink"), "ls", f"{HOME}/runs").split())

    def lines(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Return the lines of one kind that a run has written."""
        text = self.read(f"runs/{name}/metrics.jsonl")
        return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]

    def nodes(self) -> list[str]:
        """Return the status of each node that the SuperLink knows."""
        listed = json.loads(self.flwr("supernode", "list", "isoproto", "--format", "json"))["nodes"]
        return [node["status"] for node in listed]

    def beside_a_node(self, *words: str, mounts: tuple[str, ...] = (), limit_s: float = 120) -> tuple[int, str]:
        """Run a command where nodes are: in their network, with nothing of the server's; return status and output."""
        mounted = [word for each in mounts for word in ("--volume", f"{each}:ro")]
        command = ["docker", "run", "--rm", "--user", str(UID), "--network", f"{_PROJECT}_nodes", *mounted]
        done = subprocess.run(
            [*command, self.image, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return done.returncode, done.stdout


def until(there: Callable[[], Any], limit_s: float, what: str) -> Any:
    """Wait for something to become true, and return it."""
    deadline = time.monotonic() + limit_s
    while not (found := there()):
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s"
        time.sleep(_POLL_S)
    return found


@contextlib.contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Build the images, make keys, start everything, and take it all away at the end, but the images."""
    docker("version")  # without an engine, its own words are the best
    environment = flower_environment(
        folder / "flower",
        COMPOSE_PROJECT_NAME=_PROJECT,
        ISOPROTO_TAG=_TAG,
        ISOPROTO_UID=str(UID),
        ISOPROTO_KEYS_DIR=str(folder / "keys"),
        ISOPROTO_PORT=str(free_port()),
        ISOPROTO_CONTROL_PORT=str(free_port()),
        ISOPROTO_BUILD_NETWORK="host",
        DOCKER_BUILDKIT=os.environ.get("DOCKER_BUILDKIT", "0"),
    )
    there = Deployment(folder, environment)
    with package_folders() as settings:
        run([*compose_command(), "build", "superlink", "proxy"], 1500, cwd=ROOT, env={**environment, **settings})
    there.ours("keys", "init", "--nodes", str(len(NODES)))
    give_away(there.keys)
    try:
        there.compose("up", "-d", "--no-build")
        yield there
    finally:
        (folder / "compose.log").write_text(there.compose("logs", "--no-color"))
        there.compose("down", "--volumes", "--timeout", "5")


def give_away(folder: Path) -> None:
    """Give keys to the user that containers run as."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, UID, -1)


@contextlib.contextmanager
def package_folders() -> Iterator[dict[str, str]]:
    """Serve folders that pip takes packages from on this machine to the build, which does not see them."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.extra-index-url"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    with contextlib.ExitStack() as stack:
        urls = [
            stack.enter_context(_served(url, port)) if url.startswith("file:") else url
            for port, url in enumerate(listed, _FIRST_PORT)
        ]
        yield {"PIP_EXTRA_INDEX_URL": " ".join(urls)} if urls else {}


@contextlib.contextmanager
def _served(url: str, port: int) -> Iterator[str]:
    """Serve an index, always at the same port: Docker uses a layer again only if its arguments are the same."""
    index = Path(urllib.parse.unquote(urllib.parse.urlparse(url).path))
    handler = functools.partial(_Silent, directory=str(index.parent))  # its pages point to files beside it
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{port}/{index.name}"
        server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...
