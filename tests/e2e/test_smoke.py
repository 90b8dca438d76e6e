"""One real ``flwr run``: SuperLink, Ray workers, the bundle. It ends ``make test``."""

from pathlib import Path

import pytest

from client_app.app import make_app
from isoproto.engines.flower import run_under_flower
from isoproto.engines.in_process import InProcessGrid, in_process_host, task_identity
from isoproto.errors import FederationError
from server_app.app import run_federation
from tests.e2e.processes import figures, only_run

CLIENTS = 4


def settings(folder: Path) -> dict[str, bool | int | float | str]:
    return {
        "strategy": "isoproto",
        "rounds": 2,
        "fraction": 0.75,
        "seed": 3,
        "partition": "dirichlet",
        "output-dir": str(folder / "runs"),
        "state-dir": str(folder / "state"),
    }


@pytest.mark.smoke
def test_a_run_under_flower_equals_the_same_run_in_one_process(tmp_path: Path) -> None:
    # The names are equally long, since settings, and thus folders, are part of every message.
    flower, here = tmp_path / "ray", tmp_path / "own"
    run_under_flower(settings(flower), clients=CLIENTS)
    with task_identity():
        run_federation(InProcessGrid(make_app(in_process_host), CLIENTS), {**settings(here), "clients": CLIENTS})

    under_flower = figures(only_run(flower / "runs"))
    assert under_flower[0]["status"] == "completed"
    assert under_flower[0]["clients"]["failed"] == []
    assert under_flower == figures(only_run(here / "runs"))


@pytest.mark.smoke
def test_a_failed_run_is_an_error_not_a_success(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="unknown strategy 'fedsav'"):
        run_under_flower({**settings(tmp_path), "strategy": "fedsav"}, clients=2)
