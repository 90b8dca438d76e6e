import pytest

from isoproto.errors import ConfigError
from isoproto.registry import lookup

TABLE = {"gcsa": 1, "rcsa": 2, "mse": 3}


def test_known_name_is_found():
    assert lookup(TABLE, "alignment", "rcsa") == 2


def test_unknown_name_is_told_with_all_choices_and_the_nearest():
    with pytest.raises(ConfigError) as caught:
        lookup(TABLE, "alignment", "gsca")
    assert str(caught.value) == (
        "unknown alignment 'gsca'; `alignment` must be one of 'gcsa', 'mse', 'rcsa' (did you mean 'gcsa'?)"
    )


def test_nothing_near_means_no_hint():
    with pytest.raises(ConfigError, match=r"'rcsa'$"):
        lookup(TABLE, "alignment", "zzz")


def test_the_name_is_shown_on_one_line():
    with pytest.raises(ConfigError, match=r"unknown alignment 'a\\nb'"):
        lookup(TABLE, "alignment", "a\nb")
