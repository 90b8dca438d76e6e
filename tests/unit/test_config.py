import math
import tomllib

import pytest

from isoproto.config import RunConfig, read_overrides
from isoproto.errors import ConfigError


def test_every_problem_is_told_at_once():
    wrong = {
        "round": 3,
        "seed": "x",
        "fraction": 0,
        "alpha": True,
        "split": "oficial",
        "output-dir": "runs",
        "lambda": "much",
        "learning-rate": math.nan,
    }
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(wrong)
    told = str(caught.value).splitlines()
    assert told == [
        "8 problems in the run config:",
        "  unknown key `round` (did you mean `rounds`?)",
        "  `seed` must be int, got 'x'",
        "  `fraction` must be > 0 and <= 1 and finite, got 0",
        "  `alpha` must be float, got True",
        "  `split` must be one of 'merged', 'official', 'global', 'stratified', got 'oficial'",
        "  `lambda` must be a number or 'auto', got 'much'",
        "  `learning-rate` must be >= 0 and finite, got nan",
        "  `output-dir` must be absolute, got 'runs': Flower's processes run in another folder",
    ]


@pytest.mark.parametrize("key", ["rounds", "fraction", "lambda", "seed", "max-norm"])
@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_no_number(key, value):
    with pytest.raises(ConfigError, match=f"`{key}` must be .*, got {value}"):
        RunConfig.from_mapping({key: value})


@pytest.mark.parametrize("value", ["3", 3.0, True])
def test_only_an_int_is_an_int(value):
    with pytest.raises(ConfigError, match=f"`rounds` must be int, got {value!r}"):
        RunConfig.from_mapping({"rounds": value})


@pytest.mark.parametrize("value", [3, 0.5, True])
def test_only_text_is_text(value):
    with pytest.raises(ConfigError, match=f"`data` must be text, got {value!r}"):
        RunConfig.from_mapping({"data": value})


def test_an_int_is_welcome_as_a_float():
    config = RunConfig.from_mapping({"fraction": 1, "lambda": 2})
    assert type(config.fraction) is float
    assert config.lambda_ == 2


def test_auto_stands_for_what_the_strategy_says():
    config = RunConfig.from_mapping({"lambda": "auto", "gamma": 0.5, "share": "auto"})
    assert (config.lambda_, config.gamma, config.share) == ("auto", 0.5, "auto")


@pytest.mark.parametrize(
    ("key", "lowest", "below"),
    [
        ("rounds", 0, -1),
        ("epochs", 1, 0),
        ("batch-size", 2, 1),
        ("min-replies", 1, 0),
        ("max-empty-rounds", 1, 0),
        ("min-samples", 0, -1),
        ("momentum", 0.0, -0.1),
        ("lambda", 0.0, -0.1),
        ("learning-rate", 0.0, -1e-9),
    ],
)
def test_the_lowest_value_is_welcome_and_less_is_not(key, lowest, below):
    assert RunConfig.from_mapping({key: lowest}).to_mapping()[key] == lowest
    with pytest.raises(ConfigError, match=f"`{key}` must be >= "):
        RunConfig.from_mapping({key: below})


@pytest.mark.parametrize("key", ["fraction", "alpha", "wait-timeout", "round-timeout", "max-norm", "test-fraction"])
def test_zero_is_not_enough(key):
    with pytest.raises(ConfigError, match=f"`{key}` must be > 0"):
        RunConfig.from_mapping({key: 0.0})


@pytest.mark.parametrize(("key", "highest"), [("fraction", 1.0), ("momentum", 0.999), ("test-fraction", 0.9)])
def test_the_highest_value_is_welcome_and_more_is_not(key, highest):
    assert RunConfig.from_mapping({key: highest}).to_mapping()[key] == highest
    with pytest.raises(ConfigError, match=f"`{key}` must be .*<= {highest:g} "):
        RunConfig.from_mapping({key: highest + 0.01})


