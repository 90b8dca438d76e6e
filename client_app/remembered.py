"""What parts remember on the client between rounds, and the messages that depend on it."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from client_app.client import Client
from isoproto.parts import View

_log = logging.getLogger("isoproto")


class Answers(NamedTuple):
    """What parts send, and the function that saves what they remember; call it before sending."""

    arrays: dict[str, Tensor]
    save: Callable[[], None]


def answers(client: Client, experiment: str, view: View) -> Answers:
    """Let the parts that remember something answer the server.

    Args:
        client: The client.
        experiment: Id of the experiment.
        view: What the server sent.

    Raises:
        StateError: If what a part remembers cannot be read.
    """
    arrays: dict[str, Tensor] = {}
    saves: list[Callable[[], None]] = []
    for part in client.parts if len(client.data.train_y) else ():
        if not part.remembers:
            continue
        store = client.store(experiment)
        memory = store.recall(part.remembers)
        answer = part.answer(view, memory)
        arrays |= answer.arrays
        if answer.problem:
            _log.warning("round %d, client %s: %s", view.server_round, client.name, answer.problem)
        if answer.memory is not memory:
            saves.append(store.prepare_memory(part.remembers, answer.memory))

    def save() -> None:
        for each in saves:
            each()

    return Answers(arrays, save)
