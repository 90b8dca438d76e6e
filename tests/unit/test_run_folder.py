import json
import logging
import math
import os
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoproto.config import RunConfig
from isoproto.errors import ConfigError, StateError
from isoproto.runs.run_folder import RunFolder, abandoned, find_run, show_log
from isoproto.toml import to_toml
from tests.fakes import full_disk, small_files

CONFIG = RunConfig.from_mapping({"rounds": 7, "lambda": 0.5, "max-norm": 1e-7, "output-dir": "/tmp/ü 🙂 'x'"})


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path, CONFIG)


def text(folder):
    return (folder.path / "metrics.jsonl").read_text()


# Settings


def test_a_run_is_opened_again_with_its_settings(folder, tmp_path):
    again, config = RunFolder.reopen(tmp_path, folder.path.name)
    assert (again.path, again.experiment, config) == (folder.path, folder.experiment, CONFIG)


def test_folder_says_when_what_and_which(folder):
    assert folder.path.name.endswith(f"-{CONFIG.strategy}-{folder.experiment}")
    assert len(folder.experiment) == 8


def test_two_runs_never_share_a_folder(tmp_path):
    assert len({RunFolder.create(tmp_path, CONFIG).path for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("name", "content"), [("config.toml", "rounds = "), ("config.toml", "\xff"), ("experiment", "")]
)
def test_broken_settings_are_told_of(folder, tmp_path, name, content):
    (folder.path / name).write_text(content, encoding="latin-1")
    with pytest.raises(StateError, match=rf"cannot read the settings of the run .*{folder.path.name}"):
        RunFolder.reopen(tmp_path, folder.path.name)


def test_a_setting_of_another_version_is_told_of(folder, tmp_path):
    (folder.path / "config.toml").write_text("round = 3\n")
    with pytest.raises(ConfigError, match="unknown key `round`"):
        RunFolder.reopen(tmp_path, folder.path.name)


SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text("ab \"'\\\n\t\x00\x7fä漢🙂=#[", max_size=10)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]*(\.[a-z-]+)?", fullmatch=True), SCALARS | TEXTS, max_size=5))
def test_toml_is_read_as_it_was_written(values):
    assert tomllib.loads(to_toml(values)) == values


# Finding a run


def test_a_run_is_found_by_path_name_and_end_of_name(folder, tmp_path):
    name = folder.path.name
    for given_name in (str(folder.path), name, folder.experiment, name[5:]):
        assert find_run(tmp_path, given_name) == folder.path


def test_no_such_run_is_told_with_the_newest_ones(folder, tmp_path):
    with pytest.raises(
        ConfigError, match=rf"there is no run 'zzz'; looked in .* newest runs are \['{folder.path.name}'\]"
    ):
        find_run(tmp_path, "zzz")


@pytest.mark.parametrize("name", ["", "*", "?", "**", "[", "../x", "/"])
def test_a_name_is_no_pattern(folder, tmp_path, name):
    with pytest.raises(ConfigError, match="there is no run"):
        find_run(tmp_path, name)


