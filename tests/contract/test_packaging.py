"""The packages that are built of this repository, and what happens beside files of the same names."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = "rounds=1 max-samples=120 models='mlp' partition='iid' common.dim=16 common.features=0 common.copies=0"


def python(*arguments, folder, path="", **environment):
    """A Python process in a folder of its own, which finds packages in `path` before all others."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel that the source distribution gives, installed as pip does it."""
    work = tmp_path_factory.mktemp("packages")
    assert python("-m", "hatchling", "build", "-t", "sdist", "-d", str(work), folder=ROOT).returncode == 0
    with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
        archive.extractall(work, filter="data")
    source = next(work.glob("isoproto-*/"))
    assert python("-m", "hatchling", "build", "-t", "wheel", "-d", str(work), folder=source).returncode == 0
    (wheel,) = map(str, work.glob("*.whl"))
    to = str(work / "site")
    done = python("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", to, wheel, folder=work)
    assert done.returncode == 0, done.stderr
    return work / "site"


def test_an_installed_wheel_runs_in_another_folder(installed, tmp_path):
    """The code, the embedded digits and the command come from the wheel, and nothing from the repository."""
    where = "import isoproto, models; print(isoproto.__file__, models.__file__)"
    assert python("-c", where, folder=tmp_path, path=str(installed)).stdout.count(str(installed)) == 2
    done = python(
        *("-m", "isoproto.cli.main", "run", "--clients", "3", "-c", TINY),
        folder=tmp_path,
        path=str(installed),
        ISOPROTO_HOME=str(tmp_path / "home"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (tmp_path / "home" / "runs").glob("*/summary.json")
    assert '"completed"' in summary.read_text()


@pytest.mark.parametrize("name", ["models", "strategies", "client_app", "server_app"])
def test_a_file_with_the_name_of_a_package_is_named(name, tmp_path):
    """A `models.py` beside a notebook hides our package: the error says which file it is, and what to do."""
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    done = python("-c", "import isoproto.config", folder=tmp_path)
    assert f"ImportError: isoproto needs its own package '{name}'" in done.stderr
    assert f"{tmp_path / name}.py under this name. Rename that file" in done.stderr


def test_a_module_that_was_imported_before_is_seen_too(tmp_path):
    code = "import sys, types; sys.modules['models'] = types.ModuleType('models'); import isoproto"
    done = python("-c", code, folder=tmp_path)
    assert "but Python finds another module under this name" in done.stderr


def test_a_folder_of_that_name_without_code_hides_nothing(tmp_path):
    (tmp_path / "models").mkdir()
    assert python("-c", "import isoproto.config", folder=tmp_path).returncode == 0
