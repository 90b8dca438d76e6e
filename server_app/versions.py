"""Say which versions of this code and of its libraries produced a run."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path


def versions() -> dict[str, str]:
    """Return the versions that figures depend on."""
    found = {name: importlib.metadata.version(name) for name in ("flwr", "torch", "numpy")}
    return {"python": platform.python_version(), **found}


def git_commit() -> str:
    """Return the commit of the working tree that this code lies in, ``-dirty`` if changed; empty elsewhere."""
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
