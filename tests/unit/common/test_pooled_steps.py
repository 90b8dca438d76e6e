"""What a client remembers of pooled statistics, and how it answers a server that errs or lies."""

import numpy as np
import pytest
import torch

from isoproto.common.pooled import Packing, vector_length
from isoproto.errors import WireError
from isoproto.parts.base import Sent
from isoproto.parts.pooled_client import Memory, Own, answer
from isoproto.parts.pooled_fields import Step, id_of
from isoproto.parts.pooled_server import Pool, fold_secure
from isoproto.secure import client as secure_client

LENGTH = vector_length(2, 1)


def own(client, digest=1, values=1, multiplier=0.0):
    vector = np.full(LENGTH, values, dtype=np.int64)
    return Own(
        client=client,
        digest=digest,
        width=1,
        num_classes=2,
        packing=Packing(1.0, multiplier),
        packed=lambda: vector,
        minimum=2,
    )


class Clients:
    """Clients without Flower, and the server's pool."""

    def __init__(self, *names):
        self.pool, self.memory, self.round = Pool.empty().begun(1), {name: {} for name in names}, 1

    def turn(self, owns, edit=lambda client, arrays: arrays):
        """Let the clients answer, and the server fold; ``edit`` changes what a client sends."""
        sent = []
        for each in owns:
            found = answer(each, self.pool.downlink(), self.memory[each.client])
            self.memory[each.client] = {name: tensor.clone() for name, tensor in found.memory.items()}
            sent.append(Sent(None, 0.0, edit(each.client, dict(found.arrays)), {}, each.client))
        self.round += 1
        folded = fold_secure(self.pool, sent, num_classes=2, minimum=2, server_round=self.round)
        self.pool = folded.pool
        return folded

    def sum(self, owns):
        for _ in range(4):
            folded = self.turn(owns)
        return folded


def test_a_second_sum_adds_the_difference():
    clients = Clients("a", "b", "c")
    clients.sum([own("a", values=3), own("b", values=5), own("c", values=7)])
    assert clients.pool.pool_total.tolist() == [15] * LENGTH
    clients.sum([own("a", digest=2, values=-4), own("b", digest=2, values=6), own("c", values=7)])
    assert clients.pool.pool_total.tolist() == [-4 + 6 + 7] * LENGTH
    assert sorted(clients.pool.pool_since.tolist()) == [1, 5, 5]
    assert clients.pool.releases == 2


def test_memory_survives_being_written_down():
    clients = Clients("a", "b")
    for _ in range(3):
        clients.turn([own("a"), own("b")])
        for memory in clients.memory.values():
            again = Memory.of(memory).to_arrays()
            assert again.keys() == memory.keys()
            assert all(again[name].equal(memory[name]) for name in memory)


def test_a_server_that_forgot_a_sum_gets_nothing_it_could_compare():
    """The server goes back to before two sums. The client remembers only what was before the last one."""
    clients = Clients("a", "b")
    clients.sum([own("a"), own("b")])
    clients.sum([own("a", digest=2), own("b", digest=2)])
    found = answer(own("a", digest=3), Pool.empty().begun(9).downlink(), clients.memory["a"])
    assert "the client remembers 1 and 5" in found.problem
    assert not found.arrays
    assert found.memory is clients.memory["a"]


def test_a_server_that_went_back_by_one_sum_goes_on():
    clients = Clients("a", "b")
    clients.sum([own("a", values=3), own("b", values=4)])
    clients.pool = Pool.empty().begun(9)
    clients.sum([own("a", values=3), own("b", values=4)])
    assert clients.pool.pool_total.tolist() == [7] * LENGTH


def test_a_client_that_has_nothing_to_say_says_nothing():
    clients = Clients("a", "b")
    folded = clients.turn([own("a", digest=0), own("b")])
    assert folded.pool.step == Step.KEYS
    assert not folded.failed


@pytest.mark.parametrize(("step", "array"), [(Step.SHARES, "secure-ids"), (Step.VECTOR, "secure-shared")])
def test_a_message_without_its_tables_is_no_secret_given_away(step, array):
    clients = Clients("a", "b")
    clients.turn([own("a"), own("b")])
    sent = {**Pool.empty().downlink(), "pool-plan": torch.tensor([step, 1])}
    found = answer(own("a"), sent, clients.memory["a"])
    assert f"lacks the array '{array}'" in found.problem
    assert not found.arrays


