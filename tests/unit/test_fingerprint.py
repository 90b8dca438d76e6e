import subprocess
import sys
from pathlib import Path

import pytest

import isoproto
from isoproto import fingerprint as module
from isoproto.fingerprint import PACKAGES, fingerprint, package_folder


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Five small packages that are found before ours."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"name = {package!r}\n")
    monkeypatch.setattr(module, "package_folder", lambda package: tmp_path / package)
    fingerprint.cache_clear()
    yield tmp_path
    fingerprint.cache_clear()


def digest():
    fingerprint.cache_clear()
    return fingerprint()


def test_same_code_same_digest(code):
    first = digest()
    assert digest() == first
    assert len(first) == 16
    assert int(first, 16) >= 0


def test_every_package_counts(code):
    seen = {digest()}
    for package in PACKAGES:
        (code / package / "__init__.py").write_text("changed = 1\n")
        seen.add(digest())
    assert len(seen) == 1 + len(PACKAGES)


def test_a_new_a_renamed_and_a_moved_file_count(code):
    seen = {digest()}
    new = code / "models" / "new.py"
    new.write_text("x = 1\n")
    seen.add(digest())
    new = new.rename(code / "models" / "other.py")
    seen.add(digest())
    (code / "models" / "sub").mkdir()
    new.rename(code / "models" / "sub" / "other.py")
    seen.add(digest())
    assert len(seen) == 4


def test_embedded_data_count_and_what_no_bundle_holds_does_not(code):
    before = digest()
    (code / "isoproto" / "__pycache__").mkdir()
    (code / "isoproto" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"x")
    (code / "isoproto" / "notes.txt").write_text("x")
    assert digest() == before
    (code / "isoproto" / "data.jsonl").write_text("{}\n")
    assert digest() != before


def test_content_does_not_slide_between_files(code):
    (code / "models" / "a.py").write_text("1")
    (code / "models" / "b.py").write_text("2")
    first = digest()
    (code / "models" / "a.py").write_text("12")
    (code / "models" / "b.py").write_text("")
    assert digest() != first


def test_another_copy_that_is_found_first_is_what_counts(code):
    """A worker with an outdated copy earlier on its path gets another digest (architecture.md 1.4)."""
    for package in PACKAGES:
        source = code / package / "__init__.py"
        source.write_text(f"version = 1\n{Path(isoproto.__file__).read_text() if package == 'isoproto' else ''}")
    script = "from isoproto.fingerprint import *; print(package_folder('models'), fingerprint())"
    (code / "isoproto" / "fingerprint.py").write_text(Path(module.__file__).read_text())
    out = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(code)!r}); {script}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=code.parent,
    ).stdout.split()
    assert out == [str(code / "models"), digest()]


def test_a_missing_package_is_told_of():
    with pytest.raises(ModuleNotFoundError, match="package 'no_such_package' cannot be imported"):
        package_folder("no_such_package")
