import os
import stat
from pathlib import Path

import pytest

from isoproto import paths
from isoproto.errors import StateError
from tests.fakes import full_disk, small_files


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path))
    assert paths.home() == tmp_path
    assert (paths.output_dir(), paths.state_dir()) == (tmp_path / "runs", tmp_path / "state")
    assert paths.keys_dir() == tmp_path / "keys"
    monkeypatch.setenv("ISOPROTO_HOME", "somewhere")
    assert paths.home().is_absolute()


def test_without_it_the_platform_decides(monkeypatch, tmp_path):
    monkeypatch.delenv("ISOPROTO_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert paths.home() == tmp_path / "isoproto"
    monkeypatch.setattr("sys.platform", "darwin")
    assert paths.home() == Path.home() / "Library" / "Application Support" / "isoproto"


def test_a_setting_wins(tmp_path):
    assert paths.output_dir(str(tmp_path)) == tmp_path
    assert paths.state_dir("~/x") == Path.home() / "x"


def test_a_file_is_written_with_its_folders(tmp_path):
    paths.write_atomically(tmp_path / "a" / "b", b"new")
    assert (tmp_path / "a" / "b").read_bytes() == b"new"
    assert os.listdir(tmp_path / "a") == ["b"]


@pytest.mark.parametrize("broken", [lambda: small_files(1000), full_disk], ids=["short", "full"])
def test_a_write_that_fails_leaves_the_old_content(tmp_path, broken):
    path = tmp_path / "state"
    paths.write_atomically(path, b"old")
    with (
        broken(),
        pytest.raises(StateError, match=r"cannot write .*/state: .* \(5000 bytes\); nothing was lost, .*Free"),
    ):
        paths.write_atomically(path, b"x" * 5000)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


def test_a_file_that_shall_stay_stays(tmp_path):
    paths.write_atomically(tmp_path / "key", b"new", mode=0o600, overwrite=False)
    with pytest.raises(StateError, match=r"cannot write .*/key: File exists"):
        paths.write_atomically(tmp_path / "key", b"newer", overwrite=False)
    assert (tmp_path / "key").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_a_leftover_of_a_killed_process_does_not_lend_its_mode(tmp_path):
    leftover = tmp_path / f".key.{os.getpid()}.tmp"
    leftover.write_bytes(b"half")
    leftover.chmod(0o666)
    paths.write_atomically(tmp_path / "key", b"new", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_a_kill_before_the_rename_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "state"
    paths.write_atomically(path, b"old")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        paths.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_folder_that_is_a_file_is_told_of(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"cannot write .*/file/sub/state: "):
        paths.write_atomically(tmp_path / "file" / "sub" / "state", b"")
    with pytest.raises(StateError, match=r"cannot write .*/file/state: "):
        paths.write_atomically(tmp_path / "file" / "state", b"")


def test_a_name_that_is_too_long_is_told_of(tmp_path):
    with pytest.raises(StateError, match=r"cannot write .*name too long"):
        paths.write_atomically(tmp_path / ("x" * 300), b"")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    for name in ("ISOPROTO_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(StateError, match=r"no home folder; name a folder .* ISOPROTO_HOME"):
        paths.home()


def test_long_names_make_short_folders_that_differ(tmp_path):
    """57 Cyrillic letters are 342 bytes when they are quoted, and a file system takes 255."""
    first, second = ("\u0436" * 56 + letter for letter in "\u0436\u0437")
    names = {paths.component(name) for name in (first, second)}
    assert len(names) == 2
    for name in names:
        (tmp_path / name).mkdir()
    assert paths.component("node-7") == "node-7"
