"""docs/equations.md points at code that is there."""

import pkgutil
import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "equations.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?:isoproto|client_app|strategies)\.[\w.]+)`", TEXT)))


def test_the_page_names_code() -> None:
    assert len(NAMES) > 15


@pytest.mark.parametrize("name", NAMES)
def test_the_code_is_there(name: str) -> None:
    assert pkgutil.resolve_name(name).__doc__
