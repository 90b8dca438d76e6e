"""The client's own model: build it, load it, put the server's weights into it, and say what is saved with it."""

import dataclasses
import functools
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from client_app.client import Client
from client_app.store import ClientStore, Saved
from client_app.training import extract
from isoproto import paths, wire
from isoproto.errors import ConfigError, StateError
from isoproto.own_code import is_own
from isoproto.parts import OwnMeans, Part
from isoproto.seeding import derive
from models import FeatureModel, HeadShape, ModelSpec, TextSpec, architecture_for, create_model

# The class means of a model are saved with its tensors under these names. No module of a model has such a name.
_MEANS_NAMES = ("own:means", "own:counts", "own:scatter")
# Begins the names of tensors of modules that parts keep. A model's own tensors are those of its `base` and `head`.
_PART = "part."


class LoadedModel(NamedTuple):
    """A loaded model with the test accuracy and class means saved with it, if they still apply.

    Attributes:
        model: The model.
        modules: Other modules that parts of the method keep on the client, by name.
        tested: Its accuracy on the test data; ``None`` if it must be measured.
        own_means: Its class means of the training data; ``None`` if they must be measured.
    """

    model: FeatureModel
    modules: dict[str, nn.Module]
    tested: wire.Evaluation | None
    own_means: OwnMeans | None


def build_model(architecture: str, spec: ModelSpec | TextSpec, device: torch.device, seed: int) -> FeatureModel:
    """Build a model and place it on the device where it trains."""
    # A model of the user may rely on torch's default layout of feature maps, so it is not rearranged.
    return create_model(architecture, spec, seed).place(device, rearrange=not is_own(architecture))


@functools.lru_cache(maxsize=32)
def skeleton(architecture: str, spec: ModelSpec | TextSpec, device: torch.device) -> FeatureModel:
    """Return a model whose weights are about to be replaced.

    The model is kept and handed out again, because building a model takes longer than filling one.
    """
    return build_model(architecture, spec, device, seed=0)


@functools.lru_cache(maxsize=32)
def check_fits(architecture: str, spec: ModelSpec | TextSpec, device: torch.device) -> None:
    """Try a model on two empty samples, so that one that is too deep for small pictures is refused before round 1.

    Raises:
        ConfigError: If it fails.
    """
    if isinstance(spec, TextSpec):
        given, x = f"texts of {spec.length} tokens", torch.zeros(2, spec.length, dtype=torch.int32)
    else:
        shape = spec.channels, spec.height, spec.width
        given, x = f"pictures of {spec.height}x{spec.width}", torch.zeros(2, *shape, dtype=torch.uint8)
    try:
        extract(skeleton(architecture, spec, device), x)
    except RuntimeError as err:
        reason = str(err).splitlines()[0]
        raise ConfigError(f"model {architecture!r} does not fit {given}: {reason}. Choose another one") from err


def part_modules(client: Client) -> dict[str, nn.Module]:
    """Return new modules that parts of the method keep on the client, by name.

    Each is a model of the first architecture that the run names, and starts from the same weights on all clients.
    """
    architecture = architecture_for(client.config.models, 0)
    spec = dataclasses.replace(client.spec, head=HeadShape())
    names = [part.owns for part in client.parts if part.owns]
    seeds = {name: derive(client.config.seed, "model", f"part.{name}") for name in names}
    return {name: build_model(architecture, spec, client.device, seed) for name, seed in seeds.items()}


def shared_weights(parts: Sequence[Part], model: nn.Module, modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the weights that a run shares, by name: the tensors themselves, not copies."""
    return {name: tensor for part in parts for name, tensor in part.shared(model, modules).items()}


def _saved_tensors(model: nn.Module, modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the tensors of a client's modules under the names that they are saved by."""
    return {**model.state_dict(), **_tensors_of_parts(modules)}


def _tensors_of_parts(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    return {_PART + f"{part}.{name}": t for part, module in modules.items() for name, t in module.state_dict().items()}


def install(loaded: "LoadedModel", shared: Mapping[str, Tensor], client: Client) -> None:
    """Put averaged weights into the client's modules.

    Raises:
        ConfigError: If they are not the weights that the run shares, or do not fit.
    """
    if not shared:
        return
    tensors = shared_weights(client.parts, loaded.model, loaded.modules)
    if wire.tensor_spec(tensors) != wire.tensor_spec(shared):
        raise ConfigError(
            f"client {client.name}: the server's shared weights do not fit its model {client.architecture!r} "
            f"(`share = {client.config.share}`); all clients need one architecture for it"
        )
    _fill(tensors, shared)


def _fill(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(values[name])


def open_model(client: Client, broadcast: wire.Broadcast, before: int) -> LoadedModel:
    """Load the client's model and install the server's weights in it.

    The saved accuracy no longer applies when weights were replaced. The saved class means still apply if only the head
    was replaced, because features do not depend on the head.

    Args:
        client: The client.
        broadcast: What the server sent.
        before: Load the model as it was when this round began.
    """
    loaded = load_model(client, broadcast.experiment, before)
    install(loaded, broadcast.shared, client)
    changed = {name.partition(".")[0] for name in broadcast.shared} & dict(loaded.model.named_children()).keys()
    if changed:
        loaded = loaded._replace(tested=None, own_means=loaded.own_means if changed == {"head"} else None)
    return loaded


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
    modules = part_modules(client)
    if saved is None and config.init_from:
        saved = _with_modules(_load_from(client.store(config.init_from), config.init_from), modules)
    if saved is None:
        seed = derive(config.seed, "model", architecture if config.init == "per-architecture" else client.name)
        return LoadedModel(build_model(architecture, spec, device, seed), modules, None, None)
    model = skeleton(architecture, spec, device)
    state = _saved_tensors(model, modules)
    tensors, own_means = _without_means(saved.tensors)
    if differing := _differing(wire.tensor_spec(state), wire.tensor_spec(tensors)):
        raise ConfigError(
            f"client {client.name}: its saved model does not fit {architecture!r} with {spec}: "
            f"{len(differing)} tensors differ, among them {differing[:3]}. Start a new run, or restore the settings"
        )
    _fill(state, tensors)
    return LoadedModel(model, modules, tested, own_means)


def state_to_save(model: nn.Module, modules: Mapping[str, nn.Module], own_means: OwnMeans | None) -> dict[str, Tensor]:
    """Return the tensors to save: those of the client's modules, and the model's class means if there are any."""
    state = _saved_tensors(model, modules)
    if own_means is not None:
        values = (own_means.means, own_means.counts, torch.tensor(own_means.scatter))
        state |= dict(zip(_MEANS_NAMES, values, strict=True))
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


def _with_modules(saved: Saved, modules: Mapping[str, nn.Module]) -> Saved:
    """Return a saved model with the modules of this run: as they were saved, or new where another method had none."""
    new = _tensors_of_parts(modules)
    kept = {name: t for name, t in saved.tensors.items() if name in new or not name.startswith(_PART)}
    return saved._replace(tensors={**new, **kept})


def _without_means(saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], OwnMeans | None]:
    """Separate a model's tensors from the class means that were saved with them."""
    tensors = dict(saved)
    means, counts, scatter = (tensors.pop(name, None) for name in _MEANS_NAMES)
    if means is None or counts is None or scatter is None:
        return tensors, None
    return tensors, OwnMeans(means, counts, float(scatter))


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
