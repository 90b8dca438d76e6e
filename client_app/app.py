"""The ClientApp: decode a message, call plain functions, encode the reply."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.client import Client
from client_app.hosted import Work, WorkInSteps, answer_for_all, as_partition, hosted_partitions, introduce_all
from client_app.in_frame import frame_name
from client_app.introduction import introduce
from client_app.leaving import errors_without_paths, log_what_leaves
from client_app.local_round import examine_client, round_in_steps, train_client
from isoproto import wire
from isoproto.engines.host import Host, flower_host
from isoproto.errors import WireError

# A simulation runs one worker per core. With more threads in each, small models train much slower.
torch.set_num_threads(1)


def make_app(host_of: Callable[[], Host]) -> ClientApp:
    """Return a ClientApp for the clients of a host.

    Args:
        host_of: Says for each message whether this process simulates clients. It gets nothing of the message or the
            context, so a server cannot make a real device believe that it is simulated.
    """
    made = ClientApp()

    @made.query()
    def query(message: Message, context: Context) -> Message:
        """Tell the server who this client is and which data it has."""
        host = host_of()
        with errors_without_paths(host):
            return answer_query(message, context, host)

    @made.train()
    def train_round(message: Message, context: Context) -> Message:
        """Evaluate, train, evaluate again, measure class means, and save the model."""
        host = host_of()
        with errors_without_paths(host):
            return answer(message, context, host, train_client, round_in_steps)

    @made.evaluate()
    def evaluate_round(message: Message, context: Context) -> Message:
        """Evaluate the client's own model as it stands after the round."""
        host = host_of()
        with errors_without_paths(host):
            return answer(message, context, host, examine_client)

    return made


app = make_app(flower_host)


def answer_query(message: Message, context: Context, host: Host) -> Message:
    """Introduce this node's client, or all clients of the node in a simulation with fewer nodes than clients."""
    settings, node = wire.read_query(message.content).settings, context.node_config
    clients = int(settings.get("clients", 0))
    if not (clients and host.worker):
        client = Client.of(settings, node, context.node_id, host)
        return Message(wire.write_client_info(introduce(client)), reply_to=message)
    parts = introduce_all(
        hosted_partitions(node, clients),
        lambda partition: Client.of(settings, as_partition(node, partition, clients), context.node_id, host),
    )
    return Message(wire.join(parts), reply_to=message)


def answer(message: Message, context: Context, host: Host, work: Work, steps: WorkInSteps | None = None) -> Message:
    """Answer for this node's client, or for all clients that the message names.

    Args:
        message: The server's message.
        context: The node's context.
        host: Whether the node is simulated. A real device answers for itself alone.
        work: Runs one client and returns its reply.
        steps: Does the same as a generator, for clients that train together.
    """
    node = context.node_config
    hosted = wire.read_hosted(message.content)
    if not hosted:
        client, broadcast = _decode(message, node, context.node_id, host)
        reply = work(client, broadcast)
        reply.save()
        if not host.simulated:
            log_what_leaves(broadcast, reply.content)
        return Message(reply.content, reply_to=message)
    if not host.worker:
        raise WireError(
            f"the server wants an answer for partitions {hosted!r:.200}; a real node answers for itself alone"
        )
    clients = int(wire.read_settings(message.content).get("clients", 0))
    parts = answer_for_all(
        hosted,
        lambda partition: _decode(message, as_partition(node, partition, clients), context.node_id, host),
        work,
        steps,
    )
    return Message(wire.join(parts), reply_to=message)


def _decode(message: Message, node: Mapping[str, Any], node_id: int, host: Host) -> tuple[Client, wire.Broadcast]:
    """Return the client that a message is for, and what the server sent to it."""
    client = Client.of(wire.read_settings(message.content), node, node_id, host)
    _, frame_dim = frame_name(client)
    broadcast = wire.read_broadcast(
        message.content, num_classes=client.num_classes, feature_dim=client.config.feature_dim, frame_dim=frame_dim
    )
    return client, broadcast
