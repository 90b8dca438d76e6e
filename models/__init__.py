"""Build models by name, and choose each client's architecture and head from a group."""

import functools
from collections.abc import Callable

import torch
from torch import nn

from isoproto.errors import ConfigError
from isoproto.own_code import is_own
from isoproto.registry import lookup
from isoproto.settings.sections import NO_MODEL
from models.bag import bag_mlp
from models.base import FeatureModel, HeadShape, ModelSpec, TextSpec
from models.cnn import cnn, cnn4, tiny_cnn
from models.fasttext import fasttext, text_logistic
from models.inception import googlenet, inception
from models.mlp import mlp
from models.mobilenet import mobilenet, mobilenet_v2
from models.own import own_model
from models.recurrent import bilstm, gru, lstm
from models.resnet import deep_resnet, narrow_resnet, resnet
from models.textcnn import textcnn
from models.transformer import transformer
from models.vit import vit, vit_b

__all__ = [
    "FAMILIES",
    "HEADS",
    "MODELS",
    "TEXT_MODELS",
    "FeatureModel",
    "HeadShape",
    "ModelSpec",
    "TextSpec",
    "architecture_for",
    "architectures",
    "create_model",
    "head_for",
]

MODELS: dict[str, Callable[[ModelSpec], nn.Module]] = {
    # small models, for tests, the demo and CPUs
    "cnn": cnn,
    "inception": inception,
    "mlp": mlp,
    "mobilenet": mobilenet,
    "resnet": resnet,
    "tiny_cnn": tiny_cnn,
    "vit": vit,
    # models of the papers
    "cnn4": cnn4,
    "googlenet": googlenet,
    "mobilenet_v2": mobilenet_v2,
    "resnet4": deep_resnet(1),
    "resnet6": deep_resnet(1, 1),
    "resnet8": deep_resnet(1, 1, 1),
    "resnet10": deep_resnet(1, 1, 1, 1),
    "resnet10_cifar": deep_resnet(1, 1, 1, 1, small_pictures=True),
    "resnet10_cifar32": narrow_resnet(32),
    "resnet18": deep_resnet(2, 2, 2, 2),
    "resnet34": deep_resnet(3, 4, 6, 3),
    "resnet50": deep_resnet(3, 4, 6, 3, bottleneck=True),
    "resnet101": deep_resnet(3, 4, 23, 3, bottleneck=True),
    "resnet152": deep_resnet(3, 8, 36, 3, bottleneck=True),
    "vit_b16": vit_b(16),
    "vit_b32": vit_b(32),
}
"""Models for pictures."""

TEXT_MODELS: dict[str, Callable[[TextSpec], nn.Module]] = {
    # small variants of the models below
    "bag_mlp_150": bag_mlp(150),
    "bag_mlp_300_150": bag_mlp(300, 150),
    "bag_mlp_300_150_60": bag_mlp(300, 150, 60),
    # models of the papers
    "bag_mlp": bag_mlp(),
    "bag_mlp_200": bag_mlp(200),
    "bag_mlp_500": bag_mlp(500),
    "bag_mlp_1000_500": bag_mlp(1_000, 500),
    "bag_mlp_1000_500_200": bag_mlp(1_000, 500, 200),
    "bilstm": bilstm,
    "fasttext": fasttext,
    "gru": gru,
    "lstm": lstm,
    "text_logistic": text_logistic,
    "textcnn": textcnn,
    "transformer": transformer,
}
"""Models for text."""

_HTFE8 = (
    *("cnn4", "googlenet", "mobilenet_v2"),
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
)

FAMILIES: dict[str, tuple[str, ...]] = {
    "demo4": ("cnn", "resnet", "mobilenet", "inception"),
    # The papers' groups. Two names mean one list in FedHPro and another in HtFLlib, whose groups FedSAF uses.
    "htfe2": ("cnn4", "resnet18"),
    "htfe3": ("resnet10", "resnet18", "resnet34"),
    "htfe4": ("cnn4", "googlenet", "mobilenet_v2", "resnet18"),
    "htfe5_fedhpro": ("googlenet", "resnet10", "resnet18", "resnet34", "resnet50"),
    "htfe5_htfllib": ("googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50"),
    "htfe8_fedhpro": (
        *("cnn4", "googlenet", "mobilenet_v2"),
        *("resnet10", "resnet18", "resnet34", "resnet50", "resnet101"),
    ),
    "htfe8_htfllib": _HTFE8,
    "htfe9": tuple(f"resnet{layers}" for layers in (4, 6, 8, 10, 18, 34, 50, 101, 152)),
    "htm4": ("cnn4", "mobilenet_v2", "resnet18", "vit_b16"),
    "htm10": (*_HTFE8, "vit_b16", "vit_b32"),
    # For text: HtFLlib's group, which FedSAF uses. FedHPro has no group for text: all its clients have `textcnn`.
    "htfe6txt": ("fasttext", "lstm", "bilstm", "transformer", "text_logistic", "gru"),
    # Perceptrons on counts of words: the group of HtFLlib, and the group in the code of FedSAF's authors.
    "mlp4txt": ("bag_mlp", "bag_mlp_500", "bag_mlp_1000_500", "bag_mlp_1000_500_200"),
    "mlp5txt": ("bag_mlp", "bag_mlp_200", "bag_mlp_500", "bag_mlp_1000_500", "bag_mlp_1000_500_200"),
    "text4": ("textcnn", "fasttext", "bilstm", "transformer"),
}

