"""docs/own-method.md works for a reader: its code is put into a copy of the checkout, and its commands are run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-method.md").read_text("utf-8")
PACKAGES = ("client_app", "isoproto", "models", "server_app", "strategies")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language):
    return [match for match in FENCE.finditer(PAGE) if match[1] == language]


def written_files():
    """Return the text of each Python block by the file that the sentence before it names."""
    named = {re.findall(r"`([\w/]+\.py)`", PAGE[: block.start()])[-1]: block[2] for block in blocks("python")}
    assert len(named) == len(blocks("python"))
    return named


def patched(text, changes):
    """Apply the lines of one file in a diff: each context line must be there once."""
    place = 0
    for line in changes:
        kind, content = line[0], line[1:] + "\n"
        if kind == "+":
            text = text[:place] + content + text[place:]
            place += len(content)
            continue
        (found,) = re.finditer(f"^{re.escape(content)}", text, re.MULTILINE)
        if kind == "-":
            text, place = text[: found.start()] + text[found.end() :], found.start()
        else:
            place = found.end()
    return text


def apply(diff, folder):
    for change in re.split(r"^--- a/", diff, flags=re.MULTILINE)[1:]:
        first, *lines = change.splitlines()
        path = folder / first
        assert lines[0] == f"+++ b/{first}"
        path.write_text(patched(path.read_text("utf-8"), lines[1:]), "utf-8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "tests/contract/test_config_parity.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name, text in written_files().items():
        assert not (folder / name).exists()
        (folder / name).write_text(text, "utf-8")
    for block in blocks("diff"):
        apply(block[2], folder)
    return folder


def call(checkout, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(checkout), "ISOPROTO_HOME": str(checkout / "home")}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands():
    return [shlex.split(line) for block in blocks("sh") for line in block[2].splitlines()]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[3].split("'")[1])
def test_a_method_of_the_page_runs(checkout, command):
    program, *arguments = command
    assert program == "isoproto"
    output = call(checkout, "isoproto.cli.main", *arguments)
    path = Path(re.findall(r"report: (.*)/report.html", output)[-1])
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line["kind"] == "round"] == [1, 2]
    assert not [line for line in lines if line["kind"] == "failure"]
    if "fedspread" in arguments[2]:
        losses = [line["loss"]["spread"] for line in lines if line["kind"] == "round"]
        assert losses[0] == 0 < losses[1]
    elif "common.map" in arguments[2]:
        *_, last = [line for line in lines if line["kind"] == "evaluation"]
        right = sum(client["predictors"]["common"] for client in last["clients"])
        assert right > 0.5 * sum(client["total"] for client in last["clients"])  # ten classes: chance is a tenth
    else:
        for line in blocks("text")[0][2].splitlines():
            assert re.split(r"  |~", line)[0] in output  # figures and paths differ from machine to machine


def test_the_first_method_is_short():
    part, strategy, *_ = written_files().values()
    lines = [line for line in (part + strategy).splitlines() if line.strip() and not line.startswith(('"', "#"))]
    assert len(lines) <= 30


def test_settings_and_listed_keys_agree(checkout):
    call(checkout, "pytest", "-q", "-p", "no:cacheprovider", "tests/contract/test_config_parity.py")
