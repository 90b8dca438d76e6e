"""What every registered architecture must do, whatever it looks like inside."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from models import (
    FAMILIES,
    MODELS,
    TEXT_MODELS,
    FeatureModel,
    ModelSpec,
    TextSpec,
    architecture_for,
    create_model,
    head_for,
)
from models.cost import cost
from models.resnet import narrow_resnet

SMALL = FAMILIES["demo4"]
LARGE = ("resnet101", "resnet152", "vit_b16", "vit_b32")  # seconds and gigabytes: what is dear is asked of the others
NAMES = sorted(MODELS.keys() - set(LARGE))
SPEC = ModelSpec(channels=3, height=32, width=32, feature_dim=128, num_classes=10)
WIDE = dataclasses.replace(SPEC, feature_dim=512)
EVERY = [
    *((name, SPEC) for name in NAMES),
    *((name, TextSpec(vocabulary=50, length=12, feature_dim=64, num_classes=3)) for name in sorted(TEXT_MODELS)),
]

# Millions of products that the published counts of transformers leave out, by number of tokens: four 768 x 768
# projections per token, and queries with keys and weights with values for each pair of tokens, in 12 layers.
TRANSFORMER = {tokens: 12 * (4 * 768 * 768 * tokens + 2 * 768 * tokens**2) / 1e6 for tokens in (2, 5)}


def pictures(count: int, channels: int = 3, size: int = 32) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def texts(count: int) -> Tensor:
    """Token ids, each text one word longer than the one before, then zeros."""
    tokens = torch.randint(1, 50, (count, 12), generator=torch.Generator().manual_seed(0))
    return tokens * (torch.arange(12) <= torch.arange(count).unsqueeze(1))


SHAPES = [  # size, channels, classes, width
    (28, 1, 10, 64),
    (32, 3, 100, 512),
]
MORE_SHAPES = [
    (8, 1, 10, 64),
    (8, 3, 2, 512),
    (28, 3, 100, 512),
    (32, 1, 2, 128),
    (64, 1, 100, 128),
    (64, 3, 10, 512),
    (224, 3, 10, 128),
]


@pytest.mark.parametrize(
    ("name", "size", "channels", "classes", "width"),
    [(n, *s) for n in NAMES for s in SHAPES] + [(n, *s) for n in SMALL for s in MORE_SHAPES],
)
def test_trains_on_two_pictures_of_any_size(name: str, size: int, channels: int, classes: int, width: int) -> None:
    spec = ModelSpec(channels=channels, height=size, width=size, feature_dim=width, num_classes=classes)
    model = create_model(name, spec, seed=0)
    x = pictures(2, channels, size)
    features = model.features(x)
    logits = model.head(features)
    functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert model.width == width
    assert features.shape == (2, width)
    assert logits.shape == (2, classes)
    assert torch.isfinite(logits).all()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2", "resnet4", "resnet10", "resnet18"])
def test_answers_a_picture_of_224_pixels(name: str) -> None:
    spec = ModelSpec(channels=3, height=224, width=224, feature_dim=512, num_classes=10)
    with torch.inference_mode():
        logits = create_model(name, spec, seed=0).eval()(pictures(1, size=224))
    assert logits.shape == (1, 10)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", LARGE)
def test_a_large_model_answers_and_shares_no_tensor(name: str) -> None:
    """Safetensors refuses tensors that share memory."""
    model = create_model(name, dataclasses.replace(SPEC, feature_dim=64), seed=0).eval()
    with torch.inference_mode():
        features = model.features(pictures(1))
    assert features.shape == (1, 64)
    assert torch.isfinite(features).all()
    assert not features.eq(features[0, 0]).all()
    tensors = model.state_dict().values()
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
    assert all(tensor.is_contiguous() for tensor in tensors)


@pytest.mark.parametrize("name", NAMES)
def test_takes_pictures_that_are_not_square(name: str) -> None:
    spec = ModelSpec(channels=1, height=20, width=36, feature_dim=128, num_classes=10)
    x = torch.randn(2, 1, 20, 36, generator=torch.Generator().manual_seed(0))
    assert create_model(name, spec, seed=0)(x).shape == (2, 10)


@pytest.mark.parametrize("name", NAMES)
def test_one_picture_in_eval_mode_is_answered_as_in_a_batch(name: str) -> None:
    model = create_model(name, SPEC, seed=0).eval()
    x = pictures(4)
    torch.testing.assert_close(model(x[:1]), model(x)[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "spec"), EVERY)
def test_weights_are_a_function_of_the_seed_and_leave_global_generators_alone(
    name: str, spec: ModelSpec | TextSpec
) -> None:
    before = torch.get_rng_state()
    first, again, other = (create_model(name, spec, seed).state_dict() for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize(("name", "spec"), EVERY)
def test_predictions_survive_saving_and_loading(name: str, spec: ModelSpec | TextSpec, tmp_path: Path) -> None:
    model = create_model(name, spec, seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    x, y = (texts(8), torch.arange(8) % 3) if isinstance(spec, TextSpec) else (pictures(8), torch.arange(8))
    for _ in range(3):  # moves weights and BatchNorm's running statistics away from where they start
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = create_model(name, spec, seed=1)
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(loaded.eval()(x), model.eval()(x))


@pytest.mark.parametrize("name", SMALL)
def test_is_small_and_128_wide_by_nature(name: str) -> None:
    model = create_model(name, SPEC, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) < 200_000
    assert model.base(pictures(2)).shape == (2, 128)


@pytest.mark.parametrize("name", SMALL)
def test_features_have_both_signs_so_none_can_die(name: str) -> None:
    features = create_model(name, SPEC, seed=0).features(pictures(32))
    assert (features.amin(0) < features.amax(0)).all()
    assert (features < 0).any(), "a final ReLU leaves coordinates that a strong alignment can switch off for good"
    assert (features > 0).any()


def on_meta(name: str, spec: ModelSpec = SPEC) -> FeatureModel:
    with torch.device("meta"):
        return create_model(name, spec, seed=0)


def test_architectures_differ_in_names_and_shapes() -> None:
    shapes = {name: {key: value.shape for key, value in on_meta(name).state_dict().items()} for name in MODELS}
    for one, other in itertools.combinations(MODELS, 2):
        assert shapes[one] != shapes[other], (one, other)


@pytest.mark.parametrize(
    ("name", "base", "buffers", "million_products", "width"),
    [
        ("cnn4", 873_408, 0, 7.83, 512),
        ("googlenet", 5_599_904, 14_617, 30.6, 1024),
        ("mobilenet_v2", 2_223_872, 34_164, 6.1, 1280),
        ("resnet4", 83_520, 387, 7.13, 64),
        ("resnet6", 313_664, 1_158, 10.8, 128),
        ("resnet8", 1_232_704, 2_697, 14.5, 256),
        ("resnet10", 4_905_792, 5_772, 18.1, 512),
        ("resnet10_cifar", 4_898_112, 5_772, 253.4, 512),
        ("resnet18", 11_176_512, 9_620, 37.0, 512),
        ("resnet34", 21_284_672, 17_060, 74.8, 512),
        ("resnet50", 23_508_032, 53_173, 83.4, 2048),
        ("resnet101", 42_500_160, 105_448, 159, 2048),
        ("resnet152", 58_143_808, 151_579, 235, 2048),
        ("vit_b16", 85_651_200, 0, 285 + TRANSFORMER[5], 768),
        ("vit_b32", 87_418_368, 0, 116 + TRANSFORMER[2], 768),
    ],
)
def test_the_papers_models_have_the_counted_sizes(
    name: str, base: int, buffers: int, million_products: float, width: int
) -> None:
    """Counted at 32x32x3 with a head for ten classes on 512 features."""
    model, found = on_meta(name, WIDE), cost(name, WIDE)
    assert sum(p.numel() for p in model.base.parameters()) == base
    assert sum(b.numel() for b in model.buffers()) == buffers
    assert found.parameters == base + 512 * 10 + 10
    assert found.flops == pytest.approx(2e6 * million_products, rel=5e-3)
    assert found.width == width


@pytest.mark.parametrize(("name", "partition", "parameters"), [("vit_b16", 8, 86_052_874), ("vit_b32", 9, 87_820_042)])
def test_transformers_in_a_mixed_group_have_the_counted_sizes_with_their_own_head(
    name: str, partition: int, parameters: int
) -> None:
    assert architecture_for("htm10", partition) == name
    assert cost(name, dataclasses.replace(WIDE, head=head_for("htm10", partition, 512))).parameters == parameters


def test_the_residual_network_of_fedhpros_code_has_the_counted_size() -> None:
    """Width 32 and 256 features, without the layers that the published code has and never uses."""
    spec = dataclasses.replace(SPEC, feature_dim=256)
    found, model = cost("resnet10_cifar32", spec), on_meta("resnet10_cifar32", spec)
    assert (found.parameters, found.width) == (1_228_970, 256)
    assert sum(b.numel() for b in model.buffers()) == 2_892
    assert found.flops == pytest.approx(2e6 * 63.8, rel=5e-3)


def test_a_residual_network_of_any_width_is_torchvisions_narrower() -> None:
    with torch.device("meta"):
        ours = narrow_resnet(64)(WIDE)
    shapes = [tuple(tensor.shape) for tensor in ours.state_dict().values()]
    assert shapes == [tuple(tensor.shape) for tensor in on_meta("resnet10_cifar", WIDE).base.state_dict().values()]


@pytest.mark.parametrize(
    "name",
    ["googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vit_b_16", "vit_b_32"],
)
def test_torchvisions_models_lose_their_last_layer_and_nothing_else(name: str) -> None:
    import torchvision

    size = {"image_size": 32} if name.startswith("vit") else {}
    size |= {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name, **size)
    last = [module for module in theirs.modules() if isinstance(module, nn.Linear)][-1]
    wanted = sum(p.numel() for p in theirs.parameters()) - sum(p.numel() for p in last.parameters())
    ours = on_meta(name.replace("vit_b_", "vit_b"))
    assert sum(p.numel() for p in ours.base.parameters()) == wanted


def test_families_hold_registered_names_and_are_no_model_themselves() -> None:
    known = MODELS.keys() | TEXT_MODELS.keys()
    assert all(name in known for family in FAMILIES.values() for name in family)
    assert not FAMILIES.keys() & known


def test_the_demo_family_has_four_architectures() -> None:
    assert len(set(FAMILIES["demo4"])) == 4
