"""Shrink a paper's setting to a size for two cores: smaller models, fewer samples and rounds, other data sets."""

import dataclasses
from typing import Any

from isoproto.config import RunConfig
from isoproto.data import INFOS
from models import TEXT_MODELS, architectures

# Data sets that replace sets which few people have. (`digits` replaces SVHN and SYN by itself.)
_DATA = {
    "cifar100": "tiny_imagenet",
    "domainnet": "pacs",
    "fashionmnist": "mnist",
    "sun397": "tiny_imagenet",
    "svhn": "npz:digits_mnistm_like.npz",
    "syn": "npz:digits_syn_like.npz",
}
# Models of the same kind with fewer than two million parameters. Residual networks of different depth become different
# models, so that clients still have different architectures.
_MODELS = {
    "bag_mlp_500": "bag_mlp_150",
    "bag_mlp_1000_500": "bag_mlp_300_150",
    "bag_mlp_1000_500_200": "bag_mlp_300_150_60",
    "cnn4": "cnn",
    "googlenet": "inception",
    "mobilenet_v2": "mobilenet",
    "resnet10": "resnet8",
    "resnet10_cifar": "resnet",
    "resnet10_cifar32": "resnet",
    "resnet18": "resnet",
    "resnet34": "resnet6",
    "resnet50": "resnet8",
    "resnet101": "resnet6",
    "resnet152": "resnet4",
    "vit_b16": "vit",
    "vit_b32": "vit",
}
_ROUNDS = 5
_SAMPLES, _SAMPLES_PER_CLIENT = 2_000, 20
_TEXT_WIDTH = 32  # a text model is mostly its table of words, which has a million numbers at this width


def at_scale(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Return the settings to run, and a sentence for each setting that was replaced; none under ``scale = paper``.

    Example:
        >>> config, replaced = at_scale(RunConfig(scale="small", data="cifar100", models="htfe2", rounds=3))
        >>> config.models, config.rounds, config.max_samples
        ('cnn,resnet', 3, 2000)
        >>> replaced[0]
        "scale = small: data = 'cifar100' is replaced by 'tiny_imagenet'"
    """
    if config.scale == "paper":
        return config, []
    before = config.to_mapping()
    after = dataclasses.replace(config, **_smaller(config)).to_mapping()
    changed = [key for key in before if after[key] != before[key]]
    replaced = [f"scale = small: {key} = {before[key]!r} is replaced by {after[key]!r}" for key in changed]
    return RunConfig.from_mapping(after), replaced


def _smaller(config: RunConfig) -> dict[str, Any]:
    names = architectures(config.models)
    smaller = {
        "data": _smaller_data(config.data),
        "rounds": min(config.rounds, _ROUNDS),
        "epochs": 1,
    }
    if not _MODELS.keys().isdisjoint(names):
        smaller["models"] = ",".join(_MODELS.get(name, name) for name in names)
    if not TEXT_MODELS.keys().isdisjoint(names):
        smaller["feature_dim"] = min(config.feature_dim, _TEXT_WIDTH)
    if smaller["data"] != config.data and config.partition == "one_domain":
        smaller["partition"] = "domain"  # the stand-in may have fewer domains than there are clients
    if config.partition != "user" and "@" not in config.partition:  # users and fractions of the data are small already
        most = max(_SAMPLES, _SAMPLES_PER_CLIENT * config.clients)
        smaller["max_samples"] = min(config.max_samples or most, most)
    return smaller


def _smaller_data(data: str) -> str:
    """Return the data set that replaces a set, or the set itself. Names for large pictures become the usual names."""
    kind = data.partition(":")[0]
    if kind in INFOS and INFOS[kind].side:
        data = kind
    return _DATA.get(data, data)
