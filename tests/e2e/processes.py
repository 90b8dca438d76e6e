"""Real processes for the end-to-end tests: started in groups of their own, watched, and ended by their ids."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
# Figures that depend on the clock or name the run and its folders.
VOLATILE = {"seconds", "experiment", "finished", "report", "settings", "git_commit"}
_POLL_S = 0.02


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def flower_environment(home: Path, **more: str) -> dict[str, str]:
    """Return an environment for Flower's commands that shares no home and no port with anybody else's."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def run(command: list[str], limit_s: float, *, status: int = 0, **options: Any) -> str:
    """Run a command to its end, check its exit status, and return its output, both kinds in one."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False, **options
    )
    assert done.returncode == status, f"{' '.join(command)}: status {done.returncode}\n{done.stdout}"
    return done.stdout


def isoproto(*arguments: str) -> list[str]:
    """Return the command line of our own command; run it in ``ROOT``."""
    return [sys.executable, "-m", "isoproto.cli.main", *arguments]


@contextlib.contextmanager
def started(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command with its output in a file; if it still runs at the end, it is killed with all it started."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        if process.poll() is None:  # else its number may be another's by now
            kill(process.pid)
            process.wait()


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants, as far as they are alive."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def workers(pid: int) -> list[psutil.Process]:
    """Return those descendants of a process that simulate clients."""
    found = []
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "ray::ClientAppActor" in " ".join(process.cmdline()):
                found.append(process)
    return found


def kill(pid: int) -> list[psutil.Process]:
    """Kill a process and all its descendants hard, as a power cut would, and return what was killed."""
    killed = family(pid)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that nobody sees another one die
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
    return killed


def alive(processes: list[psutil.Process], limit_s: float = 10) -> list[str]:
    """Return what is still running of some processes after a while; best nothing."""
    deadline = time.monotonic() + limit_s
    while True:
        left = []
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{process.pid} {' '.join(process.cmdline())}")
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)


def end_listener(port: int) -> None:
    """End the process that ``flwr run`` left listening on a port, with all that it started."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "--port" in command and command[command.index("--port") + 1] == str(port):
            kill(process.pid)


def until(there: Callable[[], Any], limit_s: float, what: str, process: "subprocess.Popen[bytes]") -> Any:
    """Wait, while a process runs, for something to become true, and return it."""
    deadline = time.monotonic() + limit_s
    while not (found := there()):
        assert process.poll() is None, f"{what}: the process ended with status {process.returncode}"
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s"
        time.sleep(_POLL_S)
    return found


def only_run(output_dir: Path) -> Path | None:
    """Return the only run folder, once there is one."""
    found = [path.parent for path in output_dir.glob("*/config.toml")]
    assert len(found) <= 1
    return found[0] if found else None


def rounds_done(folder: Path) -> int:
    """Return the round of a run's newest checkpoint; -1 without one."""
    return max((int(path.stem.removeprefix("round-")) for path in folder.glob("checkpoint/round-*")), default=-1)


def figures(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return summary and metrics of a run without what may differ between two equal runs."""
    summary = json.loads((folder / "summary.json").read_text())
    return without(summary, VOLATILE), [without(line, {"seconds"}) for line in lines(folder)]


def lines(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, of one kind or all."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if kind in (None, line["kind"])]


def without(values: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}


def flwr(*arguments: str) -> list[str]:
    """Return a command line of Flower's."""
    return [str(Path(sys.executable).with_name("flwr")), *arguments]


def runs_of(environment: Mapping[str, str], folder: Path, *superlink: str) -> list[dict[str, Any]]:
    """Return what ``flwr ls`` says of all runs, newest first."""
    return json.loads(run(flwr("ls", *superlink, "--format", "json"), 60, env=environment, cwd=folder))["runs"]


def copy_of_the_code(folder: Path) -> Path:
    """Copy the checkout, without what git would not have."""
    unwanted = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "*.fab")
    return Path(shutil.copytree(ROOT, folder, ignore=unwanted))


@contextlib.contextmanager
def superlink(folder: Path, environment: Mapping[str, str], *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a SuperLink in a folder, at the port that the environment names, once it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    command = [str(Path(sys.executable).with_name("flower-superlink")), "--insecure", "--port", port, *options]
    log = Path(environment["FLWR_HOME"]) / "superlink.log"
    with started(command, log, cwd=folder, env=environment) as process:

        def healthy() -> bool:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                return True
            return False

        until(healthy, 120, "a SuperLink", process)
        yield process
