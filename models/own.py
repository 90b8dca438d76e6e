"""Build a model from a user's function, and check that it can be trained."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from isoproto.errors import ConfigError
from isoproto.own_code import own_callable, told
from models.base import ModelSpec, TextSpec

_PROBE = 2  # BatchNorm cannot train on one sample


class Adapted(nn.Module):
    """A user's feature extractor, adapted so that it returns one row of at least ``d`` numbers per sample.

    A feature map ``[B, L, ...]`` is averaged over all its places. If a row has fewer than ``d`` numbers, a linear layer
    widens it to ``d``, since the pooling of ``FeatureModel`` would only repeat numbers. Wider rows are left to that
    pooling.

    Args:
        extractor: Maps ``[B, channels, height, width]`` to ``[B, L]`` or ``[B, L, ...]``, or texts ``[B, length]`` to
            ``[B, L]``.
        width: Number L of values or channels per sample.
        feature_dim: Feature width d.

    Example:
        >>> Adapted(nn.Conv2d(1, 3, 3), width=3, feature_dim=8)(torch.zeros(2, 1, 9, 9)).shape
        torch.Size([2, 8])
    """

    def __init__(self, extractor: nn.Module, width: int, feature_dim: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.widen = nn.Linear(width, feature_dim) if width < feature_dim else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``[B, max(L, d)]``."""
        values: Tensor = self.extractor(x)
        rows: Tensor = self.widen(values.flatten(2).mean(2) if values.dim() > 2 else values)
        return rows


def own_model(name: str, spec: ModelSpec | TextSpec) -> nn.Module:
    """Build a user's model, and try it on one batch in evaluation and training mode, with a backward pass.

    For pictures the function is called with a ``ModelSpec``, which has ``channels``, ``height`` and ``width`` of the
    pictures, ``feature_dim`` and ``num_classes``. The model then gets float32 pictures in ``[-1, 1]``. For texts the
    function is called with a ``TextSpec``, which has ``vocabulary`` and ``length`` instead of the size of pictures. The
    model then gets int32 token ids, with zeros behind the end of a text. The module that the function returns must
    compute features, not class scores: the head is added here.

    Args:
        name: ``module:callable`` or ``FILE.py:callable``.
        spec: The data and feature width that the model must fit.

    Raises:
        ConfigError: If there is no such function, it fails, or its model cannot be trained on such data.
    """
    function = own_callable(name, "model")
    try:
        extractor = function(spec)
    except Exception as err:
        raise ConfigError(f"model {name!r} cannot be built for {spec}: {told(err, name)}") from err
    if not isinstance(extractor, nn.Module):
        raise ConfigError(f"model {name!r} must return a torch.nn.Module, got {type(extractor).__name__}")
    width = _tried(name, extractor, spec)
    return Adapted(extractor, width, spec.feature_dim)


def _tried(name: str, extractor: nn.Module, spec: ModelSpec | TextSpec) -> int:
    """Run a copy of a model on one batch, and return the width of its features."""
    trial = copy.deepcopy(extractor)  # the trial must not change the model's running statistics and gradients
    if isinstance(spec, TextSpec):
        batch = torch.randint(spec.vocabulary, (_PROBE, spec.length), dtype=torch.int32)
        given, places = f"texts {tuple(batch.shape)}", False
    else:
        batch = torch.rand(_PROBE, spec.channels, spec.height, spec.width) * 2 - 1
        given, places = f"pictures {tuple(batch.shape)}", True
    if not any(p.requires_grad for p in trial.parameters()):
        raise ConfigError(f"model {name!r} has no weights that can be trained")
    try:
        with torch.no_grad():
            tested = trial.eval()(batch)
        trained = trial.train()(batch)
    except Exception as err:
        raise ConfigError(f"model {name!r} fails on {given}: {told(err, name)}") from err
    for features in (tested, trained):
        shape = tuple(features.shape) if isinstance(features, Tensor) else ()
        if len(shape) < 2 or (len(shape) > 2 and not places) or shape[0] != _PROBE or 0 in shape:
            got = shape if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(f"model {name!r} must map {given} to features [{_PROBE}, L], got {got}")
        if not features.is_floating_point() or not bool(features.isfinite().all()):
            raise ConfigError(f"model {name!r} gives features that are not finite float numbers ({features.dtype})")
    if tested.shape != trained.shape:
        raise ConfigError(
            f"model {name!r} gives features {tuple(tested.shape)} in eval mode and {tuple(trained.shape)} in training"
        )
    loss = functional.mse_loss(trained, torch.ones_like(trained))
    if not loss.requires_grad:
        raise ConfigError(f"model {name!r}: no gradient reaches its weights; does it use torch.no_grad()?")
    try:
        loss.backward()
    except Exception as err:
        raise ConfigError(f"model {name!r} cannot be trained: {told(err, name)}") from err
    return int(tested.shape[1])
