"""Names of code and files in the documentation are there."""

import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

from isoproto.parts import PARTS

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("README", "architecture", "own-method", "settings", "wire-schema")),
    *sorted((ROOT / "docs" / "adr").glob("*.md")),
]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
PACKAGES = "isoproto|strategies|client_app|server_app|models"
NAME = re.compile(rf"(?<![\w./-])(?:{PACKAGES})(?:\.\w+)+")
FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)+[\w-]*(?:\.(?:py|md|toml|json|yml))?(?![\w*])")
FOLDERS = (*PACKAGES.split("|"), "docs", "tests", "conf", "benchmarks", "tools", "deploy")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# What the reader of a page writes, and examples.
MADE_BY_THE_READER = set(re.findall(r"`([\w/]+\.py)`:?\n*\n```python", (ROOT / "docs" / "own-method.md").read_text()))
PLACEHOLDERS = {"isoproto/data/x.py", "isoproto/data/partitioners/x.py", "isoproto/losses/x.py", "isoproto/parts/x.py"}
PLACEHOLDERS |= {"isoproto/maps/x.py", "isoproto/settings/x.py", "models/x.py", "strategies/x.py"}
PLACEHOLDERS |= {"benchmarks/speed/x.py"}


def inline_code(page):
    """Return what the page has between backticks, and its blocks of text, which are pictures."""
    text, blocks = page.read_text("utf-8"), re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    pictures = [content for language, content in blocks.findall(text) if language == "text"]
    return [*re.findall(r"`([^`\n]+)`", blocks.sub("", text)), *pictures]


def named(page, pattern):
    return {found for code in inline_code(page) for found in pattern.findall(code)}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_the_names_of_a_page_are_in_the_code(page):
    for name in sorted(named(page, NAME)):
        if not name.endswith((".py", ".md", ".toml", ".main")):
            pkgutil.resolve_name(name)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_the_files_of_a_page_are_there(page):
    files = {name for name in named(page, FILE) if name.split("/")[0] in FOLDERS}
    missing = [name for name in sorted(files - MADE_BY_THE_READER - PLACEHOLDERS) if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_the_links_of_a_page_lead_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert not missing


def test_the_page_on_architecture_names_every_part_and_package():
    page = ROOT / "docs" / "architecture.md"
    names = named(page, NAME)
    assert {f"{part.__module__}.{part.__name__}" for part in PARTS} <= names
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "isoproto").glob("*/__init__.py")}
    assert folders <= {name.rstrip("/") for name in named(page, FILE)}


def test_the_page_on_architecture_lists_the_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [c["layers"] for c in contracts if c.get("containers") == ["isoproto"]]
    written = "; ".join(", ".join(f"`{name}`" for name in layer.split(" | ")) for layer in layers)
    assert written in " ".join((ROOT / "docs" / "architecture.md").read_text("utf-8").split())


def test_every_decision_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert not [path.name for path in (ROOT / "docs" / "adr").glob("*.md") if f"](adr/{path.name})" not in index]


def test_the_tree_in_contributing_has_every_folder():
    tree = re.findall(r"^([a-z_]+)/ ", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    folders = {path.relative_to(ROOT).parts[0] for path in ROOT.glob("*/*") if path.is_file()}
    assert set(tree) >= {folder for folder in folders if (ROOT / folder).is_dir() and folder in FOLDERS}
    assert all((ROOT / folder).is_dir() for folder in tree)
