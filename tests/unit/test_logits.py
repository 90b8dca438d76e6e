"""Class logits that travel (FedDistill)."""

import math

import pytest
import torch

from isoproto.config import RunConfig
from isoproto.errors import ConfigError
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import Batch, Sent, ServerState, View
from isoproto.parts.logits import ClassLogits, distillation
from strategies import STRATEGIES

C, D = 3, 4
START = ServerState.start(C, D)
Z = torch.tensor([[1, 0.5, 0], [0, 2, 1]])
W, BIAS = torch.tensor([[0.2, -0.1, 0.3], [-0.3, 0.4, 0.1], [0.1, 0.2, -0.2]]), torch.tensor([0.05, -0.05, 0])


def part(**settings):
    values = {"strategy": "feddistill", "feature-dim": D, **settings}
    return ClassLogits.of(STRATEGIES["feddistill"].resolve(RunConfig.from_mapping(values)))


def sent(ids, logits, count=9):
    ids = torch.tensor(ids)
    means = ClassRows(ids, torch.zeros(len(ids), D), torch.full((len(ids),), count), 36)
    return Sent(means, 0.1, {"logits": torch.tensor(logits)}, {})


def view(arrays):
    return View(client="0", server_round=2, frame="shared", arrays=arrays, own_means=None, num_classes=C, feature_dim=D)


def by_loops(logits, labels, targets, present):
    total = 0.0
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        wanted = targets[y].tolist() if present[y] else row
        weights = [math.exp(v) / sum(map(math.exp, wanted)) for v in wanted]
        total -= sum(w * (v - math.log(sum(map(math.exp, row)))) for w, v in zip(weights, row, strict=True))
    return total / len(labels)


def test_a_number_worked_by_hand_and_the_loops():
    logits, labels = Z @ W.T + BIAS, torch.tensor([0, 1])
    targets, present = torch.tensor([[2.0, 0, 0], [0, 1, 1], [5, 5, 5]]), torch.tensor([True, True, False])
    assert float(distillation(logits, labels, targets, present)) == pytest.approx(1.058972, abs=2e-6)
    labels = torch.tensor([2, 1])  # class 2 has no target
    assert float(distillation(logits, labels, targets, present)) == pytest.approx(
        by_loops(logits, labels, targets, present), abs=1e-6
    )


def test_a_class_without_target_pulls_nowhere():
    logits = torch.randn(4, C, requires_grad=True)
    loss = distillation(logits, torch.zeros(4, dtype=torch.int64), torch.randn(C, C), torch.zeros(C, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() < 1e-7


def test_every_client_counts_the_same_and_absent_classes_keep_the_last_logits():
    first = part().fold(
        START, START, [sent([0, 1], [[1.0, 0, 0], [0, 2.0, 0]], count=1), sent([0], [[3.0, 0, 0]], count=99)]
    )
    second = part().fold(first, first, [sent([2], [[0, 0, 7.0]])])
    down = part().downlink(second)
    assert down["class-logits"].tolist() == [[2.0, 0, 0], [0, 2.0, 0], [0, 0, 7.0]]
    assert down["class-logits-present"].tolist() == [True] * 3
    assert part().downlink(START) == {}


def test_a_thin_class_is_not_published():
    state = part(**{"min-contributors": 2}).fold(
        START, START, [sent([0, 1], [[1.0, 0, 0]] * 2), sent([0], [[3.0, 0, 0]])]
    )
    assert part().downlink(state)["class-logits-present"].tolist() == [True, False, False]


def test_the_term_is_made_of_what_the_server_sent():
    assert part().terms(view({})) == ()
    arrays = {"class-logits": torch.eye(C), "class-logits-present": torch.tensor([True, True, False])}
    (term,) = part(**{"logits.weight": 0.5}).terms(view(arrays))
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, D), Z @ W.T + BIAS, torch.tensor([0, 1]), torch.arange(2))
    (compare,) = term.batches([batch.labels])
    assert float(compare(batch) @ term.weights) == pytest.approx(
        float(distillation(batch.logits, batch.labels, *arrays.values())) / 2
    )


def test_a_federation_distils_from_the_second_round_on(federation):
    run = federation.run(settings={"strategy": "feddistill", "rounds": 2})
    assert not run.failures()
    first, second = (line["loss"]["distillation"] for line in run.of("round"))
    assert first == 0 < second
    assert run.server()["memory.class-logits"].shape == (4, 4)


def test_it_joins_prototypes(federation):
    run = federation.run(settings={"strategy": "fedsaf", "alignment": "gcsa+logits", "rounds": 2})
    losses = run.of("round", round=2)[0]["loss"]
    assert losses["prototype"] > 0 < losses["distillation"]


def test_an_owner_is_asked(federation):
    settings = STRATEGIES["feddistill"].resolve(RunConfig(strategy="feddistill")).changes()
    node = {"data": federation.settings["data"], "name": "a", "may-send": "gradients"}
    with pytest.raises(ConfigError, match="strategy 'feddistill' asks for logits, and `may-send` of this node"):
        federation.client(node, settings)
