"""Compare gradient steps in the common frame with FedHPro's form of it: K vectors per class that match the gradients.

In the common frame FedHPro's gradient matching (L_GM) would go like this. Clients send the gradient of the classifier
for the samples of each class. The server moves K vectors per class until the classifier has the same gradients on
them, and then trains the classifier on these vectors. The product does something simpler: the sum of the gradients
itself moves the classifier. This script runs both from the same start, with the same stop rule and the same held-out
samples, on digits4 with 20 clients.

    python benchmarks/reproduce/common_vectors.py    # three minutes; writes benchmarks/results/common_vectors.json
    python benchmarks/reproduce/common.py --table    # puts its table into docs/common.md
"""

from collections.abc import Callable
from typing import Any

import torch
from common_page import VECTORS
from torch import Tensor

from benchmarks.record import record
from client_app.client import Client
from client_app.in_frame import in_frame
from isoproto.common.classifier import Classifier, log_probabilities, solve
from isoproto.common.gradients import class_gradients, preconditioner
from isoproto.common.own import SHRINKAGES, TEMPERATURES, held_out_losses
from isoproto.common.samples import FrameSamples
from isoproto.common.statistics import Block, total
from isoproto.engines.in_process import in_process_host

CLIENTS, ROUNDS, SEEDS = 20, 10, (0, 1)
NUMBERS, TRAINING = (1, 4, 16), (1, 3)
# Steps of L-BFGS that match the vectors, and how far they start from the class mean, over the length of a sample.
# Both were tried on the first partition. Adam matched far worse.
MATCHING, SPREAD = 150, 0.1
Move = Callable[["Frame", Tensor, Tensor], Tensor]


class Frame:
    """All clients of a federation in the common frame, and the classifier that their statistics give.

    Rows of the classifier are in coordinates in which the second moment of all samples is the identity.
    """

    def __init__(self, partition: str, seed: int) -> None:
        settings: dict[str, Any] = {"strategy": "isoproto", "models": "none", "common.map": "standard"}
        settings |= {"partition": partition, "seed": seed, "partition-seed": seed}
        nodes = ({"partition-id": i, "num-partitions": CLIENTS} for i in range(CLIENTS))
        clients = [Client.of(settings, node, 1, in_process_host()) for node in nodes]
        self.tests = [client.data.test_y for client in clients]
        found = (in_frame(client, "vectors") for client in clients)
        self.clients: list[FrameSamples] = [samples for samples in found if samples is not None]
        classes, width = self.clients[0].num_classes, self.clients[0].fit.shape[2]
        blocks = [Block.of(samples.fit, samples.fit_labels, rank=64) for samples in self.clients]
        self.totals = total(blocks, classes, width)
        self.samples = float(self.totals.counts.sum())
        candidates = solve(self.totals, SHRINKAGES)
        losses = self._losses(candidates, TEMPERATURES)
        shrink, temperature = divmod(int(losses.argmin()), len(TEMPERATURES))
        self.temperature = TEMPERATURES[temperature]
        self.factor = preconditioner(self.totals, SHRINKAGES[shrink])
        self.start = candidates[shrink].rows @ self.factor

    def classifier(self, rows: Tensor) -> Classifier:
        """Return the classifier of rows in the whitened coordinates."""
        plain = torch.linalg.solve_triangular(self.factor.T, rows.T, upper=True).T
        return Classifier(plain, self.totals.counts > 0)

    def whitened(self, vectors: Tensor) -> Tensor:
        """Return vectors ``[..., D + 1]`` in the whitened coordinates."""
        return torch.linalg.solve_triangular(self.factor, vectors.flatten(0, -2).T, upper=False).T.view_as(vectors)

    def _losses(self, classifiers: list[Classifier], temperatures: tuple[float, ...]) -> Tensor:
        each = (held_out_losses(classifiers, s.held[:, 0], s.held_labels, temperatures, s.prior) for s in self.clients)
        return torch.stack(list(each)).sum(0)

    def loss(self, rows: Tensor) -> float:
        """Return the loss of all held-out samples."""
        return float(self._losses([self.classifier(rows)], (self.temperature,)))

    def accuracy(self, rows: Tensor) -> float:
        """Return the mean accuracy of the clients on their test samples, in per cent."""
        classifier = self.classifier(rows)
        each = []
        for samples, labels in zip(self.clients, self.tests, strict=True):
            logits = classifier.logits(samples.test.double())
            predicted = log_probabilities(logits, self.temperature, samples.prior).argmax(1)
            each.append((predicted == labels).double().mean())
        return 100 * float(torch.stack(each).mean())

    def gradients(self, rows: Tensor) -> Tensor:
        """Return the clients' summed gradient for the samples of each class, over all samples, ``[C, C, D + 1]``."""
        classifier = self.classifier(rows)
        found = torch.zeros(len(rows), *rows.shape, dtype=torch.float64)
        for samples in self.clients:
            for c in samples.fit_labels.unique().tolist():
                phi, labels = (all_of[samples.fit_labels == c] for all_of in (samples.fit, samples.fit_labels))
                found[c] += class_gradients(phi, labels, classifier, self.temperature, samples.prior)
        return self.whitened(found) / self.samples


