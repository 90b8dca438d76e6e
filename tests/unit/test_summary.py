"""How a run ends: its last words on the terminal."""

import logging

from typer.testing import CliRunner

from isoproto.cli.main import app
from isoproto.config import RunConfig
from isoproto.runs.run_folder import RunFolder
from server_app.summary import reported


def finish(tmp_path, **further):
    """End a run of eight clients, each of which gets 7 of 10 test samples right."""
    config = RunConfig.from_mapping({"strategy": "local"})
    folder = RunFolder.create(tmp_path, config)
    entries = [{"client": str(i), "model": "cnn", "correct": 7, "total": 10, **further} for i in range(8)]
    with reported(folder, config):
        folder.record("evaluation", round=1, clients=entries, one_model=False)
        folder.commit()
    return folder


def test_a_run_ends_with_what_the_others_added(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="isoproto")
    folder = finish(tmp_path, predictors={"joint": 7, "alone": 5}, gained=3, lost=1)
    line = (
        "What the others added: +20.0 points [20.0, 20.0] for the average client, +20.0 points for the average test "
        "sample (exact p = 0.007). Without any exchange the average client has 50.0%."
    )
    assert caplog.messages[-1] == line
    shown = CliRunner().invoke(app, ["report", folder.path.name, "--output-dir", str(tmp_path)])
    assert shown.output.splitlines()[-1] == line


def test_a_run_with_nothing_to_compare_with_ends_with_its_report(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="isoproto")
    folder = finish(tmp_path)
    assert caplog.messages[-1] == f"report: {folder.path / 'report.html'}"
    shown = CliRunner().invoke(app, ["report", folder.path.name, "--output-dir", str(tmp_path)])
    assert shown.output.splitlines()[-1].endswith("report.html")
    assert "added" not in shown.output
