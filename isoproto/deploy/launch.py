"""Starting the SuperNode of this machine. Its command line stands here and nowhere else.

``isoproto node`` starts it from a configuration file, ``deploy/entrypoint.sh`` with Flower's own arguments.
"""

import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from isoproto import paths
from isoproto.toml import to_toml

if TYPE_CHECKING:
    from isoproto.deploy.node import NodeConfig

# -P keeps the working directory out of the places where Python looks for packages.
SUPERNODE = (sys.executable, "-P", "-m", "isoproto.deploy.supernode")
_MIB = 2**20
_TASK_POLL_S = "0.2"  # how often a SuperNode looks for a message to work on; Flower's default is 1 s


def become_supernode(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a SuperNode with Flower's arguments; signals to this process then reach it."""
    os.execv(SUPERNODE[0], [*SUPERNODE, *arguments])  # noqa: S606


def start(config: "NodeConfig") -> None:
    """Replace this process by the SuperNode of a configuration; signals to this process then reach it.

    Raises:
        StateError: If the state folder cannot be written.
    """
    folder = Path(config.state_dir)
    for private in (folder, folder / "models", folder / "flower"):
        paths.private_folder(private)
    paths.write_atomically(config.node_file, to_toml(config.for_client()).encode(), mode=0o600)
    if config.memory_mb:
        limit = config.memory_mb * _MIB
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    words = command(config)
    os.chdir(folder)  # no package lies here that could be taken for the app's
    os.execve(words[0], words, environment(config, os.environ))  # noqa: S606


def command(config: "NodeConfig") -> list[str]:
    """Return the command line of the SuperNode; its node configuration is a file in the state folder."""
    words = [*SUPERNODE, "--superlink", config.superlink, "--node-config", str(config.node_file)]
    words += ["--port", str(config.runtime_port)]
    if config.health_port:
        words += ["--health-server-address", f"127.0.0.1:{config.health_port}"]
    if config.trusted_entities:
        words += ["--trusted-entities", config.trusted_entities]
    if config.insecure:
        return [*words, "--insecure"]
    words += ["--root-certificates", config.root_certificates]
    return [*words, "--auth-supernode-private-key", config.private_key]


def environment(config: "NodeConfig", base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the SuperNode.

    Flower keeps its files in the state folder, uses as many threads as the configuration says, and installs nothing
    while it runs.

    Args:
        config: The configuration of the node.
        base: The environment of this process.
    """
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _TASK_POLL_S,
        **base,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(Path(config.state_dir) / "flower"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), base.get("PATH", os.defpath)]),
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(config.threads)),
    }
