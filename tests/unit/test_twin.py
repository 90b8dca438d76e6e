"""A shared model beside each client's own (FML)."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from isoproto.config import RunConfig
from isoproto.geometry.prototypes import ClassRows
from isoproto.parts import Batch, Sent, ServerState
from isoproto.parts.twin import Twin, TwinTerm, divergence
from strategies import STRATEGIES

Z = torch.tensor([[1, 0.5, 0], [0, 2, 1], [2, 0, 1], [1, 1, 3]])
W, BIAS = torch.tensor([[0.2, -0.1, 0.3], [-0.3, 0.4, 0.1], [0.1, 0.2, -0.2]]), torch.tensor([0.05, -0.05, 0])
LOGITS = Z @ W.T + BIAS
LABELS = torch.tensor([0, 1])


class Fixed(nn.Module):
    """Answers with its weights, whatever it is asked."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, x):
        return self.logits


def term(**changes):
    return TwinTerm(
        **{"module": Fixed(LOGITS[2:4]), "alpha": 0.5, "beta": 0.5, "detach": False, "clip": 0.0, **changes}
    )


def values(term, logits):
    (compare,) = term.batches([LABELS])
    return compare(Batch(torch.zeros(2, 1), torch.zeros(2, 3), logits, LABELS, torch.arange(2)))


def test_numbers_worked_by_hand():
    assert float(divergence(LOGITS[:2], LOGITS[2:4])) == pytest.approx(0.053951, abs=2e-6)
    mutual, twin, back = values(term(), LOGITS[:2]).tolist()
    entropy = float(functional.cross_entropy(LOGITS[:2], LABELS))
    assert 0.5 * entropy + 0.5 * mutual == pytest.approx(0.451327, abs=2e-6)
    assert 0.5 * twin + 0.5 * back == pytest.approx(0.480129, abs=2e-6)


@pytest.mark.parametrize("detach", [False, True])
def test_gradients_flow_into_both_unless_they_are_detached(detach):
    made, logits = term(detach=detach, alpha=0.3, beta=0.8), LOGITS[:2].clone().requires_grad_()
    loss = made.entropy * functional.cross_entropy(logits, LABELS) + values(made, logits) @ made.weights
    loss.backward()
    a, b = logits.detach().requires_grad_(), made.module.logits.detach().requires_grad_()
    fixed = (a.detach(), b.detach()) if detach else (a, b)

    def kl(logits, others):  # as a sum over samples and classes
        p, q = logits.softmax(1), others.softmax(1)
        return (q * (q.log() - p.log())).mean()

    own = 0.3 * functional.cross_entropy(a, LABELS) + 0.7 * kl(a, fixed[1])
    other = 0.8 * functional.cross_entropy(b, LABELS) + 0.2 * kl(b, fixed[0])
    (own + other).backward()
    assert torch.allclose(logits.grad, a.grad, atol=1e-7)
    assert torch.allclose(made.module.logits.grad, b.grad, atol=1e-7)


def test_twins_are_averaged_with_equal_weights_and_nothing_else_is_touched():
    part = Twin.of(STRATEGIES["fml"].resolve(RunConfig(strategy="fml")))
    start = ServerState.start(3, 2)
    rows = [ClassRows(torch.tensor([0]), torch.zeros(1, 2), torch.tensor([n]), n) for n in (1, 99)]
    weights = [{"twin.w": torch.tensor([value]), "head.w": torch.tensor([9.0])} for value in (1.0, 3.0)]
    sent = [Sent(row, 0.0, {}, shared) for row, shared in zip(rows, weights, strict=True)]
    assert part.fold(start, start, sent).shared == {"twin.w": torch.tensor([2.0])}


def test_all_clients_get_one_twin_and_keep_their_own_models(federation):
    run = federation.run(settings={"strategy": "fml", "models": "tiny_cnn,mlp", "rounds": 2, "batch-size": 10})
    assert not run.failures()
    losses = run.of("round", round=2)[0]["loss"]
    assert min(losses[name] for name in ("mutual", "twin", "twin_mutual")) > 0
    shared = {name for name in run.server() if name.startswith("shared.")}
    assert shared
    assert all(name.startswith("shared.twin.") for name in shared)


def test_a_client_goes_on_with_its_own_twin_where_the_server_sends_none(federation):
    """The first round begins before there is an average."""
    run = federation.run(settings={"strategy": "fml", "models": "mlp", "rounds": 1})
    from client_app.store import ClientStore

    stores = [ClientStore(federation.folder / "state", run.summary["experiment"], str(i)).load() for i in range(4)]
    twins = [{n: t for n, t in s.tensors.items() if n.startswith("part.twin.")} for s in stores]
    assert all(twins)
    averages = {n.removeprefix("shared."): t for n, t in run.server().items() if n.startswith("shared.")}
    for name, average in averages.items():
        stacked = torch.stack([twin[f"part.{name}"] for twin in twins])
        assert torch.allclose(stacked.double().mean(0).float(), average, atol=1e-6)


def test_a_resumed_run_ends_like_the_unbroken_one(federation):
    settings = {"strategy": "fml", "models": "tiny_cnn,mlp"}
    unbroken = federation.run(settings=settings)
    first = federation.run(settings={**settings, "rounds": 2})
    (first.path / "config.toml").write_text(
        (first.path / "config.toml").read_text().replace("rounds = 2", "rounds = 3")
    )
    resumed = federation.run(settings={"resume": str(first.path)})
    for name, tensor in unbroken.server().items():
        assert torch.equal(tensor, resumed.server()[name])
