"""The common frame in whole federations: clients that come late, go, grow or send nonsense, and a server that dies."""

import numpy as np
import pytest
import torch

from isoproto.common.classifier import solve
from isoproto.common.statistics import total
from isoproto.parts.common_state import CommonState
from isoproto.runs.checkpoint import load_checkpoint
from tests import fakes
from tests.conftest import Federation
from tests.fakes import Killed, When, write_pictures

FRAME = {
    "strategy": "local",
    "common.map": "standard",
    "common.dim": 12,
    "common.features": 4,
    "common.copies": 1,
    "models": "cnn",
    "rounds": 5,
}
FIXED = {**FRAME, "common.shrink": 0.1, "common.temperature": 0.5}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pictures):
    """A run that nothing happens to."""
    from isoproto.engines.in_process import task_identity

    with task_identity():
        return Federation(tmp_path_factory.mktemp("whole"), pictures).run(settings=FRAME)


def kept(run):
    """Return what the server keeps of the common frame."""
    checkpoint = load_checkpoint(run.path / "checkpoint")
    memory = {n.removeprefix("memory."): t for n, t in checkpoint.tensors.items() if n.startswith("memory.")}
    return CommonState.of(memory)


def assert_same(one, other, *, networks=True):
    """Compare two runs' states to the last bit. Checksums of data differ between experiments.

    ``networks`` says whether the clients' networks are the same in both, which the mixtures depend on.
    """
    assert one.blocks.keys() == other.blocks.keys() == one.digests.keys() == other.digests.keys()
    for key, block in one.blocks.items():
        assert all(map(torch.equal, block[:4], other.blocks[key][:4])), key
    for name in ("present", "rows", "start", "everything", *(["mixtures"] if networks else [])):
        assert getattr(one, name).equal(getattr(other, name)), name
    for name in ("first", "shrink", "temperature", "chosen_of", "steps", "worse"):
        assert getattr(one, name) == getattr(other, name), name


def interrupted(federation, *faults, settings=FRAME, grid=None):
    with pytest.raises(Killed):
        federation.run(grid or federation.grid(*faults), settings)
    return federation.newest()


def blocks_of(reply):
    return [int(v) for v in reply["arrays"]["common-block"].numpy()] if "common-block" in reply["arrays"] else []


# What a run sends, and when


def test_each_client_sends_its_statistics_once(federation):
    grid = federation.grid()
    run = federation.run(grid, FRAME)
    kinds = {
        (server_round, client): blocks_of(reply)[1:]
        for (kind, server_round, client), reply in grid.history.items()
        if kind == "train"
    }
    assert all(kinds[1, client] == [0] and kinds[2, client] == [1] for client in range(4))
    assert all(kinds[r, client] == [] for r in (3, 4, 5) for client in range(4))
    state = kept(run)
    assert set(state.blocks) == {(kind, str(c)) for kind in ("fit", "held") for c in range(4)}
    (wanted,) = solve(total(list(state.blocks.values()), 4, 16), [state.shrink])
    torch.testing.assert_close(state.everything, wanted.rows)


def test_all_of_a_clients_samples_are_in_its_statistics(whole):
    state = kept(whole)
    for line in whole.of("client", round=5):
        counts = [int(state.blocks[kind, line["client"]].counts.sum()) for kind in ("fit", "held")]
        assert counts[0] == line["samples"]
        assert 1 <= counts[1] <= 0.1 * sum(counts) + 1


def test_every_predictor_is_counted_and_nobody_fails(whole):
    assert not whole.failures()
    assert whole.summary["predictors"].keys() == {"head", "common", "own", "joint", "alone"}
    for line in whole.of("evaluation"):
        for client in line["clients"]:
            assert client["correct"] - client["predictors"]["alone"] == client["gained"] - client["lost"]


def test_replies_in_another_order_change_nothing(federation, whole):
    run = federation.run(federation.grid(shuffle=lambda n: reversed(range(n))), FRAME)
    assert_same(kept(run), kept(whole))


# A server that dies


@pytest.mark.parametrize(("kind", "server_round"), [("train", 2), ("train", 3), ("train", 5), ("evaluate", 5)])
def test_a_server_that_dies_goes_on_as_if_it_had_not(federation, whole, kind, server_round):
    broken = interrupted(federation, (fakes.killed(after=True), When(kind, [server_round])))
    run = federation.run(settings={"resume": broken.path.name})
    assert_same(kept(run), kept(whole))
    assert [li["accuracy"] for li in run.of("round")] == [li["accuracy"] for li in whole.of("round")]


def test_a_run_in_progress_cannot_be_resumed_by_another_process(federation):
    told = []

    def resumed_meanwhile(content):
        with pytest.raises(Exception, match=r"goes on in another process") as refused:
            federation.run(settings={"resume": federation.newest().path.name})
        told.append(refused)

    federation.run(federation.grid((fakes.altered(resumed_meanwhile), When("train", [2], [0]))), FRAME)
    assert told


