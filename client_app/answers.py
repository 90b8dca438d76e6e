"""What every answer of a client is made of: the reply, and the view of what the server sent."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from flwr.app import RecordDict
from torch import nn

from client_app.client import Client
from client_app.in_frame import in_frame
from isoproto import wire
from isoproto.parts import OwnMeans, View


class Reply(NamedTuple):
    """A reply, and the function that saves the model; call it before sending the reply."""

    content: RecordDict
    save: Callable[[], None]


def view_of(
    client: Client, broadcast: wire.Broadcast, own_means: OwnMeans | None, modules: Mapping[str, nn.Module]
) -> View:
    """Return what the client has when a round begins.

    Args:
        client: The client.
        broadcast: What the server sent.
        own_means: The client's class means; ``None`` if no part needs them, or it has no model.
        modules: Modules that parts keep on the client, by name.
    """
    return View(
        client=client.name,
        server_round=broadcast.server_round,
        frame=client.config.frame,
        arrays=broadcast.arrays,
        own_means=own_means,
        num_classes=client.num_classes,
        feature_dim=client.spec.feature_dim,
        device=client.device,
        modules=modules,
        samples=in_frame(client, broadcast.experiment),
    )
