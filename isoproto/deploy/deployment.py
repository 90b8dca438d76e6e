"""Runs of the app at a SuperLink that an entry of Flower's ``config.toml`` leads to."""

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
    """Run the app and follow its log on standard output to the end; unlike ``flwr run``, tell whether it went well.

    When this is interrupted, the run goes on.

    Args:
        connection: The SuperLink's entry.
        run_config: Overrides of the run configuration.
        ask: How to ask Flower.
        follow: How to run Flower's command that shows a log.

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
