"""docs/settings.md and the tables of docs/wire-schema.md say what the code declares."""

import importlib.util
from pathlib import Path

import pytest

from isoproto.config import RunConfig
from isoproto.wire.broadcast import DOWN
from isoproto.wire.train_reply import UP

ROOT = Path(__file__).parents[2]
SETTINGS = (ROOT / "docs" / "settings.md").read_text("utf-8")
SCHEMA = (ROOT / "docs" / "wire-schema.md").read_text("utf-8")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_settings", ROOT / "tools" / "make_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_script_writes(script):
    assert script.settings_page() == SETTINGS, "change the declaration, then run `make settings`"
    assert script.wire_page(SCHEMA) == SCHEMA, "change the declaration, then run `make settings`"


@pytest.mark.parametrize("key", RunConfig().to_mapping())
def test_every_setting_has_one_row_that_explains_it(key):
    (row,) = [line for line in SETTINGS.splitlines() if line.startswith(f"| `{key}` |")]
    meaning = row.rstrip("| ").rpartition(" | ")[2]
    assert meaning.endswith("."), row


@pytest.mark.parametrize("name", [*DOWN, *UP])
def test_every_array_is_explained(name):
    assert f"- `{name}`" in SCHEMA or f", `{name}`" in SCHEMA, "say what the array holds, below its table"
