"""``isoproto forget``: the run is then as if the client had never sent its statistics, and goes on without it."""

import json

import pytest

from isoproto.errors import ConfigError, StateError
from isoproto.parts import ServerState
from isoproto.report import read_run, write_report
from isoproto.runs.checkpoint import load_checkpoint
from isoproto.runs.run_folder import RunFolder
from server_app.forget import forget
from tests import fakes
from tests.conftest import Federation
from tests.fakes import Killed, When, command_line
from tests.federation.test_common import FIXED, FRAME, assert_same, interrupted, kept

EXACT = {**FIXED, "common.rounds": 0}


def stopped(federation, *faults, settings=FRAME, before=4):
    """Return a run whose server died in a round."""
    return interrupted(federation, *faults, (fakes.killed(after=False), When("train", [before])), settings=settings)


def not_there(client):
    return fakes.raising("RuntimeError: not here"), When("query", None, [client])


def forgotten(federation, run, client, **options):
    return forget(federation.folder / "runs", run.path.name, client, **options)


def state_of(run):
    return ServerState.from_checkpoint(load_checkpoint(run.path / "checkpoint"))


def test_the_state_is_that_of_a_run_without_the_client(federation, tmp_path, pictures):
    """With nothing to choose and no gradients the two differ in nothing; mixtures come with the next round."""
    run = stopped(federation, settings=EXACT)
    before = kept(run)
    done = forgotten(federation, run, "2")
    other = stopped(Federation(tmp_path / "other", pictures), not_there(2), settings=EXACT)
    one, wanted = kept(run), kept(other)
    assert done.samples == sum(int(b.counts.sum()) for (_, name), b in before.blocks.items() if name == "2") > 0
    assert len(before.mixtures)
    assert not len(one.mixtures)
    assert not before.everything.equal(one.everything)
    for name in ("rows", "start", "everything", "present"):
        assert getattr(one, name).equal(getattr(wanted, name)), name
    assert one.blocks.keys() == wanted.blocks.keys()
    assert state_of(run).accuracy.keys() == {"0", "1", "3"}


def test_resumed_it_ends_as_the_run_without_the_client(federation, tmp_path, pictures):
    run = stopped(federation, settings=EXACT)
    forgotten(federation, run, "2")
    again = federation.run(settings={"resume": run.path.name})
    other = Federation(tmp_path / "other", pictures)
    wanted = other.run(other.grid(not_there(2)), EXACT)
    assert_same(kept(again), kept(wanted))
    assert again.of("evaluation")[-1]["clients"] == wanted.of("evaluation")[-1]["clients"]
    assert again.failures()[3, "2"].startswith("client 2 was forgotten (`isoproto forget`)")
    assert again.cohorts()[-1] == ["0", "1", "3"]
    assert again.summary["status"] == "completed"


def test_after_that_a_kill_and_resume_change_nothing(federation, tmp_path, pictures):
    """Gradients move the classifier again, and are the same to the last bit whether the server dies or not."""
    ends = []
    for number, kills in enumerate(([], [(4, False), (5, True)])):
        one = Federation(tmp_path / str(number), pictures)
        run = stopped(one, settings={**FRAME, "rounds": 7})
        forgotten(one, run, "0")
        for server_round, after in kills:
            grid = one.grid((fakes.killed(after=after), When("train", [server_round])))
            with pytest.raises(Killed):
                one.run(grid, {"resume": run.path.name})
        ends.append(kept(one.run(settings={"resume": run.path.name})))
    assert_same(*ends)
    assert ends[0].steps > 0


def test_no_checkpoint_still_holds_the_client(federation):
    """The one before the newest is used if the newest is damaged, so it must not bring the client back."""
    run = stopped(federation)
    forgotten(federation, run, "1")
    files = sorted((run.path / "checkpoint").iterdir())
    assert len(files) == 2
    assert all(b".fit.sums.1" not in file.read_bytes() and b".fit.sums.2" in file.read_bytes() for file in files)
    files[-1].write_bytes(b"damaged")
    assert {name for _, name in kept(federation.run(settings={"resume": run.path.name})).blocks} == {"0", "2", "3"}


def test_a_damaged_checkpoint_is_deleted_since_it_may_hold_the_client(federation):
    run = stopped(federation)
    older, newest = sorted((run.path / "checkpoint").iterdir())
    older.write_bytes(older.read_bytes()[:-10])
    forgotten(federation, run, "1")
    assert list((run.path / "checkpoint").iterdir()) == [newest]


def test_a_client_that_may_return_sends_its_statistics_anew(federation, tmp_path, pictures):
    run = stopped(federation, settings=EXACT)
    assert forgotten(federation, run, "2").samples > 0
    assert forgotten(federation, run, "2", may_return=True).samples == 0
    assert RunFolder.reopen(federation.folder / "runs", run.path.name)[0].forgotten == ()
    again = federation.run(settings={"resume": run.path.name})
    assert_same(kept(again), kept(Federation(tmp_path / "other", pictures).run(settings=EXACT)))
    assert not again.failures()


