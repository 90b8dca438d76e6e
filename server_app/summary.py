"""Write a run's summary and report when it ends, also when it fails."""

import contextlib
import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from isoproto.config import RunConfig
from isoproto.data import load_dataset
from isoproto.errors import ConfigError, DataError
from isoproto.fingerprint import fingerprint
from isoproto.report import added_line, privacy_line, read_run, summary_table, write_report
from isoproto.runs.metrics import summarise
from isoproto.runs.run_folder import RunFolder
from isoproto.settings.sections import Data
from server_app.settings import replaced_settings
from server_app.versions import git_commit, versions

_log = logging.getLogger("isoproto")


@contextlib.contextmanager
def reported(folder: RunFolder, config: RunConfig) -> Iterator[None]:
    """Write summary and report when the block ends, also if it raises. Those of an earlier attempt are removed."""
    folder.remove("summary.json")
    try:
        yield
    except KeyboardInterrupt:
        _write_down(folder, config, "interrupted", "by the user")
        done = sum(line["kind"] == "round" for line in folder.lines())
        _log.warning(
            "interrupted after round %d of %d; go on with: isoproto resume %s", done, config.rounds, folder.experiment
        )
        raise
    except BaseException as err:
        _log.error("the run failed: %s", err or type(err).__name__)
        _write_down(folder, config, "failed", f"{type(err).__name__}: {err}")
        raise
    _write_summary(folder, config, "completed", "")
    table, run = io.StringIO(), read_run(folder.path)
    Console(file=table, width=110).print(summary_table(run))
    _log.info("\n%s", table.getvalue())
    _log.info("report: %s", folder.path / "report.html")
    for line in filter(None, (added_line(run.summary), privacy_line(run.summary))):
        _log.info("%s", line)


def _write_down(folder: RunFolder, config: RunConfig, status: str, reason: str) -> None:
    """Write what there is of a run that did not complete. The user sees the first error, not one that follows."""
    with contextlib.suppress(Exception):
        folder.commit()
    with contextlib.suppress(Exception):
        _write_summary(folder, config, status, reason)


def _write_summary(folder: RunFolder, config: RunConfig, status: str, reason: str) -> None:
    """Write ``summary.json`` and the report. ``reason`` says why the run did not complete."""
    summary: dict[str, Any] = {
        "strategy": config.strategy,
        "status": status,
        "reason": reason,
        "seed": config.seed,
        "rounds": config.rounds,
        "experiment": folder.experiment,
        "settings": config.to_mapping(),
        "data_notes": _data_notes(config),
        "replaced": replaced_settings(folder),
        **summarise(folder.lines()),
        "versions": versions(),
        "git_commit": git_commit(),
        "fingerprint": fingerprint(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "report": str(folder.path / "report.html"),
    }
    folder.write_text("summary.json", json.dumps(summary, indent=2) + "\n")
    write_report(folder.path)


def _data_notes(config: Data) -> list[str]:
    """Return the notes on the run's data set, or none where only the clients have the data."""
    try:
        return list(load_dataset(config.data, config.data_dir).notes)
    except (ConfigError, DataError, OSError):  # a function or a folder that only the clients have
        return []