# Clients that come late, go, and grow


def test_a_late_client_ends_where_it_would_have_been(federation, tmp_path, pictures):
    """Its statistics come in round 3. With nothing to choose and no gradients, nobody can tell afterwards."""
    settings = {**FIXED, "common.rounds": 0}
    run = federation.run(settings={**settings, "join-late": 0.25, "join-round": 3})
    at_once = Federation(tmp_path / "at-once", pictures).run(settings=settings)
    late = [c["client"] for c in run.of("evaluation")[0]["clients"] if c["late"]]
    assert len(late) == 1
    assert late[0] not in run.cohorts()[1]
    assert_same(kept(run), kept(at_once), networks=False)


def test_a_late_client_starts_the_gradient_steps_anew(federation):
    run = federation.run(settings={**FIXED, "join-late": 0.25, "join-round": 5})
    assert kept(run).steps == 0
    assert len(kept(run).rows) == 1


def test_a_client_that_is_lost_midway_stays_in_the_sum(federation, whole):
    grid = federation.grid(away=lambda client, newest: client == 2 and newest >= 3)
    run = federation.run(grid, FRAME)
    assert "2" not in run.cohorts()[4]
    state = kept(run)
    for kind in ("fit", "held"):
        assert torch.equal(state.blocks[kind, "2"].sums, kept(whole).blocks[kind, "2"].sums)
    (wanted,) = solve(total(list(state.blocks.values()), 4, 16), [state.shrink])
    torch.testing.assert_close(state.everything, wanted.rows)


def test_a_lost_reply_is_sent_again(federation):
    settings = {**FIXED, "common.rounds": 0}
    grid = federation.grid((fakes.lost, When("train", [1, 2], [1])))
    run = federation.run(grid, {**settings, "round-timeout": 2.0})
    assert set(run.failures()) == {(1, "1"), (2, "1")}
    assert {key for key in kept(run).blocks if key[1] == "1"} == {("fit", "1"), ("held", "1")}


@pytest.mark.parametrize("killed", [False, True], ids=["restarted", "server-killed-too"])
def test_data_that_grew_replace_what_the_client_sent_before(federation, tmp_path, killed):
    """Client 1 has twice the samples after round 2. It ends as if it had had them from the start."""
    less, more = (write_pictures(tmp_path / f"{n}.npz", samples=n) for n in (120, 240))
    settings = {**FIXED, "common.rounds": 0, "partition": "iid"}

    def grow(grid, message, honest):
        reply = honest()
        grid.context(1).node_config["data"] = f"npz:{more}"
        grid.restart(1)
        return [reply]

    faults = [(grow, When("train", [2], [1])), (fakes.killed(after=True), When("train", [4] if killed else []))]
    grid = federation.grid(*faults, node_configs={1: {"data": f"npz:{less}"}})
    if killed:
        broken = interrupted(federation, grid=grid, settings=settings)
        grid = federation.grid(node_configs={1: {"data": f"npz:{more}"}})
        run = federation.run(grid, {"resume": broken.path.name})
    else:
        run = federation.run(grid, settings)
    counts = {line["round"]: line["samples"] for line in run.of("client", client="1")}
    assert counts[5] > 1.5 * counts[2]
    other = Federation(tmp_path / "other", federation.settings["data"].removeprefix("npz:"))
    from_the_start = other.run(other.grid(node_configs={1: {"data": f"npz:{more}"}}), settings)
    assert not run.failures()
    assert_same(kept(run), kept(from_the_start), networks=False)


# Hostile replies


def test_a_hostile_client_fails_alone(federation):
    """Sums of one class too few, temperatures too many, a reply that is not finite: the round goes on without it."""
    from flwr.app import Array

    def edited(name, values):
        def edit(content):
            if name in content["arrays"]:
                content["arrays"][name] = Array(values(content["arrays"][name].numpy()))

        return fakes.altered(edit)

    grid = federation.grid(
        (edited("common-sums", lambda sums: sums[:-1]), When("train", [1], [0])),
        (edited("common-losses", lambda losses: np.repeat(losses, 2, axis=1)), When("train", [2], [1])),
        (edited("common-gradient", lambda gradient: gradient * np.nan), When("train", None, [2])),
    )
    run = federation.run(grid, FRAME)
    reasons = run.failures()
    assert "array 'common-ids'" in reasons[1, "0"]
    assert "array 'common-losses': expected 5 temperatures, got 10" in reasons[2, "1"]
    assert any(
        "array 'common-gradient' holds NaN" in reason for (_, client), reason in reasons.items() if client == "2"
    )
    assert run.summary["status"] == "completed"
    assert len(kept(run).blocks) == 8
