"""The feature model's pooling, dealing out architectures, and weights as a function of the seed."""

import copy
import dataclasses
import subprocess
import sys
from unittest import mock

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from isoproto.data import to_float
from isoproto.errors import ConfigError
from models import FAMILIES, FeatureModel, HeadShape, ModelSpec, architecture_for, architectures, create_model, head_for
from models.base import CellPool, ChannelsLast
from models.cost import cost

SPEC = ModelSpec(channels=1, height=32, width=32, feature_dim=128, num_classes=10)


def windows(natural: int, width: int) -> list[list[int]]:
    """Which of ``natural`` inputs each of ``width`` features averages, read off the gradients."""
    model = FeatureModel(nn.Flatten(), width, 2)
    x = torch.zeros(1, 1, 1, natural)
    jacobian = torch.autograd.functional.jacobian(model.features, x).reshape(width, natural)
    assert torch.allclose(jacobian.sum(1), torch.ones(width))
    return [row.nonzero()[:, 0].tolist() for row in jacobian]


@pytest.mark.parametrize(
    ("natural", "first"),
    [
        (1280, [[0, 1, 2], [2, 3, 4], [5, 6, 7], [7, 8, 9], [10, 11, 12]]),
        (768, [[0, 1], [1, 2], [3, 4], [4, 5]]),
        (1024, [[0, 1], [2, 3]]),
        (128, [[0], [0], [0], [0], [1]]),
        (512, [[0], [1], [2]]),
    ],
)
def test_pooling_windows_are_those_of_example_e14(natural: int, first: list[list[int]]) -> None:
    assert windows(natural, 512)[: len(first)] == first


def test_pooling_100_values_to_512_averages_one_or_two_of_them() -> None:
    assert {len(window) for window in windows(100, 512)} == {1, 2}


def test_equal_widths_hand_the_bases_values_through_unchanged() -> None:
    x = torch.randn(3, 1, 1, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(FeatureModel(nn.Flatten(), 7, 2).features(x), x.flatten(1))


@pytest.mark.parametrize("name", ["cnn", "resnet", "mobilenet", "inception", "mlp"])
def test_a_placed_model_computes_the_same_with_its_channels_last(name: str) -> None:
    plain, placed = create_model(name, SPEC, 0), create_model(name, SPEC, 0).place(torch.device("cpu"), rearrange=True)
    x = torch.randint(0, 256, (5, 1, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    assert placed.layout is torch.channels_last
    assert to_float(x.expand(5, 3, 32, 32), placed.layout).is_contiguous(memory_format=torch.channels_last)
    weights = [p for p in placed.parameters() if p.dim() == 4]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    assert torch.allclose(placed(to_float(x, placed.layout)), plain(to_float(x)), atol=1e-5)


def test_logits_are_the_head_of_the_features() -> None:
    model = FeatureModel(nn.Flatten(), 2, 2)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -1.0]]))
        model.head.bias.copy_(torch.tensor([0.5, 0.0]))
    x = torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]])  # features (2, 6)
    assert model(x).tolist() == [[14.5, -6.0]]


def test_grid_averages_cells_and_flattens() -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert CellPool(2)(x).tolist() == [[2.5, 4.5, 10.5, 12.5]]
    assert CellPool(4)(x).tolist() == [list(range(16))]


