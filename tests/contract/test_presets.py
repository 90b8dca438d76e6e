"""What every file under conf/ must be: settings that run, at the paper's scale and at the small one."""

import dataclasses
import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from isoproto.config import RunConfig, read_overrides
from isoproto.errors import ConfigError
from models import TEXT_MODELS, ModelSpec, TextSpec, architectures
from models.cost import cost
from server_app.scale import at_scale
from strategies import STRATEGIES
from strategies.names import unknown_names

ROOT = Path(__file__).parents[2]
PRESETS = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "conf").rglob("*.toml"))}
METHODS = ("conf/fedhpro/paper.toml", "conf/fedhpro/released_code.toml", "conf/fedsaf/authors_code.toml")
COLUMNS = [name for name in PRESETS if name.startswith(("conf/fedsaf/", "conf/fedhpro/")) and name not in METHODS]
MOST_PARAMETERS = 2_000_000


def load_tables():
    spec = importlib.util.spec_from_file_location("preset_tables", ROOT / "conf" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def small(name):
    values = {**read_overrides([str(PRESETS[name])]), "scale": "small"}
    return at_scale(RunConfig.from_mapping(values))


def test_both_papers_have_their_columns():
    counts = [sum(name.startswith(f"conf/{paper}/") for name in COLUMNS) for paper in ("fedsaf", "fedhpro")]
    assert counts == [27, 45]


def test_the_columns_are_what_the_table_writes():
    files = {f"conf/{name}": text for name, text in load_tables().files().items()}
    assert sorted(files) == COLUMNS, "a column is a row in conf/tables.py; `make presets` writes its file"
    differ = [name for name, text in files.items() if PRESETS[name].read_bytes() != text.encode()]
    assert not differ, "change conf/tables.py, then run `make presets`"


def test_a_setting_that_no_preset_may_have_is_refused():
    tables = load_tables()
    column = tables.Column("x", "Table I", "x", {"learning_rate": 0.1})
    with pytest.raises(ValueError, match=r"conf/fedsaf/x.toml: unknown settings \['learning_rate'\]"):
        tables.text(tables.FEDSAF, column)


def test_two_rows_do_not_write_one_file():
    tables = load_tables()
    assert len(tables.files()) == len(tables.FEDSAF.columns) + len(tables.FEDHPRO.columns)


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


@pytest.mark.parametrize("name", [name for name in COLUMNS if "fedsaf" in name])
def test_a_column_of_fedsaf_tells_the_weights_of_each_loss_and_what_fedproto_needs(name):
    text = PRESETS[name].read_text()
    told = dict(re.findall(r"^#   (\w+) +(\S+ / \S+)$", text, re.MULTILINE))
    assert told == {"gcsa": "5 / 30", "rcsa": "5 / 30", "mse": "0.01 / 0.01", "cosine": "0.01 / 1"}
    assert "alignment='gcsa' lambda=5 gamma=30" in text
    added = re.search("^# For (strategy='fedproto') add (.*), as in", text, re.MULTILINE).groups()
    config = RunConfig.from_mapping({**read_overrides([str(PRESETS[name])]), **read_overrides(added)})
    assert (config.strategy, config.proto_source, config.stale) == ("fedproto", "all-epochs", "drop")


@pytest.mark.parametrize("group", ["htm4", "htm10"])
def test_the_columns_with_transformers_have_their_heads(group):
    columns = [name for name in COLUMNS if name.endswith(f"_{group}.toml")]
    assert len(columns) == 2
    assert {read_overrides([str(PRESETS[name])])["heads"] for name in columns} == {group}


def test_the_preset_of_the_published_code_is_a_run_of_one_model_as_it_is():
    config = RunConfig.from_mapping(read_overrides([str(PRESETS[METHODS[1]])]), check=unknown_names)
    assert architectures(config.models) == ("resnet10_cifar32",)
    assert (config.data, config.share, config.clients) == ("cifar10", "model", 10)
    assert cost(config.models, ModelSpec(3, 32, 32, config.feature_dim, 10)).parameters == 1_228_970


@pytest.mark.parametrize("name", [name for name in COLUMNS if "ham10000" in name])
def test_the_columns_of_ham10000_have_the_papers_pictures_and_its_parts(name):
    config = RunConfig.from_mapping(read_overrides([str(PRESETS[name])]))
    assert (config.data, config.split) == ("ham10000:@224", "stratified")
    assert round(config.test_fraction * 10_015) == 1_103
    assert "scale = small: data = 'ham10000:@224' is replaced by 'ham10000'" in small(name)[1]


@pytest.mark.parametrize("name", [name for name in COLUMNS if "office_caltech" in name])
def test_the_columns_of_office_caltech_need_no_official_test_part(name):
    config = RunConfig.from_mapping(read_overrides([str(PRESETS[name])]))
    assert (config.split, config.test_fraction) == ("stratified", 0.3)


def test_the_size_of_your_own_pictures_is_no_papers():
    for data in ("imagefolder:pets@224", "csv:a.csv@100", "ag_news:@100"):
        assert at_scale(RunConfig(scale="small", data=data))[0].data == data
    assert at_scale(RunConfig(scale="small", data="sun397:@224"))[0].data == "tiny_imagenet"


@pytest.mark.parametrize("name", [name for name in COLUMNS if "fedsaf" in name])
def test_the_authors_code_over_a_column_differs_in_what_the_paper_leaves_open_alone(name):
    column, laid = (
        RunConfig.from_mapping(read_overrides([str(PRESETS[name]), *more]))
        for more in ((), (str(PRESETS[METHODS[2]]),))
    )
    assert (laid.stale, laid.batches) == ("drop", "fixed")
    assert dataclasses.replace(laid, stale="keep", batches="shuffled") == column


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_says_all_of_a_papers_setting(name):
    needed = {"clients", "data", "partition", "models", "feature-dim", "rounds", "epochs", "batch-size"}
    needed |= {"optimizer", "learning-rate", "momentum", "weight-decay"}
    assert needed <= tomllib.loads(PRESETS[name].read_text()).keys()


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_column_takes_every_method(name, strategy):
    config = RunConfig.from_mapping({**read_overrides([str(PRESETS[name])]), "strategy": strategy})
    if config.heads != "linear" and strategy in ("fedavg", "fedhpro"):
        with pytest.raises(ConfigError, match=f"averages heads.*`heads = {config.heads}` deals out others"):
            STRATEGIES[strategy].resolve(config)
        return
    resolved = STRATEGIES[strategy].resolve(config)
    assert resolved.strategy == strategy
    if strategy == "local":
        assert (resolved.prototypes, resolved.alignment, resolved.share) == ("none", "none", "none")


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
