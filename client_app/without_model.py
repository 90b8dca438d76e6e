"""The round of a client without a model, `model = "none"`: it takes part by the common frame alone.

Such a client builds, trains and saves no network. It sends what parts measure of its samples in the common frame, and
class means of no class. It predicts with everybody's classifier and its own one in that frame.
"""

import time

import torch

from client_app.answers import Reply, view_of
from client_app.client import Client
from client_app.evaluation import evaluate_in_frame
from client_app.remembered import answers
from isoproto import wire
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import reported_terms


def answer_round(client: Client, broadcast: wire.Broadcast) -> Reply:
    """Evaluate, measure what parts ask for, and make the reply. What parts remember is to be saved."""
    started = time.perf_counter()
    view, data, parts = view_of(client, broadcast, None, {}), client.data, client.parts
    tested = evaluate_in_frame(data, view)
    samples = len(data.train_y)
    arrays = {name: array for part in parts for name, array in part.measure_in_frame(view).items()} if samples else {}
    remembered = answers(client, broadcast.experiment, view)
    no_class = torch.zeros(0, dtype=torch.int64)
    reply = wire.TrainReply(
        means=ClassRows(no_class, torch.zeros(0, view.feature_dim), no_class, samples),
        scatter=0.0,
        losses=dict.fromkeys(reported_terms(parts), 0.0),
        before=tested,
        after=tested,
        seconds=time.perf_counter() - started,
        arrays={**arrays, **remembered.arrays},
    )
    return Reply(wire.write_train_reply(reply, broadcast, client.name), remembered.save)


def examine(client: Client, broadcast: wire.Broadcast) -> Reply:
    """Evaluate what the client predicts with after the round."""
    evaluation = evaluate_in_frame(client.data, view_of(client, broadcast, None, {}))
    return Reply(wire.write_evaluate_reply(evaluation, broadcast, client.name), _nothing_to_save)


def _nothing_to_save() -> None:
    """Do nothing: an evaluation changes nothing."""
