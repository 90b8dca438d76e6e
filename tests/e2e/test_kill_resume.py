"""Hard kills: a run that is killed again and again and resumed ends like one that was left alone."""

import functools
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, alive, figures, isoproto, kill, lines, only_run, rounds_done, run, started, until

pytestmark = pytest.mark.e2e

CLIENTS, ROUNDS, SEED = 8, 6, 20
SETTINGS = f"rounds={ROUNDS} fraction=0.5 seed=3 partition='dirichlet' alpha=0.5 evaluate-every=2 min-samples=20"
START_LIMIT_S = 900


def any_time(folder: Path, state: Path, rng: random.Random) -> Callable[[], bool]:
    """At a random time, which is most likely in the middle of training."""
    took = [line["seconds"]["round"] for line in lines(folder, "round")]
    at = time.monotonic() + rng.uniform(0, 1.5) * (took[-1] if took else 1.0)
    return lambda: time.monotonic() > at


def client_saved(folder: Path, state: Path, rng: random.Random) -> Callable[[], bool]:
    """When a client has saved its new model, and the server knows nothing of it yet."""
    return grows(lambda: len(list(state.rglob("*.safetensors"))))


def committing(folder: Path, state: Path, rng: random.Random) -> Callable[[], bool]:
    """When the metrics of a round are written, and its checkpoint is not, or just now."""
    return grows(lambda: sum(path.stat().st_size for path in folder.glob("metrics.jsonl")))


def checkpointed(folder: Path, state: Path, rng: random.Random) -> Callable[[], bool]:
    """When a new checkpoint was just written."""
    return grows(lambda: rounds_done(folder))


def grows(measure: Callable[[], int]) -> Callable[[], bool]:
    before = measure()
    return lambda: measure() > before


MOMENTS = (any_time, client_saved, committing, checkpointed, any_time)


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
            folder = until(lambda: only_run(output), START_LIMIT_S, "a run folder", process)
            # From here on a start does what the ones before it did not; every kill must hurt.
            until(functools.partial(has_met, folder, kills + 1), START_LIMIT_S, "the clients", process)
            until(moment(folder, state, rng), START_LIMIT_S, moment.__name__, process)
            killed = kill(process.pid)
        assert not alive(killed)
        assert not (folder / "summary.json").exists(), "the run was over before it could be killed"
        command = ("resume", str(folder), "--engine", engine)
    run(isoproto(*command), START_LIMIT_S, cwd=ROOT)

    assert figures(folder) == figures(left_alone)
    assert len(lines(folder, "round")) == ROUNDS
    assert len(lines(folder, "client")) == ROUNDS * CLIENTS // 2


def has_met(folder: Path, times: int) -> bool:
    """Say whether a run has met its clients in this many starts."""
    log = folder / "log.txt"
    return log.exists() and log.read_text().count("training samples of each client") == times
