"""One real ``flwr run``: SuperLink, Ray workers, the bundle. It ends ``make test``."""

import json
from pathlib import Path

import pytest

from client_app.app import app as client_app
from isoproto.errors import FederationError
from isoproto.flower_engine import run_under_flower
from isoproto.in_process import InProcessGrid, task_identity
from server_app.app import run_federation

CLIENTS = 4
# Figures that depend on the clock or name the run.
VOLATILE = {"seconds", "experiment", "finished", "report", "settings", "git_commit"}


def settings(folder: Path) -> dict[str, bool | int | float | str]:
    return {
        "rounds": 2,
        "fraction": 0.75,
        "seed": 3,
        "partition": "dirichlet",
        "output-dir": str(folder / "runs"),
        "state-dir": str(folder / "state"),
    }


def figures(folder: Path) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Return summary and metrics of the only run below ``folder``, without what may differ."""
    (run,) = (folder / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return (
        {key: value for key, value in summary.items() if key not in VOLATILE},
        [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
    )


@pytest.mark.smoke
def test_a_run_under_flower_equals_the_same_run_in_one_process(tmp_path: Path) -> None:
    flower, here = tmp_path / "flower", tmp_path / "here"
    run_under_flower(settings(flower), clients=CLIENTS)
    with task_identity():
        run_federation(InProcessGrid(client_app, CLIENTS), settings(here))

    under_flower, in_process = figures(flower), figures(here)
    assert under_flower[0]["status"] == "completed"
    assert under_flower[0]["clients"]["failed"] == []  # type: ignore[index]
    # The experiment id is part of every message; its length is not of interest, but it is the same.
    assert under_flower == in_process


@pytest.mark.smoke
def test_a_failed_run_is_an_error_not_a_success(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="unknown strategy 'fedsav'"):
        run_under_flower({**settings(tmp_path), "strategy": "fedsav"}, clients=2)
