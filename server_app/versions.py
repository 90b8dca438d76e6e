"""Return the versions of this code and of its libraries, for a run's summary."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    libraries = {name: importlib.metadata.version(name) for name in ("flwr", "torch", "numpy")}
    return {"python": platform.python_version(), **libraries}


def git_commit() -> str:
    """Return the git commit of this code, with ``-dirty`` if files differ from it; empty outside a git checkout."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
