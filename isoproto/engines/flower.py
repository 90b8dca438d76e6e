"""Running the app under Flower and Ray with one command, whose exit status says whether the run completed.

``flwr run`` leaves its SuperLink running, and exits with 0 even if the run failed. Here a SuperLink is started for one
run, with its own Flower home and port, and it always ends with the run. It starts in an empty folder: in a checkout,
Ray's workers would import the working tree and not the bundle.

With RAY_ADDRESS in the environment, clients are simulated on that cluster of machines, see docs/scale.md.
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from isoproto import paths
from isoproto.config import Scalar
from isoproto.engines.host import beside_proxies
from isoproto.errors import FederationError
from isoproto.toml import to_toml

_log = logging.getLogger("isoproto")

_Start = Callable[..., "subprocess.Popen[bytes]"]
_START_LIMIT_S, _ANSWER_LIMIT_S = 120, 5
# So many nodes that every worker is asked by at least one of them, and reports its clients, before the first round.
_NODES_PER_CORE = 4
_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # These silence notes of Ray about its internals. No message of this project is lost.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
}
_CLUSTER = "RAY_ADDRESS"  # the environment variable that names a cluster to Ray
# Ray adds 85 characters for its sockets to the folder of a run, and macOS allows 103 for the path of a socket.
_LONGEST_TMP = 16


def app_folder() -> Path:
    """Return the folder of the Flower app that this code belongs to.

    Raises:
        FederationError: If this is an installed copy without one.
    """
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "pyproject.toml").is_file():
        raise FederationError(
            f"{folder} is no checkout of isoproto (no pyproject.toml), so there is nothing for Flower to bundle; "
            "run in a checkout, or use `isoproto run --engine in-process`"
        )
    return folder


def run_under_flower(
    run_config: Mapping[str, Scalar],
    *,
    clients: int,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    install_dependencies: bool = False,
) -> None:
    """Run the app with ``flwr run`` and its log on standard output.

    Args:
        run_config: Settings of the run that differ from their defaults.
        clients: Number of clients. A few nodes answer for all of them, because Flower checks each node ten times a
            second: 200 nodes would take an eighth of a core from the training.
        cpus_per_client: CPUs that Ray reserves for a worker, so that cores / cpus_per_client workers run at once.
        gpus_per_client: GPUs that Ray reserves for a worker. With 0.25, four workers share one GPU and see no other.
            With 0, Ray reserves none, and all workers see all GPUs.
        install_dependencies: Whether Flower installs the app's dependencies into an environment of the run.

    Raises:
        FederationError: If the run did not complete.
    """
    cores = _cluster_cores() or os.cpu_count() or 1
    with _leaving_on_sigterm(), _scratch() as home:
        environment = _environment(home)
        overrides = home / "run-config.toml"
        overrides.write_text(to_toml({**run_config, "clients": clients}))
        with _process_group(env=environment, cwd=home) as start:
            _start_superlink(start, environment, install_dependencies=install_dependencies)
            nodes = min(clients, _NODES_PER_CORE * cores)
            federation = f"num-supernodes={nodes} client-resources-num-cpus={cpus_per_client}"
            if gpus_per_client:
                federation += f" client-resources-num-gpus={gpus_per_client}"
            command = [tool("flwr"), "run", str(app_folder()), "--stream", "--federation-config", federation]
            command += ["--run-config", str(overrides)]
            returncode = start(command).wait()
            status, details = _last_run(environment, home)
    if returncode or status != "finished:completed":
        raise FederationError(f"the run under Flower ended as {status!r}: {details or 'see the log above'}")


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Make an empty folder that is deleted afterwards. On a cluster all machines must see it, for the app's code."""
    if _CLUSTER in os.environ:
        parent = paths.home() / "flower"
        parent.mkdir(parents=True, exist_ok=True)
    else:
        parent = Path(tempfile.gettempdir())
        if len(str(parent)) > _LONGEST_TMP:
            parent = Path("/tmp")  # noqa: S108 - everywhere, and short
    with tempfile.TemporaryDirectory(prefix="isoproto-", dir=parent) as path:
        yield Path(path)


