"""Model architectures by name, and families that are dealt out to clients."""

from collections.abc import Callable

import torch
from torch import nn

from isoproto.errors import ConfigError
from isoproto.registry import lookup
from models.base import FeatureModel, ModelSpec
from models.cnn import cnn
from models.inception import inception
from models.mobilenet import mobilenet
from models.resnet import resnet

__all__ = ["FAMILIES", "MODELS", "FeatureModel", "ModelSpec", "architecture_for", "create_model"]

MODELS: dict[str, Callable[[ModelSpec], nn.Module]] = {
    "cnn": cnn,
    "inception": inception,
    "mobilenet": mobilenet,
    "resnet": resnet,
}

FAMILIES: dict[str, tuple[str, ...]] = {
    "demo4": ("cnn", "resnet", "mobilenet", "inception"),
}


def architecture_for(models: str, partition: int) -> str:
    """Return the architecture of a client: its partition id modulo the family's length.

    Args:
        models: A name in ``FAMILIES``, or names in ``MODELS`` separated by commas.
        partition: The client's partition id, >= 0.

    Raises:
        ConfigError: If any of the names is unknown.

    Example:
        >>> [architecture_for("cnn, resnet", i) for i in range(3)]
        ['cnn', 'resnet', 'cnn']
    """
    names = FAMILIES.get(models) or tuple(name.strip() for name in models.split(","))
    for name in names:
        lookup({**MODELS, **(FAMILIES if len(names) == 1 else {})}, "models", name)
    return names[partition % len(names)]


def create_model(name: str, spec: ModelSpec, seed: int) -> FeatureModel:
    """Build a model with weights that are a function of ``seed``; global generators are left as they were.

    Raises:
        ConfigError: If no architecture has the name.
    """
    build = lookup(MODELS, "model", name)
    if min(spec.height, spec.width) < 4:
        raise ConfigError(f"model {name!r} needs pictures of at least 4x4 pixels, got {spec.height}x{spec.width}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would reseed the GPUs' generators too
        return FeatureModel(build(spec), spec.feature_dim, spec.num_classes)
