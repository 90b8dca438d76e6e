"""docs/secure-sum.md: its code runs, and its figures are those of the code and of the benchmark."""

import json
import re
from pathlib import Path

import pytest

from isoproto.privacy.accountant import Release, epsilon_of
from isoproto.secure.messages import Terms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "secure-sum.md").read_text("utf8")


def rows_below(head: str) -> list[list[str]]:
    """Return the cells of a table, without its head."""
    lines = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_code_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})


def test_the_table_of_thresholds_is_that_of_the_code():
    terms = Terms(session="page", length=1, minimum=2)
    for _, holders, needed, away, harmless in rows_below("| clients | holders of each |"):
        h, t = int(holders), terms.needed(int(holders))
        assert [int(needed), int(away), int(harmless)] == [t, h - t, 2 * t - h - 1]


def test_costs_are_those_of_the_benchmark():
    figures = json.loads((ROOT / "benchmarks" / "results" / "secure.json").read_text())["figures"]
    rows = rows_below("| clients | numbers in a vector |")
    assert len(rows) == len(figures)
    for clients, numbers, client, server, up, down in rows:
        found = figures[f"{clients} clients, {numbers.split()[0]} numbers"]
        assert float(client) == pytest.approx(found["seconds"]["client"], abs=0.006)
        assert float(server) == pytest.approx(found["seconds"]["server"], rel=0.06)
        assert (up, down) == (f"{found['up'] / 1e3:.0f} kB", f"{found['down'] / 1e3:.0f} kB")


def test_epsilons_are_those_of_the_accountant():
    for messages, *epsilons in rows_below("| messages | z = 1 |"):
        for multiplier, epsilon in zip((1.0, 2.0, 5.0, 10.0, 30.0), epsilons, strict=True):
            assert float(epsilon) == pytest.approx(epsilon_of([Release(multiplier, int(messages))], 1e-5), abs=0.006)
