"""The bundle that Flower ships: what is in it, that it is the same each time, and that it runs from anywhere."""

import io
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from isoproto.fingerprint import PACKAGES, fingerprint

ROOT = Path(__file__).parents[2]
LIMIT = 10 * 2**20  # Flower's, zipped
# Flower names a pattern syntax that newer versions of pathspec call by another name.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")


@pytest.fixture(scope="module")
def bundle():
    return build_fab_from_disk(ROOT)


@pytest.fixture(scope="module")
def unpacked(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    zipfile.ZipFile(io.BytesIO(bundle)).extractall(folder)
    return folder


def source_files():
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".jsonl"))
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_bundle_is_the_same_each_time(bundle):
    assert build_fab_from_disk(ROOT) == bundle


def test_it_holds_the_code_of_the_five_packages_and_nothing_else(bundle):
    names = set(zipfile.ZipFile(io.BytesIO(bundle)).namelist())
    assert names - {"pyproject.toml", "LICENSE", ".info/CONTENT"} == source_files()
    assert {"pyproject.toml", "LICENSE"} <= names


def test_it_holds_no_test(bundle):
    names = zipfile.ZipFile(io.BytesIO(bundle)).namelist()
    assert not [name for name in names if "test" in Path(name).stem.split("_") or name.startswith(("tests/", "bench"))]


def test_it_is_far_below_the_limit(bundle):
    assert len(bundle) < LIMIT / 2


def test_no_file_is_over_a_megabyte(bundle):
    assert max(info.file_size for info in zipfile.ZipFile(io.BytesIO(bundle)).infolist()) <= 10**6


def run(folder, script, where):
    """Run Python with the bundle alone on its path, in an empty folder."""
    where.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{script}"],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )


def test_both_components_load_from_the_bundle_in_an_empty_folder(unpacked, tmp_path):
    components = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    script = f"""
import json, pathlib
from flwr.supercore.object_ref import load_app, validate
from isoproto.fingerprint import fingerprint, package_folder, PACKAGES
components = {json.dumps(components)}
apps = {{}}
for kind, ref in components.items():
    fine, error = validate(ref, project_dir={str(unpacked)!r})
    assert fine, error
    apps[kind] = type(load_app(ref, ValueError, {str(unpacked)!r})).__name__
folders = {{str(package_folder(package).parent) for package in PACKAGES}}
from isoproto.data import load_dataset
print(json.dumps([apps, sorted(folders), fingerprint(), len(load_dataset("digits4").x)]))
"""
    done = run(unpacked, script, tmp_path / "empty")
    assert done.returncode == 0, done.stderr
    apps, folders, digest, pictures = json.loads(done.stdout.splitlines()[-1])
    assert apps == {"serverapp": "ServerApp", "clientapp": "ClientApp"}
    assert folders == [str(unpacked)]
    assert digest == fingerprint()
    assert pictures == 6400


def test_the_client_imports_neither_server_nor_report(unpacked, tmp_path):
    """A client process starts for every message: plots and strategies are not its business."""
    script = "import client_app.app, sys; print(*sorted(m for m in sys.modules))"
    done = run(unpacked, script, tmp_path / "empty")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "client_app.training" in loaded
    for module in ("server_app", "strategies", "isoproto.report", "isoproto.cli", "matplotlib", "ray"):
        assert module not in loaded