def directly(frame: Frame, rows: Tensor, gradients: Tensor) -> Tensor:
    """Move the rows by the clients' gradient itself, as the product does."""
    return rows - 4 / frame.temperature * gradients.sum(0)


def by_vectors(number: int, training: int) -> Move:
    """Return a way to move the rows: K vectors per class are matched, and the rows make steps on them."""

    def move(frame: Frame, rows: Tensor, gradients: Tensor) -> Tensor:
        vectors = matched(frame, rows, gradients, number)
        for _ in range(training):
            rows = rows - 4 / frame.temperature * gradients_of(frame, rows, vectors).sum(0)
        return rows

    return move


def gradients_of(frame: Frame, rows: Tensor, vectors: Tensor) -> Tensor:
    """Return the gradient of vectors ``[C, K, D + 1]`` that stand for all samples, by class, ``[C, C, D + 1]``."""
    frequency = frame.totals.counts / frame.samples
    prior = (frequency + 1e-9).log()
    error = (
        log_probabilities((vectors @ rows.T).flatten(0, 1), frame.temperature, prior).exp().view(*vectors.shape[:2], -1)
    )
    error = error - torch.eye(len(rows), dtype=torch.float64).unsqueeze(1)
    return torch.einsum("ckj,cke->cje", error, vectors) * (frequency / vectors.shape[1]).view(-1, 1, 1)


def matched(frame: Frame, rows: Tensor, wanted: Tensor, number: int) -> Tensor:
    r"""Return K vectors per class, ``[C, K, D + 1]``, on which the classifier has the wanted gradients.

    .. math::
        L_{GM} = \sum_c \| A_c(u) - G_c \|^2 / \| G_c \|^2
    """
    means = frame.totals.sums / frame.totals.counts.clamp(min=1).unsqueeze(1)
    means = frame.whitened(torch.nn.functional.pad(means, (0, 1), value=1.0))
    shape = (len(rows), number, rows.shape[1])
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vectors = (means.unsqueeze(1) + SPREAD * noise).requires_grad_()
    lengths = wanted.square().sum((1, 2)).clamp(min=1e-30)
    optimizer = torch.optim.LBFGS([vectors], max_iter=MATCHING, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        found: Tensor = ((gradients_of(frame, rows, vectors) - wanted).square().sum((1, 2)) / lengths).sum()
        optimizer.zero_grad()
        found.backward()
        return found

    optimizer.step(loss)
    return vectors.detach()


def moved(frame: Frame, move: Move) -> dict[str, float]:
    """Move the rows until the held-out loss rises, and return how accurate the best ones are."""
    best, loss, steps = frame.start, frame.loss(frame.start), 0
    for _ in range(ROUNDS):
        rows = move(frame, best, frame.gradients(best))
        if (new := frame.loss(rows)) >= loss:
            break
        best, loss, steps = rows, new, steps + 1
    return {"accuracy": frame.accuracy(best), "loss": loss, "steps": steps}


def main() -> None:
    """Run both forms, and write their figures."""
    torch.set_num_threads(1)
    forms: dict[str, Move] = {"the gradients themselves": directly}
    forms |= {f"K = {k}, {j} steps on the vectors": by_vectors(k, j) for k in NUMBERS for j in TRAINING}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for partition in ("dirichlet", "domain"):
        for seed in SEEDS:
            frame = Frame(partition, seed)
            before = {"accuracy": frame.accuracy(frame.start), "loss": frame.loss(frame.start), "steps": 0}
            cells = {"the closed form": before, **{name: moved(frame, move) for name, move in forms.items()}}
            found[f"{partition}, seed {seed}"] = cells
            print(partition, seed, {name: round(cell["accuracy"], 2) for name, cell in cells.items()}, flush=True)
    record(VECTORS, {"command": "python benchmarks/reproduce/common_vectors.py", "partitions": found})


if __name__ == "__main__":
    main()
