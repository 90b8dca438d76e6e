"""What a deployment must survive besides a node's death (test_edge.py): a cut line, and the death of its SuperLink."""

import contextlib
import itertools
import json
from pathlib import Path

import pytest
import safetensors

from tests.e2e.deployment import Deployment, missed, node, trained, until_at_work
from tests.e2e.line import Line
from tests.e2e.processes import alive, kill, lines, rounds_done, runs_of, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

MODELS = {"node-0": "resnet", "node-1": "cnn"}
# A round waits for a node that is gone until the SuperLink misses it, not until this.
TIMEOUT = "round-timeout=180.0"


def test_a_node_that_is_cut_off_is_left_out_until_it_is_back(tmp_path: Path, pictures: Path) -> None:
    rounds = 10
    there = Deployment(tmp_path, MODELS, pictures)
    with there.superlink(), Line(there.port) as line, contextlib.ExitStack() as stack:
        there.connect()
        there.ours("keys", "enrol")
        stack.enter_context(node(there.configure("node-0", there.port)))
        config = there.configure("node-1", line.port)
        lost = stack.enter_context(node(config))
        federation, folder = stack.enter_context(there.run(f"rounds={rounds} {TIMEOUT}"))
        until(lambda: rounds_done(folder) >= 1, 300, "round 1", federation)
        until_at_work(config, lost)
        line.cut()
        at = rounds_done(folder)
        mine = tmp_path / "node-1" / "state" / "models"
        (model,) = until(lambda: list(mine.rglob(f"round-{at + 1:06d}.*")), 120, "node-1 at the end of its work", lost)
        with safetensors.safe_open(model, "pt") as file:
            _, correct, total = json.loads(file.metadata()["note"])
        # The round in which it was lost, and one that begins without it.
        until(lambda: missed(folder, "node-1", at) >= {at + 1, at + 2}, 240, "two rounds without node-1", federation)
        line.mend()
        until(lambda: trained(folder, "node-1")[-1]["round"] > at, 240, "node-1 again", federation)
        federation.wait(400)
        assert lost.poll() is None, "node-1 comes back by itself"

    assert json.loads((folder / "summary.json").read_text())["status"] == "completed", there.log
    told = [(line["round"], line["client"], line["reason"]) for line in lines(folder, "failure")]
    assert told == [(at + 1, "node-1", "its node went away: the SuperLink does not hear from it any more")]
    # Once it is back it misses no round, and the other one never did.
    first, back = (trained(folder, "node-1")[i] for i in (0, at))
    assert missed(folder, "node-1", 0) == set(range(at + 1, back["round"]))
    assert not missed(folder, "node-0", 0)
    # It goes on from the model of the round that it finished alone.
    assert back["accuracy"]["before"] == correct / total != first["accuracy"]["before"]
    assert back["loss"]["cross_entropy"] < first["loss"]["cross_entropy"]


def test_a_run_goes_on_after_its_superlink_was_killed(tmp_path: Path, pictures: Path) -> None:
    rounds = 5
    there = Deployment(tmp_path, MODELS, pictures)

    def broken() -> bool:
        return runs_of(there.environment, tmp_path / "link", "isoproto")[0]["status"] == "finished:failed"

    with contextlib.ExitStack() as stack:
        link = stack.enter_context(there.superlink())
        there.connect()
        there.ours("keys", "enrol")
        configs = [there.configure(name, there.port) for name in MODELS]
        nodes = [stack.enter_context(node(config)) for config in configs]
        federation, folder = stack.enter_context(there.run(f"rounds={rounds} {TIMEOUT}"))
        until(lambda: rounds_done(folder) >= 2, 300, "round 2", federation)
        until_at_work(configs[0], nodes[0])
        killed = kill(link.pid)  # with the ServerApp, as a power cut does
        assert not alive(killed)
        at = rounds_done(folder)
        before = [line for line in lines(folder) if line["round"] <= at]
        assert at < rounds, "the run was over before its SuperLink was killed"

        link = stack.enter_context(there.superlink())
        until(broken, 240, "the end of the broken run", link)
        there.ours("resume", folder.name.rpartition("-")[2], "--connection", "isoproto", limit_s=400)
        assert [one.poll() for one in nodes] == [None, None], "nodes come back by themselves"
        now = json.loads(there.ours("status", "--json", "--connection", "isoproto"))
        assert {one["client"]: one["online"] for one in now["clients"]} == dict.fromkeys(MODELS, True)

    assert json.loads((folder / "summary.json").read_text())["status"] == "completed", there.log
    assert lines(folder)[: len(before)] == before
    assert [line["round"] for line in lines(folder, "round")] == list(range(1, rounds + 1))
    assert not lines(folder, "failure")
    for name in MODELS:
        mine = trained(folder, name)
        assert [line["round"] for line in mine] == list(range(1, rounds + 1))
        # In the round that was broken off it had trained, or not; it was done again from the same model.
        for earlier, later in itertools.pairwise(mine):
            assert later["accuracy"]["before"] == earlier["accuracy"]["after"], f"{name} lost its model"
