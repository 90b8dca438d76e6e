"""Take a client's statistics out of a run that has ended, as if the client had never sent them."""

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from isoproto import paths
from isoproto.client_names import client_order
from isoproto.config import RunConfig
from isoproto.errors import ConfigError, StateError
from isoproto.parts import ServerState, parts_of
from isoproto.parts.common import CommonClassifier
from isoproto.parts.common_state import CommonState
from isoproto.runs.checkpoint import Checkpoint, load_checkpoint, rewrite_checkpoints
from isoproto.runs.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """What was taken out of a run, and what was not.

    Attributes:
        client: The client's name.
        run: Name of the run's folder.
        server_round: The last round that is over.
        samples: Samples whose statistics were taken out; 0 if the run had none of this client.
        may_return: Whether the client may take part when the run is resumed.
        model: Folder of the client's own models, if it is on this machine.
        stays: Sentences that say what could not be taken out, and where it is.
    """

    client: str
    run: str
    server_round: int
    samples: int
    may_return: bool
    model: Path | None
    stays: tuple[str, ...]


def forget(output_dir: Path, run_name: str, client: str, *, may_return: bool = False) -> Forgotten:
    """Take a client's statistics and accuracy out of all checkpoints of a run that has ended or was stopped.

    The classifier in the checkpoints is then the one that the other clients' statistics give. Shrinkage, temperature,
    mixtures and gradient steps start again, because the client had a part in them. It is safe to call this again.

    Args:
        output_dir: Folder that holds the run folders.
        run_name: Run folder, its name, or the end of its name.
        client: The client's name.
        may_return: Whether the client may send its statistics anew when the run is resumed. If not, it is left out.

    Raises:
        ConfigError: If there is no such run or client, or the run has no common frame.
        StateError: If the run goes on, has no checkpoint yet, or cannot be read or written.
    """
    folder, config = RunFolder.reopen(output_dir, run_name)
    part = next((part for part in parts_of(config) if isinstance(part, CommonClassifier)), None)
    if part is None:
        raise ConfigError(
            f"the run {folder.path.name} has no common frame (strategy {config.strategy!r}, `common.map = "
            f"{config.common__map}`), so no client's share of what it learned can be told from the others'. Start a "
            "new run without the client"
        )
    if config.pooled:
        raise ConfigError(
            f"the run {folder.path.name} has `common.secure` or `common.noise`, so the server kept only "
            f"the sum of all clients' statistics and cannot take those of client {client!r} out of it. Start a new run "
            "without the client"
        )
    with folder.in_use():
        saved = load_checkpoint(folder.checkpoints)
        if saved is None:
            raise StateError(f"the run {folder.path.name} has no checkpoint yet, so it holds nothing of any client")
        state = ServerState.from_checkpoint(saved)
        _check_known(folder, state, client)
        others = set(folder.forgotten) - {client}
        folder.keep_out(others if may_return else others | {client})
        rewrite_checkpoints(folder.checkpoints, lambda found: _without(found, client, part))
        samples = _samples(state, client)
        _note(folder, saved.server_round, client, samples, may_return=may_return)
    return Forgotten(
        client=client,
        run=folder.path.name,
        server_round=saved.server_round,
        samples=samples,
        may_return=may_return,
        model=_model(config, folder, client),
        stays=tuple(_stays(config, state)),
    )


def _without(checkpoint: Checkpoint, client: str, part: CommonClassifier) -> Checkpoint:
    """Return a checkpoint without a client's statistics and accuracy; the same one if it holds neither."""
    state = ServerState.from_checkpoint(checkpoint)
    kept = CommonState.of(state.memory)
    if kept is not None and any(name == client for _, name in kept.blocks):
        others = {name: tensor for name, tensor in state.memory.items() if not name.startswith("common.")}
        state = replace(state, memory={**others, **kept.without(client, part.rules).to_memory()})
    accuracy = {name: last for name, last in state.accuracy.items() if name != client}
    return replace(state, accuracy=accuracy).to_checkpoint()


def _samples(state: ServerState, client: str) -> int:
    kept = CommonState.of(state.memory)
    blocks = kept.blocks.items() if kept else ()
    return sum(int(block.counts.sum()) for (_, name), block in blocks if name == client)


def _check_known(folder: RunFolder, state: ServerState, client: str) -> None:
    """Refuse a name that no client of the run has."""
    kept = CommonState.of(state.memory)
    known = {*state.accuracy, *folder.forgotten, *(name for _, name in (kept.blocks if kept else ()))}
    path = folder.path / "partition.json"
    if path.exists():
        known |= {share["client"] for share in json.loads(path.read_text("utf8"))["clients"]}
    if client in known:
        return
    close = difflib.get_close_matches(client, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    names = ", ".join(sorted(known, key=client_order)[:20]) + (", …" if len(known) > 20 else "")
    raise ConfigError(
        f"the run {folder.path.name} has no client {client!r}{hint}; its {len(known)} clients are {names}"
    )


def _note(folder: RunFolder, server_round: int, client: str, samples: int, *, may_return: bool) -> None:
    """Append a line to the metrics."""
    folder.mend()
    folder.record("forgotten", round=server_round, client=client, samples=samples, may_return=may_return)
    folder.commit()


def _model(config: RunConfig, folder: RunFolder, client: str) -> Path | None:
    """Return the folder with the client's own models, if it is on this machine, as in a simulation."""
    state = paths.state_dir(config.state_dir)
    path = paths.experiment_dir(state, folder.experiment) / paths.component(client)
    return path if path.exists() else None


def _stays(config: RunConfig, state: ServerState) -> Iterator[str]:
    """Yield a sentence for each place that still holds something of the client."""
    if config.common__distil:
        yield (
            "other clients' networks: they learned from the classifier while the client was in it "
            f"(`common.distil = {config.common__distil:g}`)"
        )
    if state.shared:
        yield f"averaged weights in the checkpoint (`share = {config.share}`): the client's are in the averages"
    if bool(state.present.any()):
        yield f"global prototypes in the checkpoint (`prototypes = {config.prototypes}`): its class means are in them"
    if others := sorted({name.split(".")[0] for name in state.memory} - {"common"}):
        yield f"what other parts keep in the checkpoint ({', '.join(others)}): it may have had a part in it"
    yield (
        "`metrics.jsonl`, `summary.json`, `log.txt`, the report and, until the run is resumed, `partition.json`: its "
        "name, class counts and accuracy in the rounds that are over"
    )
    yield "copies that others made: backups of the run folder, and messages that were recorded on the way"