def test_channels_come_last_on_every_device_but_apples():
    """`meta` stands for a GPU here."""
    layouts = [create_model("cnn", SPEC, 0).place(torch.device("meta"), rearrange=r).layout for r in (True, False)]
    assert layouts == [torch.channels_last, torch.contiguous_format]


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_channels_last_changes_the_layout_and_no_value(channels: int) -> None:
    x = torch.randn(2, channels, 5, 5, generator=torch.Generator().manual_seed(0))
    y = ChannelsLast()(x)
    assert torch.equal(x, y)
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", FAMILIES["demo4"])
def test_clients_trained_together_compute_what_each_computes_alone(name: str) -> None:
    models = [create_model(name, SPEC, seed) for seed in range(2)]
    params, buffers = stack_module_state(models)
    shell = copy.deepcopy(models[0]).to("meta")
    x = torch.randn(2, 4, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    together = torch.vmap(lambda p, b, x: functional_call(shell, (p, b), (x,)))(params, buffers, x)
    alone = torch.stack([model(batch) for model, batch in zip(models, x, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_a_family_is_dealt_out_in_turn() -> None:
    assert [architecture_for("demo4", i) for i in range(5)] == [*FAMILIES["demo4"], FAMILIES["demo4"][0]]


def test_a_list_may_repeat_names_and_have_spaces() -> None:
    assert [architecture_for("cnn, resnet ,cnn", i) for i in range(4)] == ["cnn", "resnet", "cnn", "cnn"]


@pytest.mark.parametrize("models", ["resnett", "cnn,resnett", "resnett,cnn"])
def test_an_unknown_name_anywhere_is_refused_for_every_client(models: str) -> None:
    for partition in range(2):
        with pytest.raises(ConfigError, match=r"unknown models 'resnett'.*did you mean 'resnet'"):
            architecture_for(models, partition)


def test_an_unknown_family_is_answered_with_the_families_too() -> None:
    with pytest.raises(ConfigError, match=r"unknown models 'demo5'.*'demo4'.*did you mean 'demo4'"):
        architecture_for("demo5", 0)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'alexnet'; `model` must be one of .*'cnn'"):
        create_model("alexnet", SPEC, seed=0)


@pytest.mark.parametrize(
    ("models", "meanings"),
    [
        ("htfe5", r"'htfe5_fedhpro' is googlenet, resnet10, .*; 'htfe5_htfllib' is googlenet, mobilenet_v2, "),
        ("htfe8", r"'htfe8_fedhpro' is .*, resnet10, .*resnet101; 'htfe8_htfllib' is .*, resnet152$"),
    ],
)
def test_a_group_that_the_papers_define_differently_has_no_bare_name(models: str, meanings: str) -> None:
    with pytest.raises(ConfigError, match=rf"`models = '{models}'` means another list in each paper.*: {meanings}"):
        architecture_for(models, 0)


def test_the_default_group_of_fedsaf_is_nine_resnets() -> None:
    assert architectures("htfe9") == tuple(f"resnet{n}" for n in (4, 6, 8, 10, 18, 34, 50, 101, 152))


def test_the_largest_group_is_the_eight_of_htfllib_and_two_transformers() -> None:
    assert architectures("htm10") == (*architectures("htfe8_htfllib"), "vit_b16", "vit_b32")
    assert len(set(architectures("htm10"))) == 10


def test_importing_models_and_building_a_small_one_does_not_import_torchvision() -> None:
    code = """
import sys, models
for name in ("cnn", "cnn4"):
    models.create_model(name, models.ModelSpec(1, 28, 28, 8, 2), 0)
assert "torchvision" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_four_layers_pool_to_nothing_below_sixteen_pixels() -> None:
    tiny = ModelSpec(channels=1, height=32, width=15, feature_dim=8, num_classes=2)
    with pytest.raises(ConfigError, match="'cnn4' needs pictures of at least 16x16 pixels, got 32x15"):
        create_model("cnn4", tiny, seed=0)


def test_a_transformer_sees_what_is_not_a_whole_patch_padded_with_zeros() -> None:
    """A model with 16-pixel patches cuts a 20x30 picture into 2 x 2 patches, as it does a 32x32 one."""
    narrow = ModelSpec(channels=1, height=20, width=30, feature_dim=8, num_classes=2)
    with torch.device("meta"):
        model = create_model("vit_b16", narrow, seed=0)
    padding, transformer = model.base
    x = torch.ones(1, 1, 20, 30)
    padded = padding(x)
    assert padded.shape == (1, 1, 32, 32)
    assert torch.equal(padded[:, :, :20, :30], x)
    assert padded.sum() == x.sum()
    assert transformer.seq_length == 4 + 1


def test_cost_of_the_four_layers_by_hand() -> None:
    """28 x 28 and 10 x 10 places of 5x5 windows over 3 and 32 channels, then 1600 x 512 and 512 x 100."""
    found = cost("cnn4", ModelSpec(channels=3, height=32, width=32, feature_dim=512, num_classes=100))
    weights = 25 * 3 * 32 + 32, 25 * 32 * 64 + 64, 1600 * 512 + 512, 512 * 100 + 100
    products = 784 * 25 * 3 * 32, 100 * 25 * 32 * 64, 1600 * 512, 512 * 100
    assert found.parameters == sum(weights) == 924_708
    assert found.flops == 2 * sum(products)
    assert found.width == 512


def test_heads_are_the_linear_one_or_have_hidden_layers_with_a_relu_after_each() -> None:
    spec = dataclasses.replace(SPEC, head=HeadShape((5, 3)))
    linear, deep = create_model("cnn", SPEC, seed=5), create_model("cnn", spec, seed=5)
    assert all(torch.equal(t, deep.base.state_dict()[name]) for name, t in linear.base.state_dict().items())
    kinds = [type(layer) for layer in deep.head]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(w.shape) for w in deep.head.parameters() if w.ndim == 2] == [(5, 128), (3, 5), (10, 3)]
    assert linear.linear_head[0].shape == (10, 128)
    with pytest.raises(ConfigError, match="head has hidden layers, and a linear one is wanted; set heads = 'linear'"):
        _ = deep.linear_head


def test_mixed_heads_have_one_to_four_layers_whatever_the_architectures() -> None:
    layers = [len(head_for("mixed", partition, 64).hidden) + 1 for partition in range(8)]
    assert layers == [1, 2, 3, 4, 1, 2, 3, 4]
    assert {head_for("linear", partition, 64) for partition in range(8)} == {HeadShape()}
    with pytest.raises(ConfigError, match="unknown heads 'mlp'; `heads` must be one of 'htc4', 'htm10', 'htm4', 'lin"):
        head_for("mlp", 0, 64)


@pytest.mark.parametrize("group", ["htm4", "htm10"])
def test_the_heads_of_a_group_with_transformers_are_linear_but_theirs(group: str) -> None:
    names = architectures(group)
    for partition in range(2 * len(names)):
        head = head_for(group, partition, 512)
        vit = architecture_for(group, partition).startswith("vit")
        assert head == (HeadShape((768,), "tanh") if vit else HeadShape((), "tanh"))


def test_a_hidden_layer_may_be_followed_by_a_tangent() -> None:
    model = create_model("cnn", dataclasses.replace(SPEC, head=HeadShape((5,), "tanh")), seed=5)
    first, activation, last = model.head
    assert isinstance(activation, nn.Tanh)
    features = torch.randn(2, 128, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.head(features), last(first(features).tanh()))


def test_pictures_below_four_pixels_are_refused() -> None:
    tiny = ModelSpec(channels=1, height=3, width=32, feature_dim=8, num_classes=2)
    with pytest.raises(ConfigError, match="at least 4x4 pixels, got 3x32"):
        create_model("cnn", tiny, seed=0)


def test_building_reseeds_no_generator_of_a_gpu() -> None:
    with mock.patch("torch.cuda.manual_seed_all") as reseed:
        create_model("cnn", SPEC, seed=0)
    reseed.assert_not_called()


@pytest.mark.parametrize("name", [*FAMILIES["demo4"], "cnn4", "resnet4", "googlenet", "mobilenet_v2"])
def test_the_base_depends_on_neither_feature_width_nor_classes(name: str) -> None:
    other = ModelSpec(channels=1, height=32, width=32, feature_dim=64, num_classes=3)
    base, same = (create_model(name, spec, seed=5).base.state_dict() for spec in (SPEC, other))
    assert all(torch.equal(base[key], same[key]) for key in base)
