"""``flwr run .`` in a clone, as Flower's documentation has it, with the local SuperLink that it starts and leaves."""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import (
    copy_of_the_code,
    end_listener,
    flower_environment,
    flwr,
    isoproto,
    lines,
    run,
    runs_of,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

LIMIT_S = 900


@dataclass(frozen=True)
class Clone:
    """A clone of the repository and a shell in it, in which only ``flwr`` is called."""

    folder: Path
    environment: dict[str, str]

    def flwr_run(self, *options: str, status: int = 0) -> str:
        return run(
            flwr("run", ".", "--stream", *options), LIMIT_S, status=status, cwd=self.folder, env=self.environment
        )

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        return run(["git", *who, *arguments], 60, cwd=self.folder)

    def last(self) -> dict[str, Any]:
        return runs_of(self.environment, self.folder)[0]

    def newest(self) -> Path:
        return max((Path(self.environment["ISOPROTO_HOME"]) / "runs").iterdir())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    base = tmp_path_factory.mktemp("plain")
    environment = flower_environment(base / "flower", ISOPROTO_HOME=str(base / "home"))
    clone = Clone(copy_of_the_code(base / "isoproto"), environment)
    clone.git("init", "--quiet")
    clone.git("add", "--all")
    clone.git("commit", "--quiet", "--no-verify", "--message", "everything")
    yield clone
    end_listener(int(environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]))


def test_with_nothing_but_defaults(clone: Clone) -> None:
    log = clone.flwr_run()

    assert clone.last()["status"] == "finished:completed", log
    folder = clone.newest()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["clients"]["failed"] == []
    assert [line["clients"] for line in lines(folder, "round")] == [2] * summary["rounds"]
    assert f"report: {folder / 'report.html'}" in log
    assert clone.git("status", "--porcelain") == ""


def test_settings_from_a_file(clone: Clone, pictures: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(
        f'rounds = 1\nlambda = 0.25\nstrategy = "fedproto"\npartition = "iid"\ndata = "npz:{pictures}"\n'
    )
    log = clone.flwr_run("--run-config", str(settings))

    assert clone.last()["status"] == "finished:completed", log
    effective = tomllib.loads((clone.newest() / "config.toml").read_text())
    assert effective.items() >= tomllib.loads(settings.read_text()).items()


def test_every_wrong_value_is_named(clone: Clone) -> None:
    log = clone.flwr_run("--run-config", "rounds='many' fraction=1.5 optimizer='sdg' output-dir='runs'")

    run_record = clone.last()
    assert run_record["status"] == "finished:failed"
    for text in (log, run_record["status-details"]):
        assert "4 problems in the run config" in text
        assert "`rounds` must be int, got 'many'" in text
        assert "`fraction` must be > 0 and <= 1 and finite, got 1.5" in text
        assert "`optimizer` must be one of 'sgd', 'adam', 'adamw', got 'sdg'" in text
        assert "`output-dir` must be absolute, got 'runs'" in text


def test_a_wrong_key_is_refused_by_flower_and_named_by_us(clone: Clone) -> None:
    before = len(runs_of(clone.environment, clone.folder))
    clone.flwr_run("--run-config", "round=3", status=1)
    assert len(runs_of(clone.environment, clone.folder)) == before

    ours = isoproto("run", "--engine", "flower", "--run-config", "round=3 sead=1 fraction='all' strategy='fedsav'")
    said = run(ours, 60, status=1, cwd=clone.folder, env=clone.environment)
    assert "4 problems in the run config" in said
    assert "unknown key `round` (did you mean `rounds`?)" in said
    assert "unknown key `sead` (did you mean `seed`?)" in said
    assert "`fraction` must be float, got 'all'" in said
    assert "unknown strategy 'fedsav'" in said
