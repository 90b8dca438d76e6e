"""What every model for text must do besides what all models must (``test_models_contract``)."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from isoproto.config import RunConfig
from isoproto.errors import ConfigError
from models import FAMILIES, MODELS, TEXT_MODELS, ModelSpec, TextSpec, architectures, create_model
from models.cost import cost
from server_app.scale import at_scale

NAMES = sorted(TEXT_MODELS)
BAGS = [name for name in NAMES if name.startswith("bag_mlp")]
UNORDERED = ["fasttext", "text_logistic", *BAGS]
SPEC = TextSpec(vocabulary=50, length=12, feature_dim=64, num_classes=3)
PICTURES = ModelSpec(channels=1, height=32, width=32, feature_dim=64, num_classes=3)
LENGTHS = (1, 2, 4, 7, 12)


def texts(lengths: tuple[int, ...] = LENGTHS, places: int = 12) -> Tensor:
    tokens = torch.randint(1, 50, (len(lengths), places), generator=torch.Generator().manual_seed(0))
    for row, length in zip(tokens, lengths, strict=True):
        row[length:] = 0
    return tokens


@pytest.mark.parametrize("width", [64, 100, 512])
@pytest.mark.parametrize("name", NAMES)
def test_trains_on_two_texts_with_finite_gradients_everywhere(name: str, width: int) -> None:
    spec = TextSpec(vocabulary=50, length=12, feature_dim=width, num_classes=3)
    model = create_model(name, spec, seed=0)
    logits = model(texts((3, 12)))
    functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert model.features(texts((3, 12))).shape == (2, width)
    assert logits.shape == (2, 3)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key


@pytest.mark.parametrize("name", NAMES)
def test_trains_in_bf16_on_a_cpu(name: str) -> None:
    """PyTorch has no LSTM of that type for each processor."""
    model = create_model(name, SPEC, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(texts((3, 12)))
    functional.cross_entropy(logits.float(), torch.tensor([0, 1])).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_feature(name: str) -> None:
    """Neither how much of it there is, nor the other texts of the batch."""
    model = create_model(name, SPEC, seed=0).eval()
    together = model.features(texts())
    alone = torch.cat([model.features(row[None, :length]) for row, length in zip(texts(), LENGTHS, strict=True)])
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-3  # and what is no padding does


@pytest.mark.parametrize("name", NAMES)
def test_padding_learns_nothing_and_texts_of_nothing_else_are_finite(name: str) -> None:
    model = create_model(name, SPEC, seed=0)
    nothing = torch.zeros(2, 12, dtype=torch.int64)
    model(torch.cat([nothing, texts((2, 5))])).square().sum().backward()
    for table in (m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)):
        assert not table.weight[0].any()
        assert not table.weight.grad[0].any()  # type: ignore[index]
    assert torch.isfinite(model.eval().features(nothing)).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNORDERED])
def test_the_order_of_words_matters(name: str) -> None:
    model = create_model(name, SPEC, seed=0).eval()
    x = texts((12,))
    assert (model.features(x) - model.features(x.flip(1))).abs().max() > 1e-3


@pytest.mark.parametrize("name", UNORDERED)
def test_the_order_of_words_does_not_matter_to_means_and_counts(name: str) -> None:
    model = create_model(name, SPEC, seed=0).eval()
    x = texts((12,))
    torch.testing.assert_close(model.features(x), model.features(x.flip(1)))


def test_the_mean_of_word_vectors_is_the_one_worked_by_hand() -> None:
    model = create_model("text_logistic", TextSpec(4, 3, 2, 2), seed=0)
    with torch.no_grad():
        model.base[0].weight.copy_(torch.tensor([[0.0, 0.0], [9.0, 9.0], [1.0, 2.0], [3.0, -2.0]]))
    means = model.features(torch.tensor([[2, 3, 0], [2, 2, 3]]))
    torch.testing.assert_close(means, torch.tensor([[2.0, 0.0], [5 / 3, 2 / 3]]))


def test_words_are_counted_but_neither_padding_nor_unknown_nor_rarer_ones() -> None:
    """Only the most frequent 5,000 words have a column, the tokens 2 to 5,001; a smaller vocabulary has them all."""
    text = torch.tensor([[2, 5_001, 2, 5_002, 1, 29_999, 0, 0]], dtype=torch.int32)
    counts = create_model("bag_mlp", TextSpec(30_000, 8, 64, 2), seed=0).base[0](text)
    assert counts.shape == (1, 5_000)
    assert counts.nonzero().tolist() == [[0, 0], [0, 4_999]]
    assert counts[0, [0, -1]].tolist() == [2.0, 1.0]
    assert create_model("bag_mlp", SPEC, seed=0).base[0](texts()).shape == (len(LENGTHS), 48)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("bag_mlp", 5_001 * 100),
        ("bag_mlp_200", 5_001 * 200 + 201 * 100),
        ("bag_mlp_500", 5_001 * 500 + 501 * 100),
        ("bag_mlp_1000_500", 5_001 * 1_000 + 1_001 * 500 + 501 * 100),
        ("bag_mlp_1000_500_200", 5_001 * 1_000 + 1_001 * 500 + 501 * 200 + 201 * 100),
    ],
)
def test_perceptrons_have_the_papers_sizes_and_are_100_wide(name: str, base: int) -> None:
    counted = cost(name, TextSpec(vocabulary=30_000, length=200, feature_dim=512, num_classes=2))
    assert (counted.parameters, counted.width) == (base + 2 * 513, 100)


def test_the_groups_of_perceptrons_are_in_order_and_stay_mixed_when_small() -> None:
    four, five = architectures("mlp4txt"), architectures("mlp5txt")
    assert five == ("bag_mlp", "bag_mlp_200", "bag_mlp_500", "bag_mlp_1000_500", "bag_mlp_1000_500_200")
    assert four == tuple(name for name in five if name != "bag_mlp_200")
    small, _ = at_scale(RunConfig(models="mlp5txt", scale="small"))
    assert small.models == "bag_mlp,bag_mlp_200,bag_mlp_150,bag_mlp_300_150,bag_mlp_300_150_60"


def test_a_filter_sees_windows_that_reach_beyond_a_text_and_none_that_begin_there() -> None:
    """The text 2, 3 has the windows (2, 3, 0) and (3, 0, 0); the filter adds up what it sees and takes 5."""
    model = create_model("textcnn", TextSpec(4, 6, 1, 2), seed=0).eval()
    windows = model.base[0]
    with torch.no_grad():
        windows.words.vectors.weight.copy_(torch.tensor([[0.0], [9.0], [1.0], [7.0]]))
        for conv in windows.filters:
            conv.weight.fill_(1.0)
            conv.bias.fill_(-5.0)
    assert windows(torch.tensor([[2, 3, 0, 0, 0, 0]])).unique().tolist() == [3.0]
    assert windows(torch.tensor([[2, 0, 0, 0, 0, 0]])).unique().tolist() == [0.0]
    with torch.no_grad():
        for conv in windows.filters:
            conv.bias.fill_(2.0)  # the padding's own windows would answer 2
            conv.weight.fill_(-1.0)
    assert windows(torch.tensor([[3, 3, 0, 0, 0, 0]])).unique().tolist() == [0.0]


@pytest.mark.parametrize("name", NAMES)
def test_32_bit_token_ids_give_the_same(name: str) -> None:
    model = create_model(name, SPEC, seed=0).eval()
    assert torch.equal(model(texts().int()), model(texts()))


def test_architectures_differ_in_names_or_shapes() -> None:
    shapes = {n: {k: v.shape for k, v in create_model(n, SPEC, seed=0).state_dict().items()} for n in NAMES}
    for one, other in itertools.combinations(NAMES, 2):
        assert shapes[one] != shapes[other], (one, other)


@pytest.mark.parametrize(
    ("name", "base"),
    [  # words have 50 x 64 weights; an LSTM layer has 4 x (2 x 64 x 64 + 2 x 64), a GRU layer three quarters of it
        ("fasttext", 3_200 + 64 * 65),
        ("text_logistic", 3_200),
        ("lstm", 3_200 + 2 * 33_280),
        ("gru", 3_200 + 2 * 24_960),
        ("bilstm", 3_200 + 2 * 33_280 + 64 * 129),
        ("textcnn", 3_200 + 100 * (64 * (3 + 4 + 5) + 3) + 64 * 301),
        # the vector at the start; attention, two linear layers, two norms
        ("transformer", 3_200 + 64 + 2 * (4 * 64 * 65 + 2_048 * 65 + 64 * 2_049 + 4 * 64)),
    ],
)
def test_sizes_are_those_of_the_definitions(name: str, base: int) -> None:
    assert cost(name, SPEC).parameters == base + 3 * 65
    assert cost(name, SPEC).width == 64


def test_what_a_text_costs_is_counted_on_its_whole_length() -> None:
    """64 x 64 and 64 x 3 products for fastText; its mean is no product."""
    assert cost("fasttext", SPEC).flops == 2 * (64 * 64 + 64 * 3)
    short = TextSpec(vocabulary=50, length=6, feature_dim=64, num_classes=3)
    assert cost("lstm", SPEC).flops - cost("lstm", short).flops == 2 * 6 * 2 * 2 * 4 * 64 * 64


def test_a_width_that_eight_heads_do_not_divide_is_pooled() -> None:
    assert cost("transformer", TextSpec(vocabulary=50, length=6, feature_dim=100, num_classes=3)).width == 104


def test_htfe6txt_is_the_papers_list_in_order() -> None:
    assert architectures("htfe6txt") == ("fasttext", "lstm", "bilstm", "transformer", "text_logistic", "gru")
    assert all(
        name in TEXT_MODELS for family in ("htfe6txt", "mlp4txt", "mlp5txt", "text4") for name in FAMILIES[family]
    )
    assert not TEXT_MODELS.keys() & (MODELS.keys() | FAMILIES.keys())


@pytest.mark.parametrize(
    ("name", "spec", "text"),
    [
        ("cnn", SPEC, r"model 'cnn' is for pictures, but the data are text; set `models` to 'htfe6txt'"),
        ("gru", PICTURES, r"model 'gru' is for text, but the data are pictures; set `models` to 'demo4'"),
        ("grü", SPEC, r"unknown model 'grü'.*'gru'"),
    ],
)
def test_a_model_for_other_data_is_refused(name: str, spec: ModelSpec | TextSpec, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        create_model(name, spec, seed=0)


def test_a_list_of_both_kinds_is_refused() -> None:
    with pytest.raises(ConfigError, match="all for pictures or all for text, got cnn for pictures and gru for text"):
        architectures("cnn, gru")
