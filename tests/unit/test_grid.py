import pytest
from flwr.app import Error, Message, RecordDict

from isoproto.engines.in_process import InProcessGrid
from isoproto.engines.prompt_grid import PromptGrid
from isoproto.errors import FederationError

DEAD = "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before finishing this task.'>"
RAISED = "<class 'flwr.clientapp.client_app.ClientAppException'>:<'ray.exceptions.ActorDiedError'>"


class Worker(InProcessGrid):
    """A grid whose second node answers with an error."""

    def __init__(self, reason: str) -> None:
        super().__init__(lambda message, context: Message(RecordDict(), reply_to=message), 3)
        self.reason = reason

    def answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id != list(self.get_node_ids())[1]:
            return super().answer(message)
        return Message(Error(0, self.reason), reply_to=message)


def send(reason: str) -> list[Message]:
    grid = Worker(reason)
    return list(
        PromptGrid(grid).send_and_receive([Message(RecordDict(), node, "train") for node in grid.get_node_ids()])
    )


@pytest.mark.usefixtures("federation")  # messages need an identity
def test_a_dead_worker_ends_the_run():
    with pytest.raises(FederationError, match=r"a worker of the simulation died while node 10001 .* `isoproto resume`"):
        send(DEAD)


@pytest.mark.usefixtures("federation")
def test_a_client_that_fails_does_not():
    assert sorted(reply.has_error() for reply in send(RAISED)) == [False, False, True]


class Counting(Worker):
    """A grid that gives replies back one at a time, and counts the messages that are out."""

    def __init__(self) -> None:
        super().__init__(RAISED)
        self.out = self.most_out = 0

    def push_messages(self, messages):
        ids = list(super().push_messages(messages))
        self.out += len(ids)
        self.most_out = max(self.most_out, self.out)
        return ids

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(sorted(message_ids)[:1]))
        self.out -= len(replies)
        return replies


@pytest.mark.usefixtures("federation")
@pytest.mark.parametrize(("window", "most_out"), [(None, 9), (2, 2), (20, 9)])
def test_no_more_messages_are_out_than_the_window_holds(window, most_out):
    grid = Counting()
    prompt = PromptGrid(grid)
    prompt.limit(window=window)
    replies = prompt.send_and_receive([Message(RecordDict(), node, "train") for node in [*grid.get_node_ids()] * 3])
    assert len(replies) == 9
    assert grid.most_out == most_out


@pytest.mark.usefixtures("federation")
@pytest.mark.parametrize(("enough", "replies"), [(0, 9), (1, 1), (4, 6), (6, 9)])
def test_enough_replies_without_an_error_end_the_waiting(enough, replies):
    """The replies come one by one, node by node in turn; a third of them are errors."""

    class InTurn(Counting):
        def pull_messages(self, message_ids):
            return super().pull_messages([next(name for name in self.order if name in message_ids)])

        def push_messages(self, messages):
            self.order = list(super().push_messages(messages))
            return self.order

    grid = InTurn()
    prompt = PromptGrid(grid)
    prompt.limit(enough={"train": enough}.get)
    nodes = list(grid.get_node_ids())
    assert len(prompt.send_and_receive([Message(RecordDict(), node, "train") for node in nodes * 3])) == replies


@pytest.mark.usefixtures("federation")
def test_what_the_window_kept_back_when_the_time_is_over_is_not_sent():
    grid = Counting()
    prompt = PromptGrid(grid)
    prompt.limit(window=1)
    assert len(prompt.send_and_receive([Message(RecordDict(), 10_000, "train")] * 5, timeout=0)) == 1


class Slow(Worker):
    """A grid whose replies are there after some seconds of a clock that only sleeping moves."""

    def __init__(self) -> None:
        super().__init__(RAISED)
        self.now, self.pushed, self.takes = 0.0, 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def push_messages(self, messages):
        self.pushed = self.now
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        return super().pull_messages(message_ids) if self.now >= self.pushed + self.takes else []


@pytest.mark.usefixtures("federation")
def test_one_slow_round_does_not_slow_those_behind_it(monkeypatch):
    slow = Slow()
    monkeypatch.setattr("isoproto.engines.prompt_grid.time", slow)
    grid, took = PromptGrid(slow), []
    for slow.takes in [1.6] + [0.1] * 6:
        began = slow.now
        grid.send_and_receive([Message(RecordDict(), node, "train") for node in slow.get_node_ids()])
        took.append(slow.now - began)
    assert took[0] < 1.8
    assert sum(took[1:]) < 6 * 0.1 + 2.3
    assert took[-1] < 0.15