HEADS: dict[str, tuple[tuple[float, ...], ...]] = {
    # For each head that is dealt out: its hidden widths, as multiples of the feature width.
    "linear": ((),),
    "mixed": ((), (1,), (1, 1), (1, 1, 1)),  # one to four fully connected layers
    "htc4": ((1,), (1, 1), (1, 1 / 2), (1, 1 / 4)),  # HtFLlib's group, without the ReLU it puts on the logits
    # Heads for the models of the same names. With 512 features a ViT's hidden layer is as wide as the ViT: 768.
    "htm4": (*3 * ((),), (3 / 2,)),
    "htm10": (*8 * ((),), (3 / 2,), (3 / 2,)),
}
_ACTIVATION = {"htm4": "tanh", "htm10": "tanh"}  # activation of hidden layers, where it is not a ReLU


def architectures(models: str) -> tuple[str, ...]:
    """Return the architectures that are dealt out to clients, in order.

    Args:
        models: A name in ``FAMILIES``, or names in ``MODELS``, in ``TEXT_MODELS`` or of a user's own functions
            (``FILE.py:callable``), separated by commas. A user's file is not imported here. ``none`` stands for a
            client without a model.

    Raises:
        ConfigError: If a name is unknown, the papers disagree on its meaning, or some models are for pictures and
            others for text.

    Example:
        >>> architectures("htfe2"), architectures("cnn, none")
        (('cnn4', 'resnet18'), ('cnn', 'none'))
    """
    if variants := [family for family in FAMILIES if family.startswith(f"{models}_")]:
        meanings = "; ".join(f"{family!r} is {', '.join(FAMILIES[family])}" for family in variants)
        raise ConfigError(f"`models = {models!r}` means another list in each paper, name the one you want: {meanings}")
    names = FAMILIES.get(models) or tuple(name.strip() for name in models.split(","))
    for name in [name for name in names if not is_own(name) and name != NO_MODEL]:
        lookup({**MODELS, **TEXT_MODELS, **(FAMILIES if len(names) == 1 else {})}, "models", name)
    text, pictures = ([name for name in names if name in table] for table in (TEXT_MODELS, MODELS))
    if text and pictures:
        raise ConfigError(
            f"`models` must be all for pictures or all for text, got {', '.join(pictures)} for pictures and "
            f"{', '.join(text)} for text"
        )
    return names


def architecture_for(models: str, partition: int) -> str:
    """Return the architecture of a client: its partition id modulo the number of ``architectures``.

    Args:
        models: See ``architectures``.
        partition: The client's partition id, >= 0.

    Raises:
        ConfigError: If a name is unknown, or the papers disagree on its meaning.

    Example:
        >>> [architecture_for("cnn, resnet", i) for i in range(3)]
        ['cnn', 'resnet', 'cnn']
    """
    names = architectures(models)
    return names[partition % len(names)]


def head_for(heads: str, partition: int, feature_dim: int) -> HeadShape:
    """Return the shape of a client's head: ``HEADS[heads]`` at the client's partition id modulo its length.

    Args:
        heads: A name in ``HEADS``.
        partition: The client's partition id, >= 0.
        feature_dim: Feature width d.

    Raises:
        ConfigError: If no group of heads has the name.

    Example:
        >>> [head_for("htc4", i, 512).hidden for i in range(4)]
        [(512,), (512, 512), (512, 256), (512, 128)]
        >>> head_for("htm4", 3, 512)
        HeadShape(hidden=(768,), activation='tanh')
    """
    group = lookup(HEADS, "heads", heads)
    hidden = tuple(max(1, int(share * feature_dim)) for share in group[partition % len(group)])
    return HeadShape(hidden, _ACTIVATION.get(heads, "relu"))


def create_model(name: str, spec: ModelSpec | TextSpec, seed: int) -> FeatureModel:
    """Build a model whose initial weights depend on ``seed`` alone; global random generators are not changed.

    Raises:
        ConfigError: If no architecture has the name, the architecture is for other data than ``spec`` describes, or a
            user's model cannot be used.
    """
    if not is_own(name):
        lookup({**MODELS, **TEXT_MODELS}, "model", name)
    base: Callable[[], nn.Module]
    if isinstance(spec, ModelSpec) and min(spec.height, spec.width) < 4:
        raise ConfigError(f"model {name!r} needs pictures of at least 4x4 pixels, got {spec.height}x{spec.width}")
    if is_own(name):
        base = functools.partial(own_model, name, spec)
    elif isinstance(spec, TextSpec):
        if name not in TEXT_MODELS:
            raise _wrong_kind(name, "pictures", "text", ("htfe6txt", *TEXT_MODELS))
        base = functools.partial(TEXT_MODELS[name], spec)
    else:
        if name in TEXT_MODELS:
            raise _wrong_kind(name, "text", "pictures", ("demo4", "htfe4", *MODELS))
        base = functools.partial(MODELS[name], spec)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would reseed the GPUs' generators too
        return FeatureModel(base(), spec.feature_dim, spec.num_classes, spec.head)


def _wrong_kind(name: str, wanted: str, got: str, instead: tuple[str, ...]) -> ConfigError:
    some = ", ".join(map(repr, instead[:4]))
    return ConfigError(f"model {name!r} is for {wanted}, but the data are {got}; set `models` to {some} or the like")