def test_an_unknown_step_is_an_error():
    with pytest.raises(WireError, match=r"expected a step from 0 to 4, got 9"):
        answer(own("a"), {**Pool.empty().downlink(), "pool-plan": torch.tensor([9, 1])}, {})


def test_another_table_for_the_same_step_is_refused():
    """Two vectors under different masks could be compared."""
    clients = Clients("a", "b", "c")
    owns = [own("a"), own("b"), own("c")]
    clients.turn(owns)
    clients.turn(owns)
    before = clients.pool
    clients.turn(owns)
    forged = {**before.downlink(), "secure-rows": before.secure_rows ^ 1}
    found = answer(owns[0], forged, clients.memory["a"])
    assert found.problem
    assert "secure-masked" not in found.arrays


def test_a_client_of_another_width_is_not_in_the_sum():
    clients = Clients("a", "b", "c")
    widths = {"a": 1, "b": 1, "c": 2}
    edited = lambda client, arrays: {**arrays, "secure-width": torch.tensor([widths[client]])}  # noqa: E731
    clients.turn([own("a"), own("b"), own("c")], edited)
    assert set(clients.pool.secure_ids.tolist()) == {id_of("a"), id_of("b")}


def test_one_who_blames_and_the_blamed_are_left_out():
    clients = Clients("a", "b", "c", "d")
    owns = [own(name) for name in "abcd"]
    clients.turn(owns)
    clients.turn(owns)
    blame = torch.tensor([id_of("b")])
    folded = clients.turn(owns, lambda client, arrays: {"secure-blamed": blame} if client == "a" else arrays)
    assert set(folded.left_out) == {"a", "b"}
    clients.sum(owns)
    assert clients.pool.pool_total.tolist() == [2] * LENGTH
    assert set(clients.pool.pool_members.tolist()) == {id_of("c"), id_of("d")}


def test_one_whose_shares_do_not_give_its_secret_back_is_left_out(monkeypatch):
    """Its shares have fitting marks, so only the server's last step shows it. The others' next sum is without it."""
    deal = secure_client._deal

    def lying(state, circle, me):
        dealt = deal(state, circle, me)
        return dealt._replace(seal=dealt.seal ^ 1) if state.client == id_of("a") else dealt

    monkeypatch.setattr(secure_client, "_deal", lying)
    clients = Clients("a", "b", "c")
    owns = [own(name) for name in "abc"]
    folded = clients.sum(owns)
    assert "do not give its secret back" in folded.failed
    assert set(folded.left_out) == {"a"}
    clients.sum(owns)
    assert set(clients.pool.pool_members.tolist()) == {id_of("b"), id_of("c")}
    assert clients.pool.releases == 2  # the masks of the failed sum may have come off for somebody


def test_a_sum_with_too_few_answers_fails_and_accuses_nobody():
    clients = Clients("a", "b", "c")
    owns = [own(name) for name in "abc"]
    for _ in range(3):
        clients.turn(owns)
    folded = clients.turn(owns[:1])
    assert "revealed their shares" in folded.failed
    assert not folded.left_out
    clients.sum(owns)
    assert clients.pool.pool_total.tolist() == [3] * LENGTH


def test_a_stranger_cannot_blame():
    clients = Clients("a", "b", "c")
    owns = [own("a"), own("b")]
    clients.turn(owns)
    blame = {"secure-blamed": torch.tensor([id_of("a")])}
    sent = [Sent(None, 0.0, blame, {}, "c")]
    folded = fold_secure(clients.pool, sent, num_classes=2, minimum=2, server_round=3)
    assert not folded.left_out
    assert not len(folded.pool.pool_left_out)


def test_noise_of_the_secure_sum_is_new_in_every_sum():
    clients = Clients("a", "b")
    clients.sum([own("a", multiplier=1.0), own("b", multiplier=1.0)])
    first = Memory.of(clients.memory["a"]).pending.vector
    clients.sum([own("a", digest=2, multiplier=1.0), own("b", digest=2, multiplier=1.0)])
    second = Memory.of(clients.memory["a"]).pending.vector
    assert not bool((first == second).any())
