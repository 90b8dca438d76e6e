"""The in-process grid, and the fakes that stand on it."""

import time

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from isoproto.engines.in_process import InProcessGrid, task_identity
from isoproto.engines.prompt_grid import PromptGrid
from tests import fakes
from tests.fakes import FaultyGrid, When

echo = ClientApp()


@echo.train()
def train(message, context):
    if message.content["config"].get("round") == 13:
        raise ValueError("no\nluck")
    context.state["seen"] = ConfigRecord({"round": message.content["config"]["round"]})
    mine = {**message.content["config"], "partition": context.node_config["partition-id"]}
    return Message(RecordDict({"config": ConfigRecord(mine)}), reply_to=message)


@pytest.fixture(autouse=True)
def _identity():
    with task_identity():
        yield


def message(grid, node, server_round=1):
    content = RecordDict({"config": ConfigRecord({"round": server_round})})
    return grid.create_message(content, "train", node, "1")


def ask(grid, *rounds, timeout=None):
    nodes = list(grid.get_node_ids())
    rounds = rounds or [1] * len(nodes)
    return list(
        grid.send_and_receive([message(grid, n, r) for n, r in zip(nodes, rounds, strict=True)], timeout=timeout)
    )


def partitions(replies):
    return [reply.content["config"]["partition"] for reply in replies]


def test_each_node_answers_for_its_partition():
    grid = InProcessGrid(echo, 3, {"model": "cnn"})
    replies = ask(grid)
    assert partitions(replies) == [0, 1, 2]
    assert [reply.metadata.src_node_id for reply in replies] == list(grid.get_node_ids())
    assert set(grid.get_node_ids()).isdisjoint(range(3))


def test_messages_pass_through_serialisation():
    """What a client does to the content it got never reaches the server's copy."""
    grid = InProcessGrid(echo, 1)
    sent = message(grid, next(iter(grid.get_node_ids())))
    (reply,) = grid.send_and_receive([sent])
    reply.content["config"]["round"] = 99
    assert sent.content["config"]["round"] == 1


def test_an_app_that_raises_is_an_error_reply_with_its_words():
    grid = InProcessGrid(echo, 2)
    bad, good = ask(grid, 13, 1)
    assert bad.has_error()
    assert bad.error.reason.startswith("ValueError: no\nluck (test_in_process.py:")
    assert not good.has_error()


def test_replies_are_pulled_once():
    grid = InProcessGrid(echo, 1)
    ids = list(grid.push_messages([message(grid, next(iter(grid.get_node_ids())))]))
    assert len(list(grid.pull_messages(ids))) == 1
    assert list(grid.pull_messages(ids)) == []


def test_the_identity_is_given_back():
    before = TaskIdentity._task_id
    with task_identity():
        pass
    assert TaskIdentity._task_id == before


# The prompt grid


def test_prompt_grid_gathers_replies_until_all_are_there():
    grid = FaultyGrid(echo, 3, [(fakes.delayed(0.05), When(clients=[1]))])
    started = time.monotonic()
    assert sorted(partitions(ask(PromptGrid(grid), timeout=5))) == [0, 1, 2]
    assert 0.05 <= time.monotonic() - started < 2


def test_prompt_grid_gives_up_at_its_limit():
    grid = FaultyGrid(echo, 3, [(fakes.dropped, When(clients=[1]))])
    started = time.monotonic()
    assert sorted(partitions(ask(PromptGrid(grid), timeout=0.1))) == [0, 2]
    assert 0.1 <= time.monotonic() - started < 2


def test_prompt_grid_with_nothing_to_send_returns_at_once():
    assert list(PromptGrid(FaultyGrid(echo, 1)).send_and_receive([], timeout=60)) == []


def test_prompt_grid_does_not_sleep_after_a_long_round_in_one_process(monkeypatch):
    """Messages are answered while they are sent, so a first round that takes long says nothing of the next one."""
    slow = ClientApp()

    @slow.train()
    def answer(message, context):
        time.sleep(0.2 if message.content["config"]["round"] == 1 else 0)
        return Message(RecordDict({"config": ConfigRecord({"partition": 0})}), reply_to=message)

    grid = PromptGrid(InProcessGrid(slow, 2))
    ask(grid, 1, 1)
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    ask(grid, 2, 2)
    assert sum(slept) < 0.01


# The fakes


def test_faulty_grid_without_faults_is_the_grid():
    grid = FaultyGrid(echo, 3)
    assert partitions(ask(grid)) == [0, 1, 2]
    assert grid.sent == [("train", 1, 0), ("train", 1, 1), ("train", 1, 2)]


def test_a_fault_befalls_whom_it_should():
    fault = fakes.altered(lambda content: content["config"].update({"partition": 9}))
    grid = FaultyGrid(echo, 3, [(fault, When("train", [1], [2]))])
    assert partitions(ask(grid)) == [0, 1, 9]
    assert partitions(ask(grid, 2, 2, 2)) == [0, 1, 2]


def test_a_reply_can_come_twice_or_from_elsewhere():
    grid = FaultyGrid(echo, 2, [(fakes.twice, When(clients=[0])), (fakes.from_node(5), When(clients=[1]))])
    assert [reply.metadata.src_node_id for reply in ask(grid)] == [10_000, 10_000, 5, 10_001]


def test_an_old_reply_can_be_replayed():
    grid = FaultyGrid(echo, 1, [(fakes.replayed(1), When(rounds=[2]))])
    ask(grid, 1)
    (reply,) = ask(grid, 2)
    assert reply.content["config"]["round"] == 1


def test_order_of_replies_can_be_turned():
    grid = FaultyGrid(echo, 3, shuffle=lambda n: reversed(range(n)))
    assert partitions(ask(grid)) == [2, 1, 0]


def test_a_node_can_come_late_go_and_come_back_under_another_id():
    grid = FaultyGrid(echo, 2, [(fakes.restarted, When(clients=[0], rounds=[2]))], away=lambda c, r: c == 1 and r < 2)
    first, _ = grid._contexts
    assert partitions(ask(grid, 1)) == [0]
    assert partitions(ask(grid, 2)) == [0]
    assert sorted(partitions(ask(grid, 3, 3))) == [0, 1]
    assert first not in grid.get_node_ids()


def test_the_process_can_die_before_or_after_a_client_worked():
    for after in (False, True):
        grid = FaultyGrid(echo, 1, [(fakes.killed(after=after), When())])
        with pytest.raises(fakes.Killed):
            ask(grid)
        assert bool(grid.history) == after
