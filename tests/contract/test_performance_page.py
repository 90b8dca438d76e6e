"""docs/performance.md is made of benchmarks/results/*.json by benchmarks/speed/table.py; nothing is measured here."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEED, RESULTS = ROOT / "benchmarks" / "speed", ROOT / "benchmarks" / "results"
MADE = {
    "command": "python x.py",
    "git_commit": "0123456789ab",
    "machine": {"processor": "P", "cores": 3, "python": "3", "torch": "2"},
}
# Of the form that each benchmark writes; two figures of each, one on either side of its target.
ROUND = {
    "target": 1.1,
    "reference": {"1 process(es)": 2.0, "2 process(es)": 1.0},
    "alignment gcsa": {"ratio": 1.3},
    "alignment none": {
        "figure": 1.25,
        "ratio": 1.1,
        "runs": [
            {"ratio": 1.2, "memory": {"second_quarter_mib": 5, "last_quarter_mib": 6, "peak_mib": 7}},
            {"ratio": 1.0, "memory": {"second_quarter_mib": 8, "last_quarter_mib": 9, "peak_mib": 9}},
        ],
    },
}
# Noted by workers since; pages of older files lack the table.
NOTED = {"parts": {"training": 3.0, "waiting": 1.0}, "written": 0.25}
SCALING = {"C = 50": {"sgd": 0.004, "adam": 0.02}, "C = 200": {"sgd": 0.016, "adam": 0.2}}
SERVER = {"figure": 0.01, "reference": 0.5, "target": 50.0, "scaling": SCALING}
TRAINED = {"loop": 0.75, "cohort": 0.3, "apart": 1e-7}
SAMPLES = {
    "round_overhead": (
        {
            "sizes": {
                "few": ROUND,
                "many": {**ROUND, "alignment none": {**ROUND["alignment none"], "ratio": 1.101}},
            }
        },
        [
            "| few | 1.00 | 1.25 | **1.100** (1.20, 1.00) | 1.1, met | 1.30 |",
            "| many | 1.00 | 1.25 | **1.101** (1.20, 1.00) | 1.1, **missed** | 1.30 |",
            "| few | 5, 8 | 6, 9 | 7, 9 |",
        ],
    ),
    "server_step": (
        {**SERVER, "ratio": 49.9},
        [
            "| C = 100 | 10 | 0.50 | **49.9** | 50, **missed** |",
            "| C = 50 | 4 | 20 |",
            "classes take 4 times as long with SGD, which is $C^{1.00}$ (near linear: at most $C^{1.2}$, met)",
        ],
    ),
    "aggregate": (
        {"target": 1.0, "figures": {"averages": 1.0, "isoproto, frame = gram": 1.01}},
        ["| averages of prototypes and gradients alone | 1.00 | 1, met |", "matching | 1.01 | 1, **missed** |"],
    ),
    "alignment_step": (
        {
            "target": 1.05,
            "models": {
                "cnn": {
                    "cross-entropy": {"ms": 25.0, "ratio": 1.0},
                    "gcsa": {"ms": 27.0, "ratio": 1.08},
                    "hpcl + hpal": {"ms": 26.0, "ratio": 1.04},
                }
            },
        },
        [
            "| model | cross-entropy, ms | GCSA | HPCL + HPAL |",
            "| `cnn` | 25.0 | 1.080, **missed** | 1.040, met | 1.05 |",
        ],
    ),
    "cohort": (
        {
            "targets": {"mlp": 3.0, "tiny_cnn": 1.5},
            "cpu": {
                "mlp, 32 clients, none": {**TRAINED, "ratio": 2.5},
                "mlp, 4 clients, none": {**TRAINED, "ratio": 1.9},
                "mlp, 1 clients, none": {**TRAINED, "ratio": 0.99},
                "tiny_cnn, 32 clients, none": {**TRAINED, "ratio": 2.2},
            },
            "step": {"unit": "us", "cnn": {"loop": 900.0, "grouped": 1.1, "products": 0.59}},
        },
        [
            "| cpu: mlp, 32 clients, none | 0.75 | 0.30 | 2.50 | 3, **missed** |",
            "| cpu: mlp, 4 clients, none | 0.75 | 0.30 | 1.90 | 1, met |",
            "| cpu: mlp, 1 clients, none | 0.75 | 0.30 | 0.99 | 1, **missed** |",
            "| cpu: tiny_cnn, 32 clients, none | 0.75 | 0.30 | 2.20 | 1.5, met |",
            "| `cnn` | 900 | 1.10 | 0.59 |",
        ],
    ),
    "layout": (
        {"models": {"cnn, 32x32, B = 32": {"default": 0.2, "placed": 0.15, "ratio": 0.754}}},
        ["| cnn, 32x32, B = 32 | 0.200 | 0.150 | 0.75 |"],
    ),
    "secure": (
        {
            "dropped": 0.1,
            "figures": {
                "20 clients, 500,000 numbers": {
                    "seconds": {"client": 0.0316, "server": 0.1},
                    "vector": 4_000_000,
                    "up": 2_950,
                    "down": 47_000,
                }
            },
        },
        [
            "| 20 clients, 500,000 numbers | 0.032 | 0.10 | 4,000.0 | 3.0 | 47.0 |",
            "10 % of the clients drop out",
        ],
    ),
    "startup": (
        {
            "target": 1.5,
            "imports": {"torch": 1.0, "client_app.app": 1.6, "ratio": 1.6},
            "milestones": {"Ray starts": 6.7},
        },
        ["| Ray starts | 6.7 |", "| `client_app.app` | 1.60 | 1.60 | 1.5, **missed** |"],
    ),
    "deployment": (
        {"round": 8.0, "process": 6.0, "parts": {"data are read": 0.5, "the app is imported": 3.0}},
        [
            "| **a round** | 8.00 | 100 % |",
            "| - data are read | 0.50 | 6 % |",
            "| waiting: polls, dispatch, the server's step | 2.00 | 25 % |",
        ],
    ),
    "data_memory": (
        {"workers": 4, "pictures_mib": 146.5, "figures": {"uss": 1.5, "pss": 38.1, "rss": 150.0}},
        ["4 workers, 146.5 MiB of pictures:", "| its own alone | 1.5 |", "what others map too | 38.1 |"],
    ),
    "peer_htfllib": (
        {
            "target": 10.0,
            "runs": {
                "htfllib": {"seconds": 10.0, "accuracy": 0.55, "times faster": 1.0},
                "isoproto, in-process": {
                    "seconds": 0.5,
                    "accuracy": 0.55,
                    "accuracy by its head": 0.6,
                    "times faster": 20.0,
                },
                "isoproto, flower": {
                    "seconds": 1.0,
                    "accuracy": 0.54,
                    "accuracy by its head": 0.6,
                    "times faster": 9.9,
                },
            },
        },
        [
            "| htfllib | 10.00 | 1.0 |  | 0.5500 |  |  |",
            "| isoproto, in-process | 0.50 | 20.0 | 10, met | 0.5500 | met | 0.6000 |",
            "| isoproto, flower | 1.00 | 9.9 | 10, **missed** | 0.5400 | **missed** | 0.6000 |",
        ],
    ),
    "gpu": (
        {
            "model": "resnet18",
            "targets": {"epoch": 1.1, "step": 1.05, "growth": 1.0, "together": 5.0},
            "epoch over a bare loop": 1.11,
            "bf16 over float32": 0.4,
            "step with an alignment": {"gcsa": 1.02},
            "cohort": {"mlp": {"times as fast": 6.0}, "tiny_cnn": {"times as fast": 4.9}},
            "memory": {"MiB after each round": [10.0, 10.5], "peak MiB": 1234.0, "growth MiB": 0.5},
        },
        [
            "| epoch of `resnet18` over a bare loop | 1.110 | 1.1, **missed** |",
            "| the same, bf16 over float32 | 0.400 |  |",
            "| step with GCSA over cross-entropy | 1.020 | 1.05, met |",
            "| small clients together, `mlp` | 6.00 | 5, met |",
            "| small clients together, `tiny_cnn` | 4.90 | 5, **missed** |",
            "| more memory after 2 rounds, MiB | 0.5 | 1, met |",
            "Most memory: 1,234 MiB.",
        ],
    ),
}


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(SPEED))
    spec = importlib.util.spec_from_file_location("speed_table", SPEED / "table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(page, table, name):
    """Return the text below the heading of a benchmark."""
    (title,) = (s.title for s in table.SECTIONS if s.name == name)
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_page_is_what_the_script_writes(table):
    stands = (ROOT / "docs" / "performance.md").read_text("utf8")
    assert stands == table.page(), "run python benchmarks/speed/table.py"


def test_every_benchmark_has_a_section(table):
    names = {name for path in SPEED.glob("*.py") for name in re.findall(r'write_results\("(\w+)"', path.read_text())}
    assert {s.name for s in table.SECTIONS} == names | {"gpu", "rounding"}


@pytest.mark.parametrize("name", SAMPLES)
def test_figures_stand_beside_their_targets(table, tmp_path, name):
    found, lines = SAMPLES[name]
    (tmp_path / f"{name}.json").write_text(json.dumps({**found, **MADE}))
    text = section(table.page(tmp_path), table, name)
    for line in lines:
        assert line in text
    assert "`python x.py` on P, 3 cores, Python 3, torch 2; commit 0123456789ab." in text
    assert "Not recorded yet" not in text


@pytest.mark.parametrize(("over", "ratio", "byte", "missed"), [(1500, 1.02, 0.27, 0), (1501, 1.021, 0.271, 6)])
def test_bytes_have_three_targets(table, tmp_path, over, ratio, byte, missed):
    found = json.loads((RESULTS / "wire.json").read_text())
    for sizes in (found["sizes"]["prototypes"], found["sizes"]["prototypes and gradients"]):
        for dtype in sizes:  # one reply of few rows, and one of 50
            sizes[dtype] = {number: sizes[dtype][number] for number in ("20", "50")}
        sizes["float32"]["20"]["over"], sizes["float32"]["50"]["ratio"] = over, ratio
        sizes["int8"]["50"]["of float32"] = byte
    (tmp_path / "wire.json").write_text(json.dumps(found))
    text = section(table.page(tmp_path), table, "wire")
    assert (text.count(table.MISSED), text.count(", met")) == (missed, 6 - missed)


def test_where_a_round_goes_is_told_if_it_was_noted(table, tmp_path):
    runs = [*ROUND["alignment none"]["runs"][:1], {**ROUND["alignment none"]["runs"][1], **NOTED}]
    found = {"sizes": {"few": {**ROUND, "alignment none": {**ROUND["alignment none"], "runs": runs}}}}
    (tmp_path / "round_overhead.json").write_text(json.dumps({**found, **MADE}))
    text = section(table.page(tmp_path), table, "round_overhead")
    assert "| part | few |" in text
    assert "| training | 3.000 (75 %) |\n| waiting | 1.000 (25 %) |\n| in all | 4.000 |" in text
    assert "meanwhile: 0.250 s (few)." in text


def test_accuracy_with_fewer_bytes_is_beside_the_same_seed(table, tmp_path):
    def cell(accuracy, up):
        figures = dict.fromkeys(("mean", "last5", "nearest_prototype"), accuracy)
        return {"accuracy": figures, "bytes": {"up": up, "down": 2 * up}}

    cells = {"float32 | 0": cell(0.5, 9e3), "float32 | 1": cell(0.7, 9e3)}
    cells |= {"int8 | 0": cell(0.51, 3e3), "int8 | 1": cell(0.68, 3e3)}
    (tmp_path / "rounding.json").write_text(json.dumps({"command": "python x.py", "cells": cells}))
    text = section(table.page(tmp_path), table, "rounding")
    assert "| float32 | 2 | 0.6000 | 0.6000 | 0.6000 | 9.0 | 18.0 |" in text
    rounded = "0.5950 (-2.0 to +1.0)"
    assert f"| int8 | 2 | {rounded} | {rounded} | {rounded} | 3.0 | 6.0 |" in text
    assert "`python x.py`." in text


def test_what_a_missed_target_would_take_is_told_only_then(table, tmp_path):
    found, _ = SAMPLES["alignment_step"]
    told = "What it would take: a compiled kernel"
    path = tmp_path / "alignment_step.json"
    path.write_text(json.dumps({**found, **MADE}))
    assert told in section(table.page(tmp_path), table, "alignment_step")
    path.write_text(json.dumps({**found, **MADE, "target": 2.0}))
    assert told not in section(table.page(tmp_path), table, "alignment_step")


def test_a_missed_target_that_nobody_wrote_about_says_so(table, tmp_path):
    found, _ = SAMPLES["startup"]
    (tmp_path / "startup.json").write_text(json.dumps({**found, **MADE}))
    text = section(table.page(tmp_path), table, "startup")
    assert "What was tried and what it would take is not written down yet." in text


def test_what_was_not_recorded_names_its_command(table, tmp_path):
    page = table.page(tmp_path)
    for one in table.SECTIONS:
        command = one.command or f"python benchmarks/speed/{one.name}.py"
        assert f"Not recorded yet: run `{command}`" in section(page, table, one.name)
        script = command.split()[1]
        assert (ROOT / script).is_file() or f"\n{script}:" in (ROOT / "Makefile").read_text()
