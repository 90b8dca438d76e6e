"""One Ray worker dies, as the kernel kills it on lack of memory; Ray does not replace it."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, figures, isoproto, lines, only_run, rounds_done, run, started, until, workers

ROUNDS = 8


@pytest.mark.e2e
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("cpus_per_client", [1, os.cpu_count()], ids=["one of several", "the only one"])
def test_the_run_fails_at_once_and_can_be_resumed(
    cpus_per_client: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "kill"))
    log = tmp_path / "log.txt"
    command = isoproto("run", "-c", f"clients=6 rounds={ROUNDS} seed=1")
    flower = ["--engine", "flower", "--cpus-per-client", str(cpus_per_client)]
    with started([*command, *flower], log, cwd=ROOT) as process:
        folder = until(lambda: only_run(tmp_path / "kill" / "runs"), 600, "a run folder", process)
        until(lambda: rounds_done(folder) >= 1, 600, "round 1", process)
        workers(process.pid)[0].send_signal(signal.SIGKILL)
        assert process.wait(600) == 1

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "a worker of the simulation died" in summary["reason"]
    assert "a worker of the simulation died" in log.read_text().splitlines()[-1]
    assert [line["failed"] for line in lines(folder, "round")] == [0] * len(lines(folder, "round"))

    run(isoproto("resume", str(folder), *flower), 900, cwd=ROOT)
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "left"))
    run(command, 900, cwd=ROOT)
    left_alone = only_run(tmp_path / "left" / "runs")
    assert figures(folder) == figures(left_alone)
