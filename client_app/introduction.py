"""Tell the server who a client is and which data it has."""

import torch

from client_app.client import Client
from client_app.in_frame import frame_name
from client_app.own_model import check_fits, part_modules, shared_weights, skeleton
from isoproto import wire
from isoproto.data import class_counts
from isoproto.fingerprint import fingerprint, package_folder
from isoproto.own_code import without_folder


def introduce(client: Client) -> wire.ClientInfo:
    """Return what the server has to know of a client before round 1."""
    classes = client.num_classes
    frame, frame_dim = frame_name(client)
    if client.has_model:
        check_fits(client.architecture, client.spec, client.device)
    model = skeleton(client.architecture, client.spec, client.device) if client.has_model else None
    shared = shared_weights(client.parts, model, part_modules(client)) if model else {}
    return wire.ClientInfo(
        client=client.name,
        model=without_folder(client.architecture),
        feature_dim=model.width if model else client.spec.feature_dim,
        classes=client.data.classes,
        train_counts=tuple(class_counts(torch.cat([client.data.train_y, client.data.held_y]), classes).tolist()),
        test_counts=tuple(class_counts(client.data.test_y, classes).tolist()),
        domain=client.domain,
        partitions=client.partitions,
        fingerprint=fingerprint(),
        folder=str(package_folder("client_app")),
        worker=client.host.worker,
        shared=wire.tensor_spec(shared),
        frame=frame,
        frame_dim=frame_dim,
    )
