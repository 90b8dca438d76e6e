import pytest
from flwr.app import Error, Message, RecordDict

from isoproto.errors import FederationError
from isoproto.in_process import InProcessGrid
from strategies.grid import PromptGrid

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
