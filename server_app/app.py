"""The ServerApp: read the settings, start the strategy, report the run."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from isoproto import paths
from isoproto.config import RunConfig, Scalar
from isoproto.engines.prompt_grid import PromptGrid, window_size
from isoproto.parts import ServerState
from isoproto.registry import lookup
from isoproto.runs.checkpoint import load_checkpoint, save_checkpoint
from isoproto.runs.run_folder import FLOWER_RUN, RunFolder, show_log
from server_app.partition import note_partition
from server_app.settings import ignored_settings, open_run, replaced_settings
from server_app.summary import reported
from strategies import STRATEGIES, PrototypeStrategy
from strategies.names import unknown_names

_log = logging.getLogger("isoproto")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation with the run config that Flower hands over."""
    run_federation(grid, context.run_config, flower_run=context.run_id)


def run_federation(grid: Grid, run_config: Mapping[str, Scalar], *, flower_run: int = 0) -> Path:
    """Run a federation, or continue an interrupted run, and return its run folder.

    Args:
        grid: Sends messages to the nodes.
        run_config: The settings.
        flower_run: The SuperLink's number of the run; 0 without a SuperLink.

    Raises:
        ConfigError: If settings cannot be used. The text names all of them.
        FederationError: If the run cannot continue.
        StateError: If the run folder cannot be written, an interrupted run cannot be read, or it goes on elsewhere.
    """
    show_log()
    asked = RunConfig.from_mapping(run_config, check=unknown_names)
    folder, config = open_run(asked)
    with folder.in_use(), _logged(folder):
        folder.write_text(FLOWER_RUN, str(flower_run))
        for sentence in itertools.chain(replaced_settings(folder), ignored_settings(asked, config)):
            _log.warning("%s", sentence)
        saved = load_checkpoint(folder.checkpoints)
        folder.cut_back(saved.server_round if saved else None)
        state = ServerState.from_checkpoint(saved) if saved else None
        _log.info("run folder %s, client models under %s", folder.path, paths.state_dir(config.state_dir))
        strategy = lookup(STRATEGIES, "strategy", config.strategy)(config, folder, state)
        with reported(folder, config):
            _run(strategy, PromptGrid(grid), resumed=state is not None)
    return folder.path


def _run(strategy: PrototypeStrategy, grid: PromptGrid, *, resumed: bool) -> None:
    """Wait for the clients, then let Flower's loop run the remaining rounds."""
    folder, config = strategy.folder, strategy.config
    strategy.meet(grid, more_may_come=grid.more_may_come)
    workers = strategy.roster.workers
    grid.limit(window=window_size(workers), enough=strategy.enough)
    if workers:
        paths.mark_experiment(paths.state_dir(config.state_dir), folder.experiment)
    note_partition(folder, strategy.roster)
    with _quiet("flwr"):  # our log has one line per round; Flower's loop would add six
        strategy.start(
            grid,
            initial_arrays=ArrayRecord(),
            num_rounds=config.rounds - strategy.state.server_round,
            timeout=config.round_timeout,
            evaluate_fn=_end_of_round(strategy, grid, resumed=resumed),
        )


def _end_of_round(
    strategy: PrototypeStrategy, grid: PromptGrid, *, resumed: bool
) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Return the function that Flower's loop calls after each round, and once before the first with round 0.

    It writes the metrics to disk, then the checkpoint. Before the first round all clients are evaluated.
    """

    def end_of_round(flower_round: int, _: ArrayRecord) -> MetricRecord | None:
        if flower_round == 0:
            if resumed:  # the evaluation before round 1 is in the metrics already
                return None
            messages = strategy.configure_evaluate(0, ArrayRecord(), ConfigRecord(), grid)
            strategy.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=strategy.config.round_timeout))
        strategy.folder.commit()
        save_checkpoint(strategy.folder.checkpoints, strategy.state.to_checkpoint())
        return None

    return end_of_round


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Show only warnings of another library while the block lasts."""
    other = logging.getLogger(logger)
    level = other.level
    other.setLevel(logging.WARNING)
    try:
        yield
    finally:
        other.setLevel(level)


@contextlib.contextmanager
def _logged(folder: RunFolder) -> Iterator[None]:
    """Write the log to the run folder while the block lasts."""
    handler = folder.open_log()
    try:
        yield
    finally:
        folder.close_log(handler)
