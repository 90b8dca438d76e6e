"""Whole federations of models for text, in one process."""

import json

import numpy as np
import pytest

from client_app.store import ClientStore
from isoproto import paths
from isoproto.errors import FederationError
from models import FAMILIES

TEXT = {"feature-dim": 16, "rounds": 2, "optimizer": "adam", "learning-rate": 0.01, "alpha": 5.0}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A file of 160 texts of two classes, each with words of its own."""
    rng = np.random.default_rng(0)
    kinds = {"good": ["fine", "great", "lovely", "the", "a"], "bad": ["poor", "awful", "broken", "the", "a"]}
    path = tmp_path_factory.mktemp("texts") / "reviews.jsonl"
    rows = [{"text": " ".join(rng.choice(words, rng.integers(3, 9))), "label": label}
            for _ in range(80) for label, words in kinds.items()]  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"jsonl:{path}"


@pytest.mark.parametrize("family", ["text4", "htfe6txt", "mlp5txt"])
def test_different_models_for_text_learn_together(federation, reviews, family):
    grid = federation.grid(clients=len(FAMILIES[family]))
    run = federation.run(grid, {**TEXT, "data": reviews, "models": family})
    assert run.failures() == {}
    assert [line["model"] for line in json.loads((run.path / "partition.json").read_text())["clients"]] == list(
        FAMILIES[family]
    )
    assert run.server()["present"].all()
    assert run.summary["status"] == "completed"
    first, *_, last = run.of("evaluation")
    correct = [sum(c["correct"] for c in line["clients"]) for line in (first, last)]
    assert correct[1] > correct[0]


@pytest.mark.parametrize(
    ("strategy", "models"),
    [("fedsaf", "text4"), ("isoproto_anchors", "text4"), ("fedsaf", "mlp4txt"), ("isoproto_anchors", "mlp4txt")],
)
def test_heads_of_text_models_may_differ(federation, reviews, strategy, models):
    """The i-th client's head has i hidden layers, and its bases are of four kinds."""
    settings = {**TEXT, "data": reviews, "models": models, "heads": "mixed", "strategy": strategy}
    run = federation.run(settings=settings)
    assert run.failures() == {}
    assert run.server()["present"].all()
    for client in range(4):
        store = ClientStore(paths.state_dir(federation.settings["state-dir"]), run.summary["experiment"], str(client))
        weights = [t for name, t in sorted(store.load().tensors.items()) if name.startswith("head.") and t.ndim == 2]
        assert [tuple(w.shape) for w in weights] == [(16, 16)] * client + [(2, 16)]
    losses = run.of("round")[-1]["loss"]
    assert losses["total"] > losses["cross_entropy"]


def test_an_own_model_for_texts_learns_with_the_others(federation, reviews, tmp_path):
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def words(spec):\n"
        "    return nn.Sequential(nn.Embedding(spec.vocabulary, 4), nn.Flatten(), nn.Linear(4 * spec.length, 24))\n"
    )
    own = f"{tmp_path}/own.py:words"
    run = federation.run(federation.grid(clients=2), {**TEXT, "data": reviews, "models": f"{own},fasttext"})
    assert run.failures() == {}
    assert [line["model"] for line in run.of("client", round=2)] == ["own.py:words", "fasttext"]
    assert run.server()["present"].all()


def test_a_text_run_is_a_function_of_its_seed(federation, reviews):
    settings = {**TEXT, "data": reviews, "models": "text4"}
    one, other = (federation.run(settings=settings).steady() for _ in range(2))
    assert one == other


def test_whole_models_for_text_can_be_averaged(federation, reviews):
    run = federation.run(settings={**TEXT, "data": reviews, "models": "textcnn", "strategy": "fedavg"})
    assert run.failures() == {}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"models": "demo4"}, r"ConfigError: model 'cnn' is for pictures, but the data are text; set `models` to"),
        (
            {"models": "text4", "augment": "flip"},
            r"ConfigError: `augment = flip` changes pictures, and data .* is text",
        ),
    ],
)
def test_what_is_for_pictures_is_refused_before_round_1(federation, reviews, settings, told):
    with pytest.raises(FederationError, match=told):
        federation.run(settings={**TEXT, "data": reviews, **settings})
    assert federation.newest().of("round") == []


def test_models_for_text_are_refused_on_pictures(federation):
    with pytest.raises(FederationError, match=r"ConfigError: model 'textcnn' is for text, but the data are pictures"):
        federation.run(settings={"models": "text4"})
