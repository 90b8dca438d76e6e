"""The client's own model: build it, load it, put the server's weights into it, and say what is saved with it."""

import functools
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from client_app.client import Client
from client_app.store import ClientStore, Saved
from client_app.view import Own
from isoproto import paths, wire
from isoproto.errors import ConfigError, StateError
from isoproto.own_code import is_own
from isoproto.seeding import derive
from models import FeatureModel, ModelSpec, TextSpec, create_model

# What the server may ask to be shared, by prefix of the tensor's name.
_SHARED_PREFIX = {"none": None, "head": "head.", "base": "base.", "model": ""}

# The class means of a model are saved beside its tensors under these names. No module of a model has such a name.
_MEANS_NAMES = ("own:means", "own:counts", "own:scatter")


class LoadedModel(NamedTuple):
    """A loaded model with the test accuracy and class means saved with it, if they still apply.

    Attributes:
        model: The model.
        tested: Its accuracy on the test data; ``None`` if it must be measured.
        own: Its class means of the training data; ``None`` if they must be measured.
    """

    model: FeatureModel
    tested: wire.Evaluation | None
    own: Own | None


def build_model(architecture: str, spec: ModelSpec | TextSpec, device: torch.device, seed: int) -> FeatureModel:
    """Build a model and place it on the device where it trains."""
    # A user's own model may be one that needs its feature maps as torch lays them out by default.
    return create_model(architecture, spec, seed).place(device, rearrange=not is_own(architecture))


@functools.lru_cache(maxsize=32)
def skeleton(
    architecture: str, spec: ModelSpec | TextSpec, device: torch.device
) -> tuple[FeatureModel, dict[str, Tensor]]:
    """Return a model whose weights are about to be replaced, and its tensors.

    The model is kept and handed out again, because building a model takes longer than filling one.
    """
    model = build_model(architecture, spec, device, seed=0)
    return model, model.state_dict()


def shared_weights(model: FeatureModel, share: str) -> dict[str, Tensor]:
    """Return the weights that a run shares, by name.

    Args:
        model: The client's model.
        share: The setting ``share``: ``none``, ``head``, ``base`` or ``model``.
    """
    prefix = _SHARED_PREFIX[share]
    if prefix is None:
        return {}
    return {name: t for name, t in model.state_dict().items() if name.startswith(prefix)}


def install(model: FeatureModel, shared: Mapping[str, Tensor], client: Client) -> None:
    """Put averaged weights into the model.

    Raises:
        ConfigError: If they are not the weights that the run shares, or do not fit.
    """
    if not shared:
        return
    share = client.config.share
    if wire.tensor_spec(shared_weights(model, share)) != wire.tensor_spec(shared):
        raise ConfigError(
            f"client {client.name}: the server's shared weights do not fit its model {client.architecture!r} "
            f"(`share = {share}`); all clients need one architecture for it"
        )
    model.load_state_dict({**model.state_dict(), **shared})


def open_model(client: Client, broadcast: wire.Broadcast, before: int) -> LoadedModel:
    """Load the client's model and install the server's weights in it.

    Installed weights make another model of it, so the saved accuracy no longer applies. The saved class means still
    apply if only the head was replaced, because features do not depend on the head.

    Args:
        client: The client.
        broadcast: What the server sent.
        before: Load the model as it was when this round began.
    """
    model, tested, own = load_model(client, broadcast.experiment, before)
    install(model, broadcast.shared, client)
    if broadcast.shared:
        tested = None
        own = own if client.config.share == "head" else None
    return LoadedModel(model, tested, own)


def load_model(client: Client, experiment: str, before: int) -> LoadedModel:
    """Return the client's model as it was when round ``before`` began: saved, or initialised from the seed.

    Raises:
        ConfigError: If the saved model does not fit the settings.
        StateError: If the saved model cannot be read, or lies on another machine.
    """
    config, architecture, spec, device = client.config, client.architecture, client.spec, client.device
    saved = client.store(experiment).load(before)
    tested = _noted_accuracy(saved.note, client.test_digest) if saved else None
    if saved is None and client.host.worker:
        _require_same_folder(paths.state_dir(config.state_dir), experiment, client.name)
    if saved is None and config.init_from:
        saved = _load_from(client.store(config.init_from), config.init_from)
    if saved is None:
        seed = derive(config.seed, "model", architecture if config.init == "per-architecture" else client.name)
        return LoadedModel(build_model(architecture, spec, device, seed), None, None)
    model, state = skeleton(architecture, spec, device)
    tensors, own = _without_means(saved.tensors)
    if differing := _differing(wire.tensor_spec(state), wire.tensor_spec(tensors)):
        raise ConfigError(
            f"client {client.name}: its saved model does not fit {architecture!r} with {spec}: "
            f"{len(differing)} tensors differ, among them {differing[:3]}. Start a new run, or restore the settings"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(tensors[name])
    return LoadedModel(model, tested, own)


def state_to_save(model: FeatureModel, own: Own | None) -> dict[str, Tensor]:
    """Return the tensors to save: those of the model, and its class means if there are any."""
    state = dict(model.state_dict())
    if own is not None:
        state |= dict(zip(_MEANS_NAMES, (own.means, own.counts, torch.tensor(own.scatter)), strict=True))
    return state


def accuracy_note(tested: wire.Evaluation, test_digest: int) -> str:
    """Return the note that is saved with a model: its accuracy, and a checksum of the data that it was tested on."""
    return json.dumps([test_digest, tested.correct, tested.total])


def _noted_accuracy(note: str, test_digest: int) -> wire.Evaluation | None:
    """Return the accuracy that a note holds; ``None`` if it is of other test data."""
    digest, correct, total = json.loads(note or "[null, 0, 0]")
    return wire.Evaluation(correct=correct, total=total) if digest == test_digest else None


def _load_from(source: ClientStore, experiment: str) -> Saved:
    """Return the client's newest model of an earlier experiment.

    Raises:
        StateError: If there is none.
    """
    saved = source.load()
    if saved is None:
        raise StateError(
            f"client {source.client}: `init-from` names experiment {experiment!r}, but {source.folder} "
            "holds no model of this client. Name an experiment below `state-dir`, or leave `init-from` empty"
        )
    return saved


def _without_means(saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Own | None]:
    """Separate a model's tensors from the class means that were saved with them."""
    tensors = dict(saved)
    means, counts, scatter = (tensors.pop(name, None) for name in _MEANS_NAMES)
    if means is None or counts is None or scatter is None:
        return tensors, None
    return tensors, Own(means, counts, float(scatter))


def _differing(expected: wire.Spec, found: wire.Spec) -> list[str]:
    """Return the names of tensors that are missing, or that have another type or shape than expected."""
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def _require_same_folder(root: Path, experiment: str, client: str) -> None:
    """Refuse to start a client anew if another machine of the simulation may hold its model.

    Args:
        root: The state folder of this machine.
        experiment: Id of the experiment.
        client: The client's name, for the error text.

    Raises:
        StateError: If the state folder of this machine is not the server's.
    """
    if not paths.is_marked(root, experiment):
        raise StateError(
            f"client {client}: the state folder {root} of {socket.gethostname()} is not the one of the machine "
            "that the run was started on, and the client's model may be there. Set `state-dir` to a folder that "
            "all machines of the Ray cluster share (docs/scale.md)"
        )
