"""Feature maps of the common frame: ``MAPS``. A new map is one file and one line here.

A map is a function of pictures or texts that every node computes for itself. Nothing in it is learned from a client's
data, so features of the same sample are the same on every node.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from isoproto.maps.base import FeatureMap, fingerprint, made_up, made_up_pictures
from isoproto.maps.cache import computed, intact, sealed, unsealed
from isoproto.maps.own import own_map
from isoproto.maps.pretrained import efficientnet_lite0, minilm
from isoproto.maps.scattering import scattering_map
from isoproto.maps.words import word_map
from isoproto.registry import lookup

__all__ = [
    "MAPS",
    "FeatureMap",
    "computed",
    "create_map",
    "fingerprint",
    "intact",
    "made_up",
    "made_up_pictures",
    "sealed",
    "unsealed",
]

MakeMap = Callable[[tuple[int, ...], tuple[str, ...], torch.device, str], FeatureMap]

MAPS: dict[str, MakeMap] = {
    "scattering": lambda shape, words, device, own: scattering_map(shape, device),
    "words": lambda shape, words, device, own: word_map(shape, words, device),
    "efficientnet_lite0": lambda shape, words, device, own: efficientnet_lite0(shape, device),
    "minilm": lambda shape, words, device, own: minilm(shape, words, device),
    "own": own_map,
}


def create_map(
    name: str, *, shape: tuple[int, ...], words: tuple[str, ...], device: torch.device, own: str = ""
) -> FeatureMap:
    """Return a feature map.

    Args:
        name: Its name in ``MAPS``; ``standard`` is ``scattering`` for pictures and ``words`` for texts.
        shape: Channels, height and width of pictures; empty for texts.
        words: The characters that each token id stands for; empty for pictures.
        device: Where it is computed.
        own: The node's own function, ``FILE.py:callable``, for ``own``.

    Raises:
        ConfigError: If there is no such map, or it does not fit the samples.

    Example:
        >>> create_map("standard", shape=(3, 32, 32), words=(), device=torch.device("cpu")).width
        3888
    """
    if name == "standard":
        name = "scattering" if shape else "words"
    return lookup(MAPS, "common.map", name)(shape, words, device, own)
