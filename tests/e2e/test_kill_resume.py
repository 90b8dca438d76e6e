"""Hard kills: a run that is killed again and again and resumed ends like one that was left alone."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, alive, figures, isoproto, kill, lines, only_run, run, started, until

pytestmark = pytest.mark.e2e

CLIENTS, ROUNDS, SEED = 8, 6, 20
SETTINGS = f"rounds={ROUNDS} fraction=0.5 seed=3 partition='dirichlet' alpha=0.5 evaluate-every=2 min-samples=20"
START_LIMIT_S = 900


def training(folder: Path, state: Path, rng: random.Random) -> Callable[[], bool]:
    """In the middle of a round, most of which is training."""
    at = time.monotonic() + rng.uniform(0.1, 3.0)
    return lambda: time.monotonic() > at


def client_saved(folder: Path, state: Path, rng: random.Random) -> Callable[[], bool]:
    """When a client has saved its new model, and the server knows nothing of it yet."""
    before = set(state.rglob("*.safetensors"))
    return lambda: bool(set(state.rglob("*.safetensors")) - before)


def committing(folder: Path, state: Path, rng: random.Random) -> Callable[[], bool]:
    """When the metrics of a round are written, and its checkpoint is not, or just now."""
    before = (folder / "metrics.jsonl").stat().st_size
    return lambda: (folder / "metrics.jsonl").stat().st_size > before


def checkpointed(folder: Path, state: Path, rng: random.Random) -> Callable[[], bool]:
    """When a new checkpoint is being written, or just was."""
    before = set((folder / "checkpoint").iterdir())
    return lambda: bool(set((folder / "checkpoint").iterdir()) - before)


MOMENTS = (training, client_saved, committing, checkpointed, training)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("in-process", marks=pytest.mark.timeout(1200)),
        pytest.param("flower", marks=pytest.mark.timeout(3600)),
    ],
)
def test_five_hard_kills_change_nothing(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    start = ("run", "--engine", engine, "--clients", str(CLIENTS), "-c", SETTINGS)

    # The names are equally long, since settings are part of every message.
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "left"))
    run(isoproto(*start), START_LIMIT_S, cwd=ROOT)
    left_alone = only_run(tmp_path / "left" / "runs")

    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "kill"))
    output, state, log = tmp_path / "kill" / "runs", tmp_path / "kill" / "state", tmp_path / "log.txt"
    command, folder = start, None
    for kills, moment in enumerate(MOMENTS):
        with started(isoproto(*command), log, cwd=ROOT) as process:
            folder = until(lambda: only_run(output), START_LIMIT_S, "a run folder")

            def goes_on(folder: Path = folder, kills: int = kills) -> bool:
                """Say whether this start has ended a round since the last kill; every kill must hurt."""
                assert process.poll() is None, log.read_text()
                return rounds_done(folder) >= kills

            until(goes_on, START_LIMIT_S, f"round {kills}")
            until(moment(folder, state, rng), START_LIMIT_S, moment.__name__)
            killed = kill(process.pid)
        assert not alive(killed)
        assert not (folder / "summary.json").exists(), "the run was over before it could be killed"
        command = ("resume", str(folder), "--engine", engine)
    run(isoproto(*command), START_LIMIT_S, cwd=ROOT)

    assert figures(folder) == figures(left_alone)
    assert len(lines(folder, "round")) == ROUNDS
    assert len(lines(folder, "client")) == ROUNDS * CLIENTS // 2


def rounds_done(folder: Path) -> int:
    """Return the round of the newest checkpoint; -1 without one."""
    found = sorted((folder / "checkpoint").glob("round-*.safetensors"))
    return int(found[-1].stem.removeprefix("round-")) if found else -1
