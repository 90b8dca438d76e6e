"""Running the app under Flower and Ray from one command: its own SuperLink, and a status that tells the truth.

``flwr run`` leaves its SuperLink running and exits with 0 even when the run failed. Here a SuperLink is started
for one run, in an empty folder (started from a checkout, Ray's workers would import the working tree, not the
bundle), with its own Flower home and port, and ended with the run.
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
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from isoproto.config import Scalar
from isoproto.errors import FederationError
from isoproto.run_folder import to_toml

_log = logging.getLogger("isoproto")

_START_LIMIT_S, _STOP_LIMIT_S = 60, 20
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
# Ray's notes on its own internals; nothing of ours hides behind them.
_QUIET |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "1"}


def app_folder() -> Path:
    """Return the folder of the Flower app that this code belongs to.

    Raises:
        FederationError: If this is an installed copy without one.
    """
    folder = Path(__file__).resolve().parent.parent
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
    install_dependencies: bool = False,
) -> None:
    """Run the app with ``flwr run`` and its log on standard output.

    Args:
        run_config: Overrides of the run configuration.
        clients: Number of simulated nodes.
        cpus_per_client: CPUs that Ray reserves for a worker; cores / cpus_per_client workers run at once.
        install_dependencies: Let Flower install the app's dependencies into an environment of the run.

    Raises:
        FederationError: If the run did not complete.
    """
    with tempfile.TemporaryDirectory(prefix="isoproto-flower-") as scratch:
        home = Path(scratch)
        overrides = home / "run-config.toml"
        overrides.write_text(to_toml(run_config))
        with _superlink(home, install_dependencies=install_dependencies) as environment:
            federation = f"num-supernodes={clients} client-resources-num-cpus={cpus_per_client}"
            command = ["run", str(app_folder()), "--stream", "--federation-config", federation]
            if run_config:
                command += ["--run-config", str(overrides)]
            started = subprocess.run(_flwr(*command), env=environment, cwd=scratch, check=False)  # noqa: S603
            status, details = _last_run(environment, scratch)
    if started.returncode or status != "finished:completed":
        raise FederationError(f"the run under Flower ended as {status!r}: {details or 'see the log above'}")


@contextlib.contextmanager
def _superlink(home: Path, *, install_dependencies: bool) -> Iterator[dict[str, str]]:
    """Start a simulation SuperLink, yield the environment that commands need to find it, and end it."""
    port, control = _free_port(), _free_port()
    environment = {
        **os.environ,
        **_QUIET,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
        # Commands beside this interpreter come first, also where its environment is not activated.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONSAFEPATH": "1",
    }
    if not install_dependencies:
        environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    log = (home / "superlink.log").open("wb")
    command = [*_tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--database", str(home / "state.db")]
    process = subprocess.Popen(  # noqa: S603
        command, env=environment, cwd=home, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        _await_health(process, port, home / "superlink.log")
        yield environment
    finally:
        _end(process)
        log.close()


def _await_health(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        time.sleep(0.1)
    tail = log.read_text(errors="replace").strip().splitlines()[-5:]
    raise FederationError(f"the local SuperLink did not start on port {port}: {' | '.join(tail) or 'no output'}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the SuperLink and everything it started: its group is its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_run(environment: Mapping[str, str], folder: str) -> tuple[str, str]:
    """Return status and details of the only run that the SuperLink knows."""
    listed = subprocess.run(  # noqa: S603
        _flwr("ls", "--format", "json"),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        run = json.loads(listed.stdout)["runs"][0]
        return str(run["status"]), str(run.get("status-details") or run.get("details") or "")
    except (ValueError, LookupError, TypeError):
        return "unknown", (listed.stdout + listed.stderr).strip()[-500:]


def _flwr(*arguments: str) -> list[str]:
    return [*_tool("flwr"), *arguments]


def _tool(name: str) -> list[str]:
    """Return the command of a tool that is installed beside this interpreter, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise FederationError(f"`{name}` is not installed; pip install 'flwr[simulation]'")
    return [found]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
