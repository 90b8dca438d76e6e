"""Decide the settings that a run uses, and say where they differ from those that were asked for."""

import json
from collections.abc import Iterator

from isoproto import paths
from isoproto.config import RunConfig
from isoproto.runs.run_folder import RunFolder
from server_app.scale import at_scale
from strategies import STRATEGIES

# File of a run folder that lists the settings which the run replaced.
_REPLACED = "replaced.json"


def open_run(asked: RunConfig) -> tuple[RunFolder, RunConfig]:
    """Return the folder and the settings of a new run, or of the interrupted run that ``resume`` names.

    A new run's settings are resolved: no value is ``auto``. A resumed run keeps the settings it began with.

    Raises:
        ConfigError: If settings contradict each other.
        StateError: If the folder cannot be written, or the interrupted run cannot be read.
    """
    output_dir = paths.output_dir(asked.output_dir)
    if asked.resume:
        return RunFolder.reopen(output_dir, asked.resume)
    config, replaced = decided(asked)
    folder = RunFolder.create(output_dir, config)
    if replaced:
        folder.write_text(_REPLACED, json.dumps(replaced, indent=1))
    return folder, config


def decided(asked: RunConfig) -> tuple[RunConfig, list[str]]:
    """Return the settings of a new run, of which none is ``auto``, and a sentence for each that was replaced.

    Raises:
        ConfigError: If settings contradict each other.
    """
    smaller, replaced = at_scale(asked)
    config = STRATEGIES[asked.strategy].resolve(smaller)
    return config, replaced + _overruled(smaller, config)


def replaced_settings(folder: RunFolder) -> list[str]:
    """Return a sentence for each setting that ``scale = small`` or the method replaced when the run began."""
    path = folder.path / _REPLACED
    return list(json.loads(path.read_text("utf8"))) if path.exists() else []


def ignored_settings(asked: RunConfig, config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each setting that a resumed run ignores, because it keeps the ones it began with."""
    kept = config.to_mapping()
    for key, value in asked.changes().items() if asked.resume else ():
        if key not in ("resume", "output-dir") and value != kept[key]:
            yield f"`{key}` = {value!r} is ignored: a resumed run keeps its own settings, here {kept[key]!r}"


def _overruled(asked: RunConfig, config: RunConfig) -> list[str]:
    """Return a sentence for each setting that the method replaced."""
    resolved = config.to_mapping()
    return [
        f"strategy = {config.strategy}: {key} = {value!r} is replaced by {resolved[key]!r}"
        for key, value in asked.changes().items()
        if value != resolved[key]
    ]
