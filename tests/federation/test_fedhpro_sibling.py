"""FedHPro once more, written with plain loops and autograd, beside the fast code: two rounds of three clients.

Everything but the networks and the data is written anew from the equations of arXiv:2605.13475: the losses sample by
sample, the gradients through autograd, the averages client by client, and gradient matching by double differentiation.
"""

import torch
from torch.nn import functional

from client_app.training import batches
from isoproto.data import to_float
from isoproto.seeding import derive, torch_generator
from models import create_model

ROUNDS, CLASSES, WIDTH, PER_CLASS, STEPS, TAU = 2, 4, 8, 5, 30, 0.05
SETTINGS = {
    "strategy": "fedhpro",
    "models": "cnn",
    "rounds": ROUNDS,
    "partition": "shards",
    "classes-per-client": 2,
    "batch-size": 8,
    "hyper.form": "paper",
    "hyper.learning-rate": 20.0,  # so large that matching moves the vectors by more than rounding
}


def class_means(model, client):
    """Eq. 2, one sample at a time."""
    model.eval()
    with torch.no_grad():
        features = [model.features(to_float(x.unsqueeze(0)))[0] for x in client.data.train_x]
    means = {}
    for c in range(CLASSES):
        own = [z for z, y in zip(features, client.data.train_y, strict=True) if y == c]
        if own:
            means[c] = sum(own) / len(own)
    return means


def margin(means):
    """Eq. 10."""
    pairs = [(a, b) for a in means for b in means if a != b]
    return sum(float((means[a] - means[b]).norm()) for a, b in pairs) / (CLASSES - 1) ** 2


def loss(model, x, y, vectors, d_k):
    """Eqs. 11 to 15 on one batch."""
    features = model.features(to_float(x))
    total = functional.cross_entropy(model.head(features), y)
    for z, label in zip(features, y.tolist(), strict=True):
        similar = [sum(torch.cosine_similarity(z, s, dim=0) for s in vectors[c]) / PER_CLASS for c in range(CLASSES)]
        logits = [s + (d_k if c != label else 0.0) for c, s in enumerate(similar)]
        exponents = torch.stack(logits) / TAU
        contrast = torch.logsumexp(exponents, 0) - exponents[label]
        centre = sum(vectors[label]) / PER_CLASS
        pull = sum(t * t / 2 if abs(t) <= 1 else abs(t) - 0.5 for t in z - centre)
        total = total + (contrast + pull) / len(y)
    return total


def gradients(model, client):
    """Eq. 5 through autograd."""
    model.eval()
    sums, counts = {}, {}
    for x, y in zip(client.data.train_x, client.data.train_y.tolist(), strict=True):
        z = model.features(to_float(x.unsqueeze(0))).detach().requires_grad_()
        (g,) = torch.autograd.grad(functional.cross_entropy(model.head(z), torch.tensor([y])), z)
        sums[y] = sums.get(y, 0) + g[0]
        counts[y] = counts.get(y, 0) + 1
    return {c: sums[c] / counts[c] for c in sums}


def match(vectors, weight, bias, wanted):
    """Eqs. 7 to 9: plain gradient descent on every class, the gradient of a gradient by autograd."""
    vectors, weight, bias = vectors.double().clone(), weight.double(), bias.double()
    for c, g in wanted.items():
        for _ in range(STEPS):
            s = vectors[c].clone().requires_grad_()
            produced = 0
            for j in range(PER_CLASS):
                ce = functional.cross_entropy((weight @ s[j] + bias).unsqueeze(0), torch.tensor([c]))
                produced = produced + torch.autograd.grad(ce, s, create_graph=True)[0][j] / PER_CLASS
            distance = 1 - torch.cosine_similarity(produced, g.double(), dim=0)
            (step,) = torch.autograd.grad(distance, s)
            vectors[c] -= SETTINGS["hyper.learning-rate"] * step
    return vectors.float()


def test_the_fast_code_agrees_with_the_plain_one_round_by_round(federation):
    """Three clients; each lacks two of the four classes."""
    grid = federation.grid(clients=3)
    clients = [federation.client(grid.context(i).node_config, SETTINGS) for i in range(3)]
    assert all(len(client.data.train_y.unique()) == 2 for client in clients)
    state = create_model("cnn", clients[0].spec, derive(0, "model", "cnn")).state_dict()
    vectors = torch.randn(CLASSES, PER_CLASS, WIDTH, generator=torch_generator(0, "hyper"))
    for server_round in range(1, ROUNDS + 1):
        models, found = [], []
        for client in clients:
            model = create_model("cnn", client.spec, 0)
            model.load_state_dict(state)
            d_k = margin(class_means(model, client))
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            generator = torch_generator(0, "batches", server_round, client.name)
            for index in batches(len(client.data.train_y), SETTINGS["batch-size"], generator):
                optimizer.zero_grad()
                loss(model, client.data.train_x[index], client.data.train_y[index], vectors, d_k).backward()
                optimizer.step()
            models.append(model)
            found.append(gradients(model, client))
        samples = [len(client.data.train_y) for client in clients]
        state = {
            name: sum(n * m.state_dict()[name] for n, m in zip(samples, models, strict=True)) / sum(samples)
            for name in state
        }
        wanted = {}
        for c in range(CLASSES):  # Eq. 6
            own = [g[c] for g in found if c in g]
            if own:
                wanted[c] = sum(own) / len(own)
        before = vectors
        vectors = match(vectors, state["head.weight"], state["head.bias"], wanted)
        assert (vectors - before).abs().max() > 1e-2

        run = federation.run(federation.grid(clients=3), {**SETTINGS, "rounds": server_round})
        fast = run.server()
        assert run.failures() == {}
        for name, tensor in state.items():
            torch.testing.assert_close(fast[f"shared.{name}"], tensor, rtol=1e-3, atol=1e-4)
        start = torch.randn(CLASSES, PER_CLASS, WIDTH, generator=torch_generator(0, "hyper"))
        torch.testing.assert_close(start + fast["memory.learned"], vectors, rtol=1e-2, atol=1e-3)