@pytest.mark.parametrize("key", ["learning-rate", "lambda", "max-norm", "round-timeout"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite(key, value):
    with pytest.raises(ConfigError, match=f"`{key}` must be .*finite, got "):
        RunConfig.from_mapping({key: value})


@pytest.mark.parametrize("key", ["output-dir", "state-dir", "data-dir"])
def test_a_relative_folder_is_refused(key):
    with pytest.raises(ConfigError, match=rf"`{key}` must be absolute, got './x': Flower's processes run in another"):
        RunConfig.from_mapping({key: "./x"})
    assert RunConfig.from_mapping({key: "~/x"}).to_mapping()[key] == "~/x"
    assert RunConfig.from_mapping({key: "/x"}).to_mapping()[key] == "/x"


def test_mapping_and_config_say_the_same():
    config = RunConfig.from_mapping({"rounds": 7, "lambda": 0.5, "output-dir": "/x", "classes-per-client": 3})
    assert RunConfig.from_mapping(config.to_mapping()) == config
    assert RunConfig.from_mapping(config.changes()) == config
    assert config.changes() == {"rounds": 7, "lambda": 0.5, "output-dir": "/x", "classes-per-client": 3}


# Overrides


def test_later_overrides_win(tmp_path):
    """R091: files and pairs together, in the order in which they were given."""
    file = tmp_path / "my.toml"
    file.write_text("rounds = 9\nseed = 4\n")
    assert read_overrides(["rounds=3 partition='iid'", str(file)]) == {"rounds": 9, "seed": 4, "partition": "iid"}
    assert read_overrides([str(file), "rounds=3"]) == {"rounds": 3, "seed": 4}


def test_nested_tables_are_flattened(tmp_path):
    """R089: a table in a file becomes a dotted key, so a misplaced one is told of, not ignored."""
    file = tmp_path / "my.toml"
    file.write_text("[hyper]\nsteps = 3\n")
    assert read_overrides([str(file)]) == {"hyper.steps": 3}
    assert RunConfig.from_mapping(read_overrides([str(file)])).hyper__steps == 3
    file.write_text("[hyper]\nrounds = 3\n")
    with pytest.raises(ConfigError, match=r"unknown key `hyper\.rounds`"):
        RunConfig.from_mapping(read_overrides([str(file)]))


def test_unknown_key_of_a_file_is_told_of(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text("round = 3\n")
    with pytest.raises(ConfigError, match=r"unknown key `round` \(did you mean `rounds`\?\)"):
        RunConfig.from_mapping(read_overrides([str(file)]))


def test_missing_file_is_told_of(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the run-config file '.*no\.toml': No such file"):
        read_overrides([str(tmp_path / "no.toml")])


@pytest.mark.parametrize(
    "text", ["partition=iid", "rounds", "rounds = 3", "rounds=3 seed", "rounds=[1,2]", "rounds=3,seed=4"]
)
def test_text_that_is_no_toml_is_told_of(text):
    with pytest.raises(ConfigError, match=r"cannot read the run config .* text in quotes"):
        read_overrides([text])


def test_broken_file_is_told_of(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="cannot read the run config"):
        read_overrides([str(file)])


def test_overrides_keep_their_types():
    read = read_overrides(["a=1 b=1.0 c='1' d=true"])
    assert read == tomllib.loads("a=1\nb=1.0\nc='1'\nd=true")
    assert [type(v) for v in read.values()] == [int, float, str, bool]


@pytest.mark.parametrize(
    ("typed", "meant"), [("lr", "learning-rate"), ("batch_size", "batch-size"), ("num_clients", "clients")]
)
def test_names_of_other_software_are_understood_as_hints(typed, meant):
    with pytest.raises(ConfigError, match=rf"unknown key `{typed}` \(did you mean `{meant}`\?\)"):
        RunConfig.from_mapping({typed: 1})


def test_a_number_that_no_message_can_hold_is_refused():
    with pytest.raises(ConfigError, match="`seed` must fit into 64 bits"):
        RunConfig.from_mapping({"seed": 10**20})