def _cluster_cores() -> int:
    """Return how many CPUs the Ray cluster of RAY_ADDRESS has; 0 if the variable is not set.

    Raises:
        FederationError: If no cluster answers at that address.
    """
    if not (address := os.environ.get(_CLUSTER)):
        return 0
    import ray

    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_LIMIT_S).close()  # Ray would try for minutes
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
        return int(ray.cluster_resources().get("CPU", 0))
    except (OSError, RuntimeError, ValueError) as err:
        raise FederationError(
            f"{_CLUSTER} is {address!r}, and there is no Ray cluster at that host:port that this machine is part of: "
            f"{err}. Start Ray on each machine (docs/scale.md), or unset it to simulate on this machine alone"
        ) from err
    finally:
        ray.shutdown()


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of all Flower processes of a run, whose folder is ``home``."""
    return {
        **os.environ,
        **beside_proxies(),
        **_SETTINGS,
        "FLWR_HOME": str(home),
        "RAY_TMPDIR": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(_free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(_free_port()),
        # First this interpreter's folder, so that its commands are found even if its environment is not activated.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


@contextlib.contextmanager
def _process_group(**options: Any) -> Iterator[_Start]:  # noqa: ANN401 - what Popen takes
    """Yield a function that starts a process in a group, and kill the group when the block, or this process, ends.

    Everything that a member starts, down to Ray's workers, belongs to the group. The first member reads from a pipe
    that closes even when this process is killed, and then kills the group. Killing loses nothing, since the folders of
    a run exist for that run alone.
    """
    guard = subprocess.Popen(["/bin/sh", "-c", "read _; kill -s KILL 0"], stdin=subprocess.PIPE, process_group=0)
    members = [guard]

    def start(command: list[str], **more: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, process_group=guard.pid, **options, **more
        )
        members.append(process)
        return process

    try:
        yield start
    finally:
        guard.communicate()  # closes the pipe
        for member in members:
            member.wait()


def _start_superlink(start: _Start, environment: Mapping[str, str], *, install_dependencies: bool) -> None:
    """Start a SuperLink for simulations and the SuperExec that starts its runs, and wait until it answers.

    These are two commands, because a SuperExec that the SuperLink starts by itself leaves the process group.
    """
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    log = Path(environment["FLWR_HOME"]) / "superlink.log"
    superlink = [tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "process"]
    superexec = [tool("flower-superexec"), "--insecure", "--runtime-api-address", f"127.0.0.1:{port}"]
    if install_dependencies:
        superexec.append("--allow-runtime-dependency-installation")
    with log.open("wb") as output:
        process = start([*superlink, "--host", "127.0.0.1", "--port", port], stdout=output, stderr=output)
        start(superexec, stdout=output, stderr=output)
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        time.sleep(0.1)
    tail = log.read_text(errors="replace").strip().splitlines()[-5:]
    raise FederationError(f"the local SuperLink did not start on port {port}: {' | '.join(tail) or 'no output'}")


@contextlib.contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """Make SIGTERM end this process as Ctrl-C does: every ``finally`` runs, and the status is the one shells expect."""

    def leave(number: int, _: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _last_run(environment: Mapping[str, str], folder: Path) -> tuple[str, str]:
    """Return the status and its details of the only run that the SuperLink knows."""
    listed = subprocess.run(  # noqa: S603
        [tool("flwr"), "ls", "--format", "json"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        run = json.loads(listed.stdout)["runs"][0]
        return str(run["status"]), str(run["status-details"])
    except (ValueError, LookupError, TypeError):
        return "unknown", (listed.stdout + listed.stderr).strip()[-500:]


def tool(name: str) -> str:
    """Return the path of a command from the folder of this interpreter, else from the search path."""
    near = Path(sys.executable).parent / name
    found = str(near) if near.exists() else shutil.which(name)
    if not found:
        raise FederationError(f"`{name}` is not installed; pip install 'flwr[simulation]'")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
