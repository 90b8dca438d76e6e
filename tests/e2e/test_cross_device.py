"""200 clients, a fifth of them in a round, each with a little data."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import ROOT, isoproto, lines, only_run, run

CLIENTS, ROUNDS = 200, 3


@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_a_fifth_trains_and_everybody_is_reported(tmp_path: Path) -> None:
    command = isoproto("run", "--engine", "flower", "--clients", str(CLIENTS), "--output-dir", str(tmp_path / "runs"))
    settings = ["-c", "conf/cross_device.toml", "-c", f"rounds={ROUNDS}"]
    run([*command, *settings], 1100, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})

    folder = only_run(tmp_path / "runs")
    trained = [{line["client"] for line in lines(folder, "client") if line["round"] == r + 1} for r in range(ROUNDS)]
    assert [len(clients) for clients in trained] == [CLIENTS // 5] * ROUNDS
    assert trained[0] != trained[1] != trained[2]

    names = {str(i) for i in range(CLIENTS)}
    before, after = lines(folder, "evaluation")
    assert (before["round"], after["round"]) == (0, ROUNDS)
    for evaluation in (before, after):
        assert {entry["client"] for entry in evaluation["clients"]} == names
        assert all(entry["total"] > 0 for entry in evaluation["clients"])

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["clients"]["failed"] == []
    assert summary["clients"]["evaluated"] == CLIENTS
    assert share_correct(before) < summary["accuracy"]["micro"] < 1
    assert lines(folder, "failure") == []


def share_correct(evaluation: dict[str, Any]) -> float:
    return sum(e["correct"] for e in evaluation["clients"]) / sum(e["total"] for e in evaluation["clients"])
