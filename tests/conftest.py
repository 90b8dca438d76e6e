import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from flwr.serverapp import Grid
from torch import Tensor

from isoproto.engines.in_process import in_process_host, task_identity
from isoproto.runs.checkpoint import load_checkpoint
from tests.fakes import FaultyGrid, write_pictures

if TYPE_CHECKING:
    from client_app.client import Client

# What summary.json says of the clock, the machine and the run's name, and metrics.jsonl of the clock.
VOLATILE = {"seconds", "experiment", "finished", "report", "settings", "git_commit"}

# The machine may be busy, so no example has a deadline.
hypothesis.settings.register_profile(
    "dev", deadline=None, max_examples=50, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("dev"), max_examples=300, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no fixture that several tests share, finds or leaves anything in the user's own folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISOPROTO_HOME", str(tmp_path_factory.getbasetemp() / "home"))
        yield


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """A run shows its log on standard output and keeps it from others; the next test starts afresh."""
    log = logging.getLogger("isoproto")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = before[0], before[2]
    log.setLevel(before[1])


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 240 grey pictures of 8x8, four classes."""
    return write_pictures(tmp_path_factory.mktemp("data") / "pictures.npz")


FEDAVG = {"strategy": "fedavg", "models": "resnet"}


@dataclass(frozen=True)
class Run:
    """What a finished run left behind."""

    path: Path

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.path / "summary.json").read_text())

    @property
    def log(self) -> str:
        return (self.path / "log.txt").read_text()

    def of(self, kind: str, **wanted: object) -> list[dict[str, Any]]:
        """Return the metrics lines of a kind with these values."""
        return [li for li in self.lines if li["kind"] == kind and all(li[k] == v for k, v in wanted.items())]

    def failures(self) -> dict[tuple[int, str], str]:
        """Return the reason of every failure by round and client."""
        return {(line["round"], line["client"]): line["reason"] for line in self.of("failure")}

    def cohorts(self) -> list[list[str]]:
        """Return the clients that trained, by round."""
        return [[c["client"] for c in self.of("client", round=r["round"])] for r in self.of("round")]

    def server(self) -> dict[str, Tensor]:
        """Return the tensors of the newest checkpoint."""
        checkpoint = load_checkpoint(self.path / "checkpoint")
        assert checkpoint is not None
        return checkpoint.tensors

    def steady(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return summary and metrics without what may differ between two equal runs."""
        summary = {k: v for k, v in self.summary.items() if k not in VOLATILE}
        return steady(summary), [steady(line) for line in self.lines]


def steady(figures: dict[str, Any]) -> dict[str, Any]:
    """Leave out times, and bytes of messages in which times and this run's folders are written."""
    volatile = ("seconds", "up", "down")
    return {k: steady(v) if k == "bytes" else v for k, v in figures.items() if k not in volatile}


class Federation:
    """Runs federations of four clients on small data, all in one folder.

    ``host`` says whether the clients are simulated, and by which worker; a test may set it before or during a run.
    """

    def __init__(self, folder: Path, pictures: Path) -> None:
        self.folder = folder
        self.host = in_process_host()
        self.settings: dict[str, Any] = {
            "strategy": "fedsaf",
            "data": f"npz:{pictures}",
            "partition": "dirichlet",
            "alpha": 1.0,
            "feature-dim": 8,
            "rounds": 3,
            "learning-rate": 0.05,
            "round-timeout": 5.0,
            "wait-timeout": 5.0,
            "output-dir": str(folder / "runs"),
            "state-dir": str(folder / "state"),
        }

    def grid(self, *faults: Any, clients: int = 4, **others: Any) -> FaultyGrid:
        from client_app.app import make_app

        return FaultyGrid(make_app(lambda: self.host), clients, faults, **others)

    def run(self, grid: Grid | None = None, settings: Mapping[str, Any] | None = None, *, report: bool = False) -> Run:
        """Run one federation; its report is not drawn, unless asked for: that takes longer than the run."""
        from server_app.app import run_federation

        with pytest.MonkeyPatch.context() as patch:
            if not report:
                patch.setattr("server_app.summary.write_report", lambda path: path / "report.html")
            return Run(run_federation(grid or self.grid(), {**self.settings, **(settings or {})}))

    def client(self, node: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> "Client":
        """Return a client outside of a run, whose owner lets the run use all folders."""
        from client_app.client import Client

        own = {"data-dir": "/", "state-dir": self.settings["state-dir"]}
        return Client.of({**self.settings, **(settings or {})}, {**own, **node}, 0)

    def newest(self) -> Run:
        """Return the run that was started last, also if it failed."""
        return Run(max((self.folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns))


@pytest.fixture
def federation(tmp_path: Path, pictures: Path) -> Iterator[Federation]:
    with task_identity():
        yield Federation(tmp_path, pictures)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Run:
    """A run with the settings of ``federation`` and no faults, to look at and to compare with."""
    with task_identity():
        return Federation(tmp_path_factory.mktemp("plain"), pictures).run(report=True)


@pytest.fixture(scope="session")
def plain_fedavg(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Run:
    with task_identity():
        return Federation(tmp_path_factory.mktemp("fedavg"), pictures).run(settings=FEDAVG)


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Run:
    """Two of four clients train in each of six rounds."""
    with task_identity():
        return Federation(tmp_path_factory.mktemp("half"), pictures).run(settings={"fraction": 0.5, "rounds": 6})
