"""A node's own feature map: a function in a file of the node.

The function gets a batch of pictures ``[B, channels, H, W]``, float32 in ``[0, 1]``, on the device of the run, or a
list of ``B`` texts. It returns features ``[B, W]``. Token ids would be of no use to it, since each node has a
vocabulary of its own. Features are scaled to unit length. All nodes of a federation must compute the same function: the
server compares checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.errors import ConfigError
from isoproto.maps.base import PROBES, fixed_pictures
from isoproto.maps.texts import PROBES as TEXTS
from isoproto.maps.texts import written
from isoproto.own_code import own_callable, told

# Features of the same sample may differ by this part of the largest one, as sums in another order do.
_NOISE = 1e-3


@dataclass(frozen=True)
class OwnMap:
    """A user's function, checked when the map is made by ``own_map``, and again on every batch.

    Attributes:
        own: ``FILE.py:callable`` or ``module:callable``.
        shape: Channels, height and width of pictures; empty for texts.
        words: The characters that each token id adds; empty for pictures.
        device: Where pictures are sent.
        width: Number of features W.
        function: The function.
    """

    own: str
    shape: tuple[int, ...]
    words: tuple[str, ...]
    device: torch.device
    width: int
    function: Callable[[Tensor | list[str]], object] = field(compare=False)

    name = "own"
    usual = (2048, 0)
    standardise = False

    def probed(self) -> Tensor:
        """Return the features of eight fixed samples."""
        return self(fixed_pictures(self.shape)) if self.shape else self._features(list(TEXTS))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features ``[B, W]``, float32, on the CPU, of pictures (uint8) or token ids.

        Raises:
            ConfigError: If the function fails, or does not return ``[B, W]`` finite numbers.
        """
        return self._features(x.to(self.device).float().div_(255) if self.shape else written(x, self.words))

    def _features(self, batch: Tensor | list[str]) -> Tensor:
        features = _called(self.own, self.function, batch)
        if features.shape[1] != self.width:
            raise ConfigError(
                f"map {self.own!r} returns {features.shape[1]} features for {_told(batch)} and returned {self.width} "
                "for another batch; it must always return as many"
            )
        return functional.normalize(features)


def own_map(shape: tuple[int, ...], words: tuple[str, ...], device: torch.device, own: str) -> OwnMap:
    """Import a node's own function, and try it on eight fixed samples.

    Args:
        shape: Channels, height and width of pictures; empty for texts.
        words: The characters that each token id adds; empty for pictures.
        device: Where pictures are sent.
        own: ``FILE.py:callable`` or ``module:callable``.

    Raises:
        ConfigError: If no function is named, it cannot be imported or fails, it does not return ``[B, W]`` finite
            numbers, or its features of a sample change from call to call or with the other samples of the batch.

    Example:
        >>> own_map((1, 8, 8), (), torch.device("cpu"), "torch:flatten")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        isoproto.errors.ConfigError: map 'torch:flatten' must return features (8, W) for pictures (8, 1, 8, 8), got ...
    """
    if not own:
        raise ConfigError(
            "common.map 'own' needs a function of each node; write `map = \"FILE.py:callable\"` in the node's "
            "configuration, or choose another common.map"
        )
    function = own_callable(own, "map")
    batch = fixed_pictures(shape).to(device).float().div_(255) if shape else list(TEXTS)
    first = _called(own, function, batch)
    _same(own, first, _called(own, function, batch), "from call to call; it must not draw random numbers")
    half = PROBES // 2
    parts = [_called(own, function, batch[:half]), _called(own, function, batch[half:])]
    _same(own, first, torch.cat(parts), "with the other samples of the batch; call `.eval()` on its network")
    return OwnMap(own, shape, words, device, first.shape[1], function)


def _called(own: str, function: Callable[[Tensor | list[str]], object], batch: Tensor | list[str]) -> Tensor:
    """Call a user's function, and return what it returns as float32 on the CPU if it is ``[B, W]`` finite numbers."""
    try:
        with torch.no_grad():
            features = function(batch)
    except Exception as err:
        raise ConfigError(f"map {own!r} fails on {_told(batch)}: {told(err, own)}") from err
    wanted = f"map {own!r} must return features ({len(batch)}, W) for {_told(batch)}"
    if not isinstance(features, Tensor):
        raise ConfigError(f"{wanted}, got {type(features).__name__}; return a torch.Tensor")
    if features.dim() != 2 or len(features) != len(batch) or not features.shape[1]:
        raise ConfigError(f"{wanted}, got {tuple(features.shape)}; flatten or average what belongs to one sample")
    features = features.detach().float().cpu()
    wrong = torch.nonzero(~features.isfinite().all(1)).flatten()
    if len(wrong):
        raise ConfigError(f"{wanted} that are finite; those of sample {int(wrong[0])} of the batch are not")
    return features


def _same(own: str, one: Tensor, other: Tensor, how: str) -> None:
    difference = float((one - other).abs().max()) if one.shape == other.shape else float("inf")
    if difference > _NOISE * float(one.abs().max()):
        raise ConfigError(f"map {own!r}: features of the same sample differ by {difference:.3g} {how}")


def _told(batch: Tensor | Sequence[str]) -> str:
    return f"pictures {tuple(batch.shape)}" if isinstance(batch, Tensor) else f"{len(batch)} texts"
