"""The ServerApp: settings -> strategy -> report."""

import contextlib
import io
import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from isoproto import paths
from isoproto.config import RunConfig, Scalar
from isoproto.data import load_dataset, partition_table
from isoproto.engines.prompt_grid import PromptGrid
from isoproto.errors import ConfigError, DataError
from isoproto.fingerprint import fingerprint
from isoproto.registry import lookup
from isoproto.report import read_run, summary_table, write_report
from isoproto.runs.checkpoint import load_checkpoint, save_checkpoint
from isoproto.runs.metrics import summarise
from isoproto.runs.run_folder import FLOWER_RUN, RunFolder, show_log
from server_app.scale import at_scale
from server_app.versions import git_commit, versions
from strategies import STRATEGIES, PrototypeStrategy
from strategies.names import unknown_names
from strategies.state import ServerState

_log = logging.getLogger("isoproto")

app = ServerApp()

# Messages per worker of a simulation that are out at once: enough that none waits for Flower to pass the next one on.
_IN_FLIGHT = 6
# File of a run folder that says what the run replaced in the settings it was given.
_REPLACED = "replaced.json"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation with the run config that Flower hands over."""
    run_federation(grid, context.run_config, flower_run=context.run_id)


def run_federation(grid: Grid, run_config: Mapping[str, Scalar], *, flower_run: int = 0) -> Path:
    """Run a federation, or go on with an interrupted one, and return its run folder.

    Args:
        grid: How to reach the nodes.
        run_config: The settings.
        flower_run: The number under which the SuperLink knows the run; 0 where there is none.

    Raises:
        ConfigError: If settings cannot be used; all of them are named at once.
        FederationError: If the run cannot go on.
        StateError: If the run folder cannot be written or an interrupted run not be read.
    """
    show_log()
    asked = RunConfig.from_mapping(run_config, check=unknown_names)
    output_dir = paths.output_dir(asked.output_dir)
    if asked.resume:
        folder, config = RunFolder.reopen(output_dir, asked.resume)
    else:
        smaller, replaced = at_scale(asked)
        config = STRATEGIES[asked.strategy].resolve(smaller)
        replaced += _overruled(smaller, config)
        folder = RunFolder.create(output_dir, config)
        if replaced:
            folder.write_text(_REPLACED, json.dumps(replaced, indent=1))
    folder.write_text(FLOWER_RUN, str(flower_run))
    with _logged(folder):
        for sentence in _replaced(folder):
            _log.warning("%s", sentence)
        for sentence in _ignored(asked, config):
            _log.warning("%s", sentence)
        saved = load_checkpoint(folder.checkpoints)
        folder.cut_back(saved.server_round if saved else None)
        state = ServerState.from_checkpoint(saved) if saved else None
        _log.info("run folder %s, client models under %s", folder.path, paths.state_dir(config.state_dir))
        strategy = lookup(STRATEGIES, "strategy", config.strategy)(config, folder, state)
        with _reported(folder, config, strategy):
            _run(strategy, PromptGrid(grid), resumed=state is not None)
    return folder.path


def _run(strategy: PrototypeStrategy, grid: PromptGrid, *, resumed: bool) -> None:
    """Meet the clients, then let Flower's loop run the rounds that are left."""
    folder, config = strategy.folder, strategy.config
    strategy.meet(grid, more_may_come=grid.more_may_come)
    grid.window = _IN_FLIGHT * strategy.workers or None
    if strategy.workers:
        paths.mark_experiment(paths.state_dir(config.state_dir), folder.experiment)
    grid.enough = strategy.enough
    _note_partition(strategy)

    def end_of_round(flower_round: int, _: ArrayRecord) -> MetricRecord | None:
        if flower_round == 0:
            if resumed:  # the evaluation before round 1 is in the metrics already
                return None
            replies = grid.send_and_receive(
                strategy.configure_evaluate(0, ArrayRecord(), ConfigRecord(), grid),
                timeout=config.round_timeout,
            )
            strategy.aggregate_evaluate(0, replies)
        folder.commit()
        save_checkpoint(folder.checkpoints, strategy.state.to_checkpoint())
        return None

    with _quiet("flwr"):  # a round is one line of ours; Flower's loop would add six that say nothing
        strategy.start(
            grid,
            initial_arrays=ArrayRecord(),
            num_rounds=config.rounds - strategy.state.server_round,
            timeout=config.round_timeout,
            evaluate_fn=end_of_round,
        )


