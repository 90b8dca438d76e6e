"""Which counts of a client's predictors reach the lines of ``metrics.jsonl``."""

import dataclasses
import json

import pytest
import torch

from isoproto import wire
from isoproto.config import RunConfig
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import ServerState, reported_terms
from isoproto.runs.added import added_figures
from isoproto.runs.run_folder import RunFolder
from strategies.journal import Journal
from strategies.replies import GoodReply

INFO = wire.ClientInfo(
    client="0", model="cnn", feature_dim=2, classes=("a", "b"), train_counts=(30, 12), test_counts=(6, 4)
)
PLAIN = wire.Evaluation(correct=7, total=10)
COMPARED = wire.Evaluation(correct=7, total=10, predictors={"joint": 7, "alone": 5}, gained=3, lost=1)
HEAD = wire.Evaluation(correct=7, total=10, predictors={"head": 4})


def client_line(tmp_path, after):
    """The line of a client that trained."""
    means = ClassRows(torch.tensor([0, 1]), torch.zeros(2, 2), torch.tensor([30, 12]), 42)
    reply = wire.TrainReply(
        means=means, scatter=0.0, losses=dict.fromkeys(reported_terms(()), 0.5), before=PLAIN, after=after, seconds=1.0
    )
    state = dataclasses.replace(ServerState.start(2, 2), server_round=1)
    folder = RunFolder(tmp_path, "e1")
    journal = Journal(RunConfig(), folder)
    journal.begin_round()
    journal.note_round(state, [GoodReply(INFO, reply, 100)], failed=0, asked=1, bytes_down=60, training_s=0.1)
    return next(line for line in written(folder) if line["kind"] == "client")


def entry(tmp_path, evaluation):
    """The entry of a client that was evaluated."""
    folder = RunFolder(tmp_path, "e1")
    Journal(RunConfig(), folder).note_evaluation(1, [GoodReply(INFO, evaluation, 100)], frozenset(), one_model=False)
    return written(folder)[0]["clients"][0]


def written(folder):
    folder.commit()
    return [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]


def test_counts_of_predictors_stand_in_the_entry_of_an_evaluation(tmp_path):
    found = entry(tmp_path, COMPARED)
    assert found["predictors"] == {"joint": 7, "alone": 5}
    assert (found["gained"], found["lost"], found["samples"]) == (3, 1, 42)
    assert added_figures([found])["clients"]["difference"] == pytest.approx(0.2)


def test_without_predictors_the_entry_of_an_evaluation_is_as_it_was(tmp_path):
    assert not {"predictors", "gained", "lost", "samples"} & entry(tmp_path, PLAIN).keys()


def test_without_predictors_the_line_of_a_client_is_as_it_was(tmp_path):
    assert not {"predictors", "gained", "lost"} & client_line(tmp_path, PLAIN).keys()


def test_without_a_comparison_nothing_is_gained_or_lost(tmp_path):
    found = entry(tmp_path, HEAD)
    assert found["predictors"] == {"head": 4}
    assert not {"gained", "lost"} & found.keys()


def test_counts_of_predictors_stand_in_the_line_of_a_client(tmp_path):
    found = client_line(tmp_path, COMPARED)
    assert (found["predictors"], found["gained"], found["lost"]) == ({"joint": 7, "alone": 5}, 3, 1)
    assert found["samples"] == 42
