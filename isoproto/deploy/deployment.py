"""Starting a run at the SuperLink of a deployment."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isoproto.config import Scalar
from isoproto.deploy.enrolment import Ask, ask_flower
from isoproto.engines.flower import app_folder, tool
from isoproto.errors import FederationError
from isoproto.toml import to_toml


def run_at(
    connection: str,
    run_config: Mapping[str, Scalar],
    *,
    ask: Ask = ask_flower,
    follow: Callable[[Sequence[str]], object] = lambda words: subprocess.run([tool("flwr"), *words], check=False),  # noqa: S603
) -> None:
    """Run the app at a SuperLink, and print its log until it ends.

    Unlike ``flwr run``, this raises an error if the run fails. If this process is interrupted, the run goes on.

    Args:
        connection: Name of the SuperLink's entry in Flower's ``config.toml``.
        run_config: Settings of the run that differ from their defaults.
        ask: Runs a ``flwr`` command and returns its answer; tests replace it.
        follow: Runs a ``flwr`` command that prints a log; tests replace it.

    Raises:
        FederationError: If the SuperLink does not answer, or the run did not complete.
    """
    with tempfile.TemporaryDirectory() as folder:
        overrides = Path(folder) / "run-config.toml"
        overrides.write_text(to_toml(run_config), "utf8")
        answer = ask(["run", str(app_folder()), connection, "--run-config", str(overrides)])
    number = str(answer["run-id"])
    follow(["log", number, connection])
    (run,) = ask(["ls", connection, "--run-id", number])["runs"]
    if run["status"] != "finished:completed":
        raise FederationError(
            f"run {number} at {connection!r} is {run['status']!r}: {run['status-details'] or 'see the log above'}"
        )
