"""What every file under conf/ must be: settings that run, at the paper's scale and at the small one."""

import shlex
import tomllib
from pathlib import Path

import pytest

from isoproto.config import RunConfig, read_overrides
from models import TEXT_MODELS, ModelSpec, TextSpec, architectures
from models.cost import cost
from server_app.app import unknown_names
from server_app.scale import at_scale
from strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
PRESETS = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "conf").rglob("*.toml"))}
METHODS = ("conf/fedhpro/paper.toml", "conf/fedhpro/released_code.toml")
COLUMNS = [name for name in PRESETS if name.startswith(("conf/fedsaf/", "conf/fedhpro/")) and name not in METHODS]
MOST_PARAMETERS = 2_000_000


def small(name):
    values = {**read_overrides([str(PRESETS[name])]), "scale": "small"}
    return at_scale(RunConfig.from_mapping(values))


def test_both_papers_have_their_columns():
    counts = [sum(name.startswith(f"conf/{paper}/") for name in COLUMNS) for paper in ("fedsaf", "fedhpro")]
    assert counts == [27, 45]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_only_what_there_is_and_resolves(name):
    config = RunConfig.from_mapping(read_overrides([str(PRESETS[name])]), check=unknown_names)
    assert STRATEGIES[config.strategy].resolve(config).alignment != "auto"
    assert at_scale(config) == (config, [])


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_begins_with_its_table_and_with_a_command_that_resolves(name):
    *told, command = [line.removeprefix("# ") for line in PRESETS[name].read_text().splitlines() if line[0] == "#"]
    assert "Table" in told[0]
    assert ("arXiv:2605.05959" if "fedsaf" in name else "arXiv:2605.13475") in told[0]
    words = shlex.split(command)
    assert words[:4] == ["isoproto", "run", "-c", name]
    config = RunConfig.from_mapping(read_overrides([str(PRESETS[name]), *words[5::2]]), check=unknown_names)
    assert STRATEGIES[config.strategy].resolve(config).strategy == name.split("/")[1]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_says_all_of_a_papers_setting(name):
    needed = {"clients", "data", "partition", "models", "feature-dim", "rounds", "epochs", "batch-size"}
    needed |= {"optimizer", "learning-rate", "momentum", "weight-decay"}
    assert needed <= tomllib.loads(PRESETS[name].read_text()).keys()


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_column_takes_every_method(name, strategy):
    values = {**read_overrides([str(PRESETS[name])]), "strategy": strategy}
    assert STRATEGIES[strategy].resolve(RunConfig.from_mapping(values)).strategy == strategy


@pytest.mark.parametrize("name", PRESETS)
def test_a_small_preset_names_only_what_there_is_and_is_as_small_as_it_gets(name):
    config, replaced = small(name)
    full = RunConfig.from_mapping(read_overrides([str(PRESETS[name])]))
    assert RunConfig.from_mapping(config.to_mapping(), check=unknown_names) == config
    assert config.rounds <= 5
    assert config.epochs == 1
    assert len(architectures(config.models)) == len(architectures(full.models))
    assert all(text.startswith("scale = small: ") for text in replaced)
    assert at_scale(config) == (config, [])


def test_the_models_of_small_presets_have_less_than_two_million_parameters():
    used = {(model, config.feature_dim) for config, _ in map(small, PRESETS) for model in architectures(config.models)}
    assert len(used) > 10
    for model, width in used:
        if model in TEXT_MODELS:
            counted = cost(model, TextSpec(30_000, 200, width, 80))
        else:
            counted = cost(model, ModelSpec(3, 64, 64, width, 100))
        assert counted.parameters < MOST_PARAMETERS, (model, width)