def test_several_clients_can_be_forgotten_and_the_last_one_leaves_nothing(federation):
    run = stopped(federation)
    for client in ("0", "3", "1", "2"):
        forgotten(federation, run, client)
    assert kept(run).blocks == {}
    assert kept(run).rows.numel() == 0
    assert state_of(run).accuracy == {}
    assert json.loads((run.path / "forgotten.json").read_text()) == ["0", "1", "2", "3"]


def test_a_run_that_is_over_can_forget_too(federation):
    run = federation.run(settings=FRAME)
    assert forgotten(federation, run, "0").server_round == 5
    assert {name for _, name in kept(run).blocks} == {"1", "2", "3"}


def test_the_metrics_say_so_and_the_report_is_still_written(federation):
    run = stopped(federation)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "client", "round": 4, "cli')  # the server died while it wrote
    samples = forgotten(federation, run, "2").samples
    assert run.of("forgotten") == [
        {"kind": "forgotten", "round": 3, "client": "2", "samples": samples, "may_return": False}
    ]
    assert list(read_run(run.path).metrics) == run.lines
    assert write_report(run.path).exists()


def test_interrupted_in_the_middle_it_is_done_by_a_second_call(federation, monkeypatch):
    run = stopped(federation)
    with monkeypatch.context() as patch:
        patch.setattr("server_app.forget._note", lambda *_, **__: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            forgotten(federation, run, "2")
    assert forgotten(federation, run, "2").samples == 0
    assert "2" not in {name for _, name in kept(run).blocks}
    assert len(run.of("forgotten")) == 1


def test_a_full_disk_leaves_the_checkpoint_as_it_was(federation):
    run = stopped(federation)
    newest = max((run.path / "checkpoint").iterdir())
    before = newest.read_bytes()
    with fakes.full_disk(), pytest.raises(StateError, match="nothing was lost"):
        forgotten(federation, run, "2")
    assert newest.read_bytes() == before


# What is refused


def test_a_run_that_goes_on_is_refused(federation):
    told = []

    def meanwhile(content):
        with pytest.raises(StateError, match="goes on in another process") as refused:
            forgotten(federation, federation.newest(), "0")
        told.append(refused)

    federation.run(federation.grid((fakes.altered(meanwhile), When("train", [3], [0]))), FRAME)
    assert told


def test_an_unknown_client_is_refused_with_the_names_that_there_are(federation):
    run = stopped(federation)
    with pytest.raises(ConfigError, match=r"has no client '22' \(did you mean '2'\?\); its 4 clients are 0, 1, 2, 3"):
        forgotten(federation, run, "22")
    assert "forgotten.json" not in {path.name for path in run.path.iterdir()}


def test_a_run_without_a_common_frame_is_refused(federation):
    run = federation.run(settings={"rounds": 1})
    with pytest.raises(ConfigError, match=r"has no common frame \(strategy 'fedsaf', `common.map = none`\)"):
        forgotten(federation, run, "0")


def test_a_run_without_a_checkpoint_is_refused(federation):
    broken = interrupted(federation, (fakes.killed(after=False), When("query")))
    with pytest.raises(StateError, match="has no checkpoint yet"):
        forgotten(federation, broken, "0")


def test_names_that_cannot_be_read_do_not_let_a_client_back(federation):
    run = stopped(federation)
    (run.path / "forgotten.json").write_text("[")
    with pytest.raises(StateError, match=r"cannot read .*forgotten\.json, the names of clients that must not come"):
        federation.run(settings={"resume": run.path.name})


# As it is typed


@pytest.fixture
def isoproto(federation, monkeypatch, capsys):
    monkeypatch.setenv("ISOPROTO_HOME", str(federation.folder))
    return command_line(monkeypatch, capsys)


def test_the_command_says_what_it_took_out_and_what_stays(federation, isoproto):
    run = stopped(federation)
    status, out, _ = isoproto("forget", run.path.name[-8:], "2")
    assert status == 0
    experiment = (run.path / "experiment").read_text().strip()
    assert f"client 2: took the statistics of 57 samples out of {run.path.name}, round 3." in out
    assert f"rm -r {federation.folder}/state/{experiment}/2\n" in out
    assert "--may-return to let it back" in out
    assert "`metrics.jsonl`, `summary.json`, `log.txt`" in out
    assert "networks" not in out  # nobody's network has learned from the classifier
    status, out, _ = isoproto("forget", run.path.name, "2", "--may-return")
    assert status == 0
    assert f"client 2: the newest checkpoint of {run.path.name} has no statistics of it." in out
    assert "asks the client for its statistics anew" in out


def test_the_command_names_what_other_parts_have_learned(federation, isoproto):
    settings = {**FRAME, "strategy": "fedproto", "common.distil": 0.5}
    run = stopped(federation, settings=settings)
    _, out, _ = isoproto("forget", run.path.name, "1")
    assert "other clients' networks: they learned from the classifier while the client was in it" in out
    assert "global prototypes in the checkpoint (`prototypes = mean`)" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [(("nothing", "0"), "error: there is no run 'nothing'"), (("local", "9"), "error: there is no run 'local'")],
)
def test_what_cannot_be_done_ends_with_a_sentence(isoproto, words, told):
    status, _, err = isoproto("forget", *words)
    assert status == 1
    assert told in err
