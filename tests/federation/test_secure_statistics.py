"""The secure sum in whole federations: what the server learns, and clients and servers that go away in each step."""

import functools
import operator

import pytest
import torch

from isoproto.common.pooled import Packing
from isoproto.engines.host import REAL_DEVICE
from isoproto.errors import ConfigError
from isoproto.parts import ServerState
from isoproto.parts.common_state import CommonState
from isoproto.parts.pooled_client import Memory
from isoproto.parts.pooled_fields import id_of
from isoproto.parts.pooled_server import Pool
from isoproto.runs.checkpoint import load_checkpoint
from server_app.forget import forget
from tests import fakes
from tests.conftest import Federation
from tests.fakes import Killed, When, write_pictures

FRAME = {
    "strategy": "isoproto",
    "common.dim": 8,
    "common.features": 8,
    "common.copies": 1,
    "common.rank": 0,
    "common.rounds": 0,
    "models": "mlp",
    "rounds": 5,
}
SECURE = {**FRAME, "common.secure": True, "min-contributors": 2}
LENGTH = 4 + 4 + 4 * 16 + 16 * 17 // 2


def state_of(run):
    return ServerState.from_checkpoint(load_checkpoint(run.path / "checkpoint"))


def pool_of(run):
    return Pool.of(state_of(run))


def kept(run):
    return CommonState.of(state_of(run).memory)


def figures(run):
    """What each round's line says of the secure sum."""
    return [line["hyper"]["secure"] for line in run.of("round")]


def members(run):
    known = {id_of(str(client)): client for client in range(8)}
    return {known[client] for client in pool_of(run).pool_members.tolist()}


def put_of(federation, run, client, settings=SECURE):
    """What a client remembers of its statistics."""
    store = federation.client({"partition-id": client, "num-partitions": 4}, settings).store(run.summary["experiment"])
    return Memory.of(store.recall("statistics"))


def added_up(federation, run, clients):
    """The plain sum of what these clients remember to have put in."""
    return functools.reduce(operator.add, (put_of(federation, run, c).pending.statistics for c in clients))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pictures):
    """A run that nothing happens to, with its federation and grid."""
    from isoproto.engines.in_process import task_identity

    with task_identity():
        federation = Federation(tmp_path_factory.mktemp("secure"), pictures)
        grid = federation.grid()
        yield federation, grid, federation.run(grid, SECURE)


# What comes out


def test_the_sum_is_exact_to_the_last_bit(whole):
    federation, _, run = whole
    assert not run.failures()
    assert members(run) == {0, 1, 2, 3}
    total = pool_of(run).pool_total
    assert total.shape == (LENGTH,)
    assert total.equal(added_up(federation, run, range(4)))


def test_the_classifier_is_that_of_a_run_without_it(whole, tmp_path, pictures):
    _, _, run = whole
    settings = {**FRAME, "common.shrink": kept(run).shrink, "common.temperature": kept(run).temperature}
    plain = kept(Federation(tmp_path, pictures).run(settings=settings))
    torch.testing.assert_close(kept(run).start, plain.start, rtol=1e-6, atol=1e-6 * float(plain.start.abs().max()))
    assert kept(run).present.equal(plain.present)


def test_held_out_samples_choose_and_are_not_in_the_sum(whole):
    _, _, run = whole
    samples = [line["samples"] for line in run.of("client", round=5)]
    assert round(float(kept(run).pooled.totals.counts.sum()), 6) == sum(samples)
    assert kept(run).chosen_of > 0
    assert len(kept(run).mixtures)


def test_a_sum_takes_four_rounds_and_is_not_made_again(whole):
    _, grid, run = whole
    assert [f["waits_for"] for f in figures(run)] == ["shares", "vector", "reveal", "keys", "keys"]
    assert [f["in_sum"] for f in figures(run)] == [0, 0, 0, 4, 4]
    assert not any(name.startswith("secure") for name in grid.history["train", 5, 0]["arrays"])