def test_several_runs_are_told_of(tmp_path):
    for name in ("1-fedsaf-ab", "2-fedsaf-ab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text("")
    with pytest.raises(ConfigError, match=r"several runs end in 'ab': \['1-fedsaf-ab', '2-fedsaf-ab'\]"):
        find_run(tmp_path, "ab")


def test_an_output_folder_that_is_not_there_has_no_runs(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no run 'x'; .*newest runs are \[\]"):
        find_run(tmp_path / "missing", "x")


# Metrics


def test_lines_are_written_when_their_round_is_over(folder):
    folder.record("client", round=1, client="0")
    assert folder.lines() == []
    folder.commit()
    folder.record("round", round=1)
    assert [line["kind"] for line in folder.lines()] == ["client"]
    folder.commit()
    folder.commit()
    assert [line["kind"] for line in folder.lines()] == ["client", "round"]


def test_a_line_cut_by_a_kill_is_left_out(folder):
    folder.record("round", round=1)
    folder.commit()
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "rou')
    assert folder.lines() == [{"kind": "round", "round": 1}]
    folder.cut_back(1)
    folder.record("round", round=2)
    folder.commit()
    assert [line["round"] for line in folder.lines()] == [1, 2]


def test_numbers_that_are_not_finite_never_reach_the_file(folder):
    folder.record("round", round=1, loss=math.nan)
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.commit()


@pytest.mark.parametrize("server_round", [0, 1, 2, 3])
def test_rounds_after_the_checkpoint_are_cut(folder, server_round):
    for r in range(3):
        folder.record("round", round=r)
    folder.commit()
    folder.cut_back(server_round)
    assert [line["round"] for line in folder.lines()] == [r for r in range(3) if r <= server_round]


def test_without_a_checkpoint_everything_is_cut(folder):
    folder.record("evaluation", round=0)
    folder.commit()
    folder.cut_back(None)
    assert folder.lines() == []


def test_cutting_a_run_that_wrote_nothing_is_fine(folder):
    folder.cut_back(None)
    folder.cut_back(3)
    assert folder.lines() == []


def test_a_full_disk_loses_no_line_and_leaves_no_half_one(folder):
    folder.record("round", round=1)
    folder.commit()
    folder.record("round", round=2, note="x" * 500)
    with (
        small_files(300),
        pytest.raises(StateError, match=r"cannot append to .*Free some space, then `isoproto resume"),
    ):
        folder.commit()
    assert [line["round"] for line in folder.lines()] == [1]
    folder.commit()  # some space was freed
    assert [line["round"] for line in folder.lines()] == [1, 2]


def test_a_disk_found_full_when_flushing_repeats_no_line(folder):
    folder.record("round", round=1)
    with full_disk(), pytest.raises(StateError, match="cannot append to"):
        folder.commit()
    folder.commit()
    assert [line["round"] for line in folder.lines()] == [1]


def test_damaged_metrics_are_told_of(folder):
    (folder.path / "metrics.jsonl").write_text('{"kind": "round"\n{"kind": "round", "round": 1}\n')
    with pytest.raises(StateError, match=r"line 1 of .*metrics\.jsonl cannot be read"):
        folder.cut_back(1)


# Log


def test_log_goes_to_the_folder_until_it_is_closed(folder):
    log = logging.getLogger("isoproto")
    log.setLevel(logging.INFO)
    handler = folder.open_log()
    log.info("inside")
    folder.close_log(handler)
    log.warning("outside")
    assert "INFO inside" in (folder.path / "log.txt").read_text()
    assert "outside" not in (folder.path / "log.txt").read_text()


def test_log_is_shown_once(capsys):
    show_log()
    show_log()
    logging.getLogger("isoproto").info("hello")
    assert capsys.readouterr().out == "hello\n"


def test_writing_a_file_replaces_it_whole(folder):
    folder.write_text("summary.json", json.dumps({"a": "ü"}))
    folder.write_text("summary.json", json.dumps({"a": 1}))
    assert json.loads((folder.path / "summary.json").read_text()) == {"a": 1}
    assert sorted(os.listdir(folder.path)) == ["config.toml", "experiment", "summary.json"]


# One process at a time, and clients that must not come back


def test_a_run_is_changed_by_one_process_at_a_time(folder):
    with (
        folder.in_use(),
        pytest.raises(StateError, match=r"another process \(host .+, process \d+\), which has locked .*/lock; wait"),
        folder.in_use(),
    ):
        pass
    with folder.in_use():
        pass


def test_a_run_whose_process_was_killed_is_seen_as_stopped(folder):
    """The process holds the lock as long as it lives; what it wrote into the file stays."""
    assert not abandoned(folder.path), "it has not begun"
    with folder.in_use():
        assert not abandoned(folder.path)
    assert abandoned(folder.path)
    (folder.path / "lock").write_text("host another, process 1\n")
    assert not abandoned(folder.path), "this machine cannot tell"


def test_a_run_that_failed_can_be_taken_up_again(folder):
    with pytest.raises(BlockingIOError, match="of the run itself"), folder.in_use():
        raise BlockingIOError("of the run itself")
    with folder.in_use():
        pass


def test_clients_that_must_not_come_back_are_kept_sorted(folder):
    assert folder.forgotten == ()
    folder.keep_out(["10", "ward-3", "9", "9"])
    assert folder.forgotten == ("9", "10", "ward-3")
    folder.keep_out([])
    assert folder.forgotten == ()


def test_a_line_that_was_cut_off_is_removed_before_others_are_appended(folder):
    folder.record("round", round=1)
    folder.commit()
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "cli')
    folder.mend()
    folder.record("forgotten", round=1)
    folder.commit()
    assert [line["kind"] for line in folder.lines()] == ["round", "forgotten"]
