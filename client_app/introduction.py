"""Tell the server who a client is and which data it has."""

from client_app.client import Client
from client_app.own_model import part_modules, shared_weights, skeleton
from isoproto import wire
from isoproto.data import class_counts
from isoproto.fingerprint import fingerprint, package_folder


def introduce(client: Client) -> wire.ClientInfo:
    """Return what the server has to know of a client before round 1."""
    model = skeleton(client.architecture, client.spec, client.device)
    return wire.ClientInfo(
        client=client.name,
        model=client.architecture,
        feature_dim=model.width,
        classes=client.data.classes,
        train_counts=tuple(class_counts(client.data.train_y, client.num_classes).tolist()),
        test_counts=tuple(class_counts(client.data.test_y, client.num_classes).tolist()),
        domain=client.domain,
        partitions=client.partitions,
        fingerprint=fingerprint(),
        folder=str(package_folder("client_app")),
        worker=client.host.worker,
        shared=wire.tensor_spec(shared_weights(client.parts, model, part_modules(client))),
    )