def test_no_message_holds_a_clients_own_statistics(whole):
    """Only step 3 sends anything as long as the statistics, and in it every number is changed by the masks."""
    federation, grid, run = whole
    for client in range(4):
        own = put_of(federation, run, client).pending
        for server_round in range(1, 6):
            arrays = grid.history["train", server_round, client]["arrays"]
            assert not {"common-block", "common-sums", "common-factor", "common-gradient", "pool-vector"} & set(arrays)
            masked = torch.from_numpy(arrays["secure-masked"].numpy()) if "secure-masked" in arrays else None
            assert (masked is not None) == (server_round == 3)
            if masked is not None:
                assert not bool((masked == own.vector).any())
                assert float(masked.double().abs().mean()) > 2.0**60  # of random words it is 2**62


# Clients that go


@pytest.mark.parametrize(
    ("step", "in_sum", "round_of_sum"), [(1, {1, 2, 3}, 4), (2, {1, 2, 3}, 4), (3, {1, 2, 3}, 4), (4, {0, 1, 2, 3}, 4)]
)
def test_a_client_that_is_away_in_one_step(federation, step, in_sum, round_of_sum):
    grid = federation.grid((fakes.dropped, When("train", [step], [0])))
    run = federation.run(grid, {**SECURE, "rounds": round_of_sum, "round-timeout": 1.0})
    assert run.failures().keys() == {(step, "0")}
    assert members(run) == in_sum
    assert pool_of(run).pool_total.equal(added_up(federation, run, sorted(in_sum)))
    assert figures(run)[-1]["failed"] == ""


def test_one_that_was_left_over_waits_for_company(federation):
    """Client 0 missed the sum. Alone it is not summed, since the difference of two sums would be its own."""
    grid = federation.grid((fakes.dropped, When("train", [1], [0])))
    run = federation.run(grid, {**SECURE, "rounds": 8, "round-timeout": 1.0})
    assert members(run) == {1, 2, 3}
    assert [f["waits_for"] for f in figures(run)][3:] == ["keys"] * 5


def test_two_that_come_late_are_added(federation):
    grid = federation.grid((fakes.dropped, When("train", [1, 2], [0, 1])))
    run = federation.run(grid, {**SECURE, "rounds": 8, "round-timeout": 1.0})
    assert members(run) == {0, 1, 2, 3}
    assert pool_of(run).pool_total.equal(added_up(federation, run, range(4)))
    assert sorted(set(pool_of(run).pool_since.tolist())) == [1, 5]


def test_a_sum_that_fails_starts_again(federation):
    """In step 3 two of four are away: too few holders are left to take the masks off."""
    grid = federation.grid((fakes.dropped, When("train", [3], [0, 1])))
    run = federation.run(grid, {**SECURE, "rounds": 7, "round-timeout": 1.0})
    assert "holders" in figures(run)[2]["failed"]
    assert members(run) == {0, 1, 2, 3}
    assert pool_of(run).pool_since.unique().tolist() == [4]
    assert pool_of(run).pool_total.equal(added_up(federation, run, range(4)))


def spoilt(name):
    """An edit of a reply that changes one byte of an array."""

    def edit(content):
        values = content["arrays"][name].numpy().copy()
        values.flat[0] ^= 1
        content["arrays"][name] = type(content["arrays"][name])(values)

    return fakes.altered(edit)


def test_shares_that_cannot_be_read_leave_both_out(federation):
    """Nobody can tell whether client 0 sent a bad share or its holder says so for nothing. The others go on."""
    grid = federation.grid((spoilt("secure-row"), When("train", [2], [0])))
    run = federation.run(grid, {**SECURE, "rounds": 8})
    out = figures(run)[2]["left_out"]
    assert "0" in out
    assert members(run) == {0, 1, 2, 3} - set(map(int, out))
    assert len(out) <= 2


def test_a_client_that_reveals_another_share_is_named(federation):
    grid = federation.grid((spoilt("secure-answer"), When("train", [4], [2])))
    run = federation.run(grid, {**SECURE, "rounds": 4})
    assert "another share" in figures(run)[3]["left_out"]["2"]
    assert members(run) == {0, 1, 2, 3}  # the others' shares are enough
    assert pool_of(run).pool_total.equal(added_up(federation, run, range(4)))


# Servers that die, and repeated messages


@pytest.mark.parametrize("server_round", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [False, True])
def test_a_server_that_dies_in_a_step(federation, whole, server_round, after):
    grid = federation.grid((fakes.killed(after=after), When("train", [server_round], [2])))
    with pytest.raises(Killed):
        federation.run(grid, SECURE)
    run = federation.run(settings={"resume": federation.newest().path.name})
    assert not run.failures()
    assert pool_of(run).pool_total.equal(pool_of(whole[2]).pool_total)
    assert kept(run).start.equal(kept(whole[2]).start)


