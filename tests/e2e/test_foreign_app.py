"""A SuperLink that was started where other code with our packages' names lies.

Ray puts the SuperLink's working folder first on its workers' path, so they import that code instead of the bundle;
PYTHONSAFEPATH does not change it.
"""

import sys
from pathlib import Path

import pytest

from tests.e2e.processes import copy_of_the_code, flower_environment, flwr, run, runs_of, superlink

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

FOREIGN_CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp

from models import Net

app = ClientApp()


@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
"""


def run_beside(folder: Path, code: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Run the app on a SuperLink that was started in a folder; return the log and what ``flwr ls`` tells."""
    neutral = Path(environment["FLWR_HOME"])
    with superlink(folder, environment, "--simulation"):
        log = run(flwr("run", str(code), "--stream", "-c", "rounds=1"), 600, cwd=neutral, env=environment)
        last = runs_of(environment, neutral)[0]
    assert last["status"] == "finished:failed", log
    return log, last["status-details"]


def test_another_app_with_the_same_package_names(tmp_path: Path) -> None:
    foreign = tmp_path / "other-app"
    for package, module, text in (("client_app", "app", FOREIGN_CLIENT), ("models", "__init__", "class Net: ...\n")):
        (foreign / package).mkdir(parents=True)
        (foreign / package / "__init__.py").touch()
        (foreign / package / f"{module}.py").write_text(text)
    environment = flower_environment(tmp_path / "flower")

    log, details = run_beside(foreign, copy_of_the_code(tmp_path / "isoproto"), environment)

    for text in (log, details):
        assert "none of 2 nodes can take part" in text
        assert f"but Python finds {foreign / 'client_app' / '__init__.py'} under this name" in text
        assert "start the SuperLink in an empty folder" in text


def test_a_stale_copy_of_ours(tmp_path: Path) -> None:
    code = copy_of_the_code(tmp_path / "isoproto")
    stale = copy_of_the_code(tmp_path / "stale")
    with (stale / "client_app" / "store.py").open("a") as file:
        file.write("# one comment more\n")
    environment = flower_environment(tmp_path / "flower")

    log, details = run_beside(stale, code, environment)

    for text in (log, details):
        assert "none of 2 nodes can take part" in text
        assert f"runs other code: fingerprint {digest(stale)} from {stale / 'client_app'}" in text
        assert f"this server {digest(code)}" in text


def digest(code: Path) -> str:
    """Return the fingerprint of a copy of the code as a process beside it sees it."""
    command = [sys.executable, "-c", "from isoproto.fingerprint import fingerprint; print(fingerprint())"]
    return run(command, 60, cwd=code).strip()
