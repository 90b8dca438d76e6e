"""Clients in worker processes: the same numbers, and no process that outlives the run."""

import json
import multiprocessing
import os
import subprocess
import sys
import time

import psutil
import pytest

from client_app.store import ClientStore
from isoproto.cli.main import _client_app
from isoproto.engines import workers
from isoproto.engines.in_process import InProcessGrid
from isoproto.engines.workers import WorkerGrid, grid_of
from isoproto.errors import FederationError

SETTINGS = {"strategy": "isoproto", "common.dim": 8, "common.features": 4, "models": "mlp,cnn", "rounds": 4}


@pytest.fixture
def two():
    with WorkerGrid(_client_app, 4, 2) as grid:
        yield grid


def comparable(run):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.lines]


def models(federation, run):
    stores = [ClientStore(federation.folder / "state", run.summary["experiment"], str(i)) for i in range(4)]
    return [store.load().tensors for store in stores]


def test_workers_change_no_bit(federation, two):
    alone = federation.run(InProcessGrid(_client_app(), 4), SETTINGS)
    together = federation.run(two, SETTINGS)
    assert comparable(together) == comparable(alone)
    for one, other in zip(models(federation, together), models(federation, alone), strict=True):
        assert all(one[name].equal(other[name]) for name in other)
    assert len(multiprocessing.active_children()) == 2


def test_a_short_run_starts_none(federation):
    with grid_of(_client_app, 4, jobs=0, cores=2) as grid:
        assert federation.run(grid, {"rounds": 1, "models": "mlp"}).summary["status"] == "completed"
        assert not multiprocessing.active_children()


def test_a_run_that_turns_out_to_be_long_goes_on_in_workers(federation, monkeypatch):
    alone = federation.run(InProcessGrid(_client_app(), 4), SETTINGS)
    monkeypatch.setattr(workers, "_PATIENCE_S", 0.2)
    with grid_of(_client_app, 4, jobs=0, cores=2) as grid:
        together = federation.run(grid, SETTINGS)
        assert multiprocessing.active_children()
    assert comparable(together) == comparable(alone)


def test_an_error_of_a_client_is_its_reply_and_a_line_of_the_log(federation, two, tmp_path):
    (tmp_path / "own.py").write_text("def network(spec):\n    raise KeyError('boom')\n")
    with pytest.raises(FederationError, match=r"4 x the client failed: .*KeyError: 'boom' \(own.py, line 2\)"):
        federation.run(two, {"models": f"{tmp_path}/own.py:network"})
    assert federation.newest().log.count("own.py:network raised an error") == 1


def test_a_worker_that_dies_ends_the_run_with_a_reason(federation, two, monkeypatch):
    answer = two.push_messages

    def killing(messages):
        asked = list(messages)
        if asked[0].metadata.message_type == "train":
            for child in multiprocessing.active_children():
                child.kill()
        return answer(asked)

    monkeypatch.setattr(two, "push_messages", killing)
    with pytest.raises(FederationError, match=r"a worker process died.*`--jobs`"):
        federation.run(two, SETTINGS)


def test_ctrl_c_leaves_no_worker_behind(federation):
    def interrupted():
        with WorkerGrid(_client_app, 4, 2) as grid:
            federation.run(grid, {"rounds": 1, "models": "mlp"})
            assert multiprocessing.active_children()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not multiprocessing.active_children()


def test_workers_end_with_a_parent_that_is_killed(federation):
    settings = {**federation.settings, "strategy": "local", "rounds": 500, "models": "mlp"}
    code = (
        "import json, sys\nfrom isoproto.cli.main import _client_app\nfrom isoproto.engines.in_process import "
        "task_identity\nfrom isoproto.engines.workers import WorkerGrid\nfrom server_app.app import run_federation\n"
        "if __name__ == '__main__':\n    with task_identity(), WorkerGrid(_client_app, 4, 2) as grid:\n"
        "        run_federation(grid, json.loads(sys.argv[1]))\n"
    )
    script = federation.folder / "run.py"
    script.write_text(code)
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    parent = subprocess.Popen(
        [sys.executable, str(script), json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
    )
    metrics = federation.folder / "runs"
    deadline = time.monotonic() + 60
    while not any('"kind": "round"' in path.read_text() for path in metrics.glob("*/metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert (len(gone) >= 2, alive) == (True, [])
