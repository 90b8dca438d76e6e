"""Flower refuses to override a key that pyproject.toml does not list, so every setting stands in both places."""

import tomllib
from pathlib import Path

import pytest

from isoproto.config import RunConfig, read_overrides

ROOT = Path(__file__).parents[2]
LISTED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
OURS = RunConfig().to_mapping()


def test_keys_are_the_same_both_ways_and_in_the_same_order():
    assert list(LISTED) == list(OURS)


@pytest.mark.parametrize("key", OURS)
def test_default_is_the_same_in_value_and_type(key):
    assert LISTED[key] == OURS[key]
    assert type(LISTED[key]) is type(OURS[key])


def test_the_listed_settings_are_accepted():
    assert RunConfig.from_mapping(LISTED) == RunConfig()


@pytest.mark.parametrize("preset", sorted((ROOT / "conf").rglob("*.toml")), ids=lambda path: path.stem)
def test_a_preset_has_known_keys_and_values(preset):
    values = read_overrides([str(preset)])
    assert values
    RunConfig.from_mapping(values)
