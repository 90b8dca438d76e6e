"""What every registered architecture must do, whatever it looks like inside."""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from models import FAMILIES, MODELS, ModelSpec, create_model

NAMES = sorted(MODELS)
SPEC = ModelSpec(channels=3, height=32, width=32, feature_dim=128, num_classes=10)


def pictures(count: int, channels: int = 3, size: int = 32) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("size", "channels", "classes", "width"),
    [
        (8, 1, 10, 64),
        (8, 3, 2, 512),
        (28, 1, 10, 128),
        (28, 3, 100, 512),
        (32, 1, 2, 128),
        (32, 3, 10, 64),
        (64, 1, 100, 128),
        (64, 3, 10, 512),
        (224, 3, 10, 128),
    ],
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


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_a_function_of_the_seed_and_leave_global_generators_alone(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (create_model(name, SPEC, seed).state_dict() for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("name", NAMES)
def test_predictions_survive_saving_and_loading(name: str, tmp_path: Path) -> None:
    model = create_model(name, SPEC, seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    x, y = pictures(8), torch.arange(8)
    for _ in range(3):  # moves weights and BatchNorm's running statistics away from where they start
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = create_model(name, SPEC, seed=1)
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(loaded.eval()(x), model.eval()(x))


@pytest.mark.parametrize("name", NAMES)
def test_is_small_and_128_wide_by_nature(name: str) -> None:
    model = create_model(name, SPEC, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) < 200_000
    assert model.base(pictures(2)).shape == (2, 128)


@pytest.mark.parametrize("name", NAMES)
def test_features_have_both_signs_so_none_can_die(name: str) -> None:
    features = create_model(name, SPEC, seed=0).features(pictures(32))
    assert (features.amin(0) < features.amax(0)).all()
    assert (features < 0).any(), "a final ReLU leaves coordinates that a strong alignment can switch off for good"
    assert (features > 0).any()


@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES, 2)), ids="-".join)
def test_architectures_differ_in_names_and_shapes(pair: tuple[str, str]) -> None:
    shapes = [{key: value.shape for key, value in create_model(name, SPEC, 0).state_dict().items()} for name in pair]
    assert shapes[0] != shapes[1]


def test_families_hold_registered_names_and_are_no_model_themselves() -> None:
    assert all(name in MODELS for family in FAMILIES.values() for name in family)
    assert not FAMILIES.keys() & MODELS.keys()


def test_the_demo_family_has_four_architectures() -> None:
    assert len(set(FAMILIES["demo4"])) == 4