def _note_partition(strategy: PrototypeStrategy) -> None:
    clients = strategy.clients_in_order()
    rows = [
        {
            "client": info.client,
            "model": info.model,
            "train": info.train_counts,
            "test": info.test_counts,
            "domain": info.domain,
        }
        for info in clients
    ]
    # Some partitions may be missing: their nodes did not come, or were refused.
    partitions = strategy.partitions or len(clients)
    partition = {"classes": strategy.classes, "partitions": partitions, "clients": rows}
    strategy.folder.write_text("partition.json", json.dumps(partition))
    table = partition_table(np.array([info.train_counts for info in clients]))
    _log.info("training samples of each client and class:\n%s", table)


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Let only warnings of another library through while the block lasts."""
    other = logging.getLogger(logger)
    level = other.level
    other.setLevel(logging.WARNING)
    try:
        yield
    finally:
        other.setLevel(level)


@contextlib.contextmanager
def _logged(folder: RunFolder) -> Iterator[None]:
    handler = folder.open_log()
    try:
        yield
    finally:
        folder.close_log(handler)


@contextlib.contextmanager
def _reported(folder: RunFolder, config: RunConfig, strategy: PrototypeStrategy) -> Iterator[None]:
    """Write summary and report when the block ends, however it ends."""
    try:
        yield
    except BaseException as err:
        _log.error("the run failed: %s", err)
        with contextlib.suppress(Exception):  # the first error is the one to show
            folder.commit()
        with contextlib.suppress(Exception):
            _write_summary(folder, config, f"{type(err).__name__}: {err}")
        raise
    _write_summary(folder, config, "")
    table = io.StringIO()
    Console(file=table, width=110).print(summary_table(read_run(folder.path)))
    _log.info("\n%s", table.getvalue())
    _log.info("report: %s", folder.path / "report.html")


def _write_summary(folder: RunFolder, config: RunConfig, reason: str) -> None:
    summary: dict[str, Any] = {
        "strategy": config.strategy,
        "status": "failed" if reason else "completed",
        "reason": reason,
        "seed": config.seed,
        "rounds": config.rounds,
        "experiment": folder.experiment,
        "settings": config.to_mapping(),
        "data_notes": _data_notes(config),
        "replaced": _replaced(folder),
        **summarise(folder.lines()),
        "versions": versions(),
        "git_commit": git_commit(),
        "fingerprint": fingerprint(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "report": str(folder.path / "report.html"),
    }
    folder.write_text("summary.json", json.dumps(summary, indent=2) + "\n")
    write_report(folder.path)


def _data_notes(config: RunConfig) -> list[str]:
    """Return what one must know of the run's data, where the server has them too, as in a simulation."""
    try:
        return list(load_dataset(config.data, config.data_dir).notes)
    except (ConfigError, DataError, OSError):  # such as a function of the clients' own, or a folder that is not here
        return []


def _replaced(folder: RunFolder) -> list[str]:
    """Return what `scale = small` and the method replaced when the run began; its settings are the new ones since."""
    path = folder.path / _REPLACED
    return list(json.loads(path.read_text("utf8"))) if path.exists() else []


def _overruled(asked: RunConfig, config: RunConfig) -> list[str]:
    """Return which of the given settings the method does not take, a sentence each."""
    found = config.to_mapping()
    return [
        f"strategy = {config.strategy}: {key} = {value!r} is replaced by {found[key]!r}"
        for key, value in asked.changes().items()
        if value != found[key]
    ]


def _ignored(asked: RunConfig, config: RunConfig) -> Iterator[str]:
    """Yield what settings a run cannot take up when it is resumed."""
    own = config.to_mapping()
    for key, value in asked.changes().items() if asked.resume else ():
        if key not in ("resume", "output-dir") and value != own[key]:
            yield f"`{key}` = {value!r} is ignored: a resumed run keeps its own settings, here {own[key]!r}"