def test_a_repeated_message_gets_the_same_bytes(federation):
    """The server dies after all have answered, and asks again: keys, shares, vectors and answers are the same."""
    for server_round in (1, 2, 3, 4):
        grid = federation.grid((fakes.killed(after=True), When("train", [server_round], [3])))
        name = {"resume": federation.newest().path.name} if server_round > 1 else SECURE
        with pytest.raises(Killed):
            federation.run(grid, name)
        again = federation.grid((fakes.killed(after=True), When("train", [server_round], [3])))
        with pytest.raises(Killed):
            federation.run(again, {"resume": federation.newest().path.name})
        for client in range(4):
            one, other = (g.history["train", server_round, client]["arrays"] for g in (grid, again))
            names = [n for n in one if n.startswith("secure")]
            assert names
            assert all((one[n].numpy() == other[n].numpy()).all() for n in names)


def test_a_client_that_lost_its_memory_sends_nothing_more(federation):
    """It cannot tell what it has put in, so any difference would be wrong."""

    def lose(grid, message, honest):
        for path in (federation.folder / "state").glob("*/0/memory-statistics.safetensors"):
            path.unlink()
        return [honest()]

    grid = federation.grid((lose, When("train", [5], [0])))
    run = federation.run(grid, SECURE)
    assert "server has statistics of this client" in (run.path / "log.txt").read_text()
    assert not any(n.startswith("secure") for n in grid.history["train", 5, 0]["arrays"])


def test_data_that_grew_go_in_as_a_difference(federation, tmp_path):
    """Two clients' data grow after the sum. What they put in then adds up to the whole of their new data."""
    less, more = (write_pictures(tmp_path / f"{n}.npz", samples=n) for n in (120, 240))

    def grow(grid, message, honest):
        reply = honest()
        client = grid._partitions[message.metadata.dst_node_id]
        grid.context(client).node_config["data"] = f"npz:{more}"
        grid.restart(client)
        return [reply]

    federation.host = REAL_DEVICE
    owners = {n: {"data-dir": "/", "may-send": "statistics", "state-dir": str(tmp_path)} for n in range(4)}
    grid = federation.grid((grow, When("train", [4], [1, 2])), node_configs=owners)
    run = federation.run(grid, {**SECURE, "data": f"npz:{less}", "partition": "iid", "rounds": 11})
    pool = pool_of(run)
    later = dict(zip(pool.pool_members.tolist(), pool.pool_since.tolist(), strict=True))
    assert [later[id_of(str(c))] == 1 for c in range(4)] == [True, False, False, True]
    samples = [line["samples"] for line in run.of("client", round=11)]
    assert samples[1] > 1.5 * samples[0]
    counts = Packing(4.0).pooled(pool.pool_total.numpy(), 4, 0).totals.counts
    assert round(float(counts.sum()), 6) == sum(samples)


# Devices without a network, and what is refused


def test_devices_without_a_network_take_part(federation):
    grid = federation.grid(node_configs={0: {"model": "none"}})
    run = federation.run(grid, {**SECURE, "rounds": 4})
    assert not run.failures()
    assert members(run) == {0, 1, 2, 3}


def test_a_client_cannot_be_taken_out_of_the_sum(federation, whole):
    _, _, run = whole
    with pytest.raises(ConfigError, match=r"kept only the sum.*client '1' out of it. Start a new run"):
        forget(run.path.parent, run.path.name, "1")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"min-contributors": 1}, "min-contributors = 3"),
        ({"common.rounds": 2}, "common.rounds = 0"),
        ({"fraction": 0.5}, "fraction = 1.0"),
        ({"over-sample": 0.5}, "over-sample = 0.0"),
        ({"strategy": "fedproto", "common.map": "standard"}, "prototypes = 'none'"),
        ({"strategy": "local"}, "strategy = 'isoproto'"),
    ],
)
def test_settings_that_undo_the_secure_sum_are_refused(federation, changed, told):
    with pytest.raises(ConfigError, match=rf"`common.secure = true`.*{told}"):
        federation.run(settings={**SECURE, **changed})
