"""Global prototypes that the server trains to be far from each other, with an adaptive margin (FedTGP, AAAI 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.geometry.prototypes import average_prototypes
from isoproto.parts.base import Arrays, Part, PartState, Sent
from isoproto.parts.mean import PROTOTYPES, published, renewed, send_prototypes
from isoproto.parts.state import ServerState
from isoproto.seeding import torch_generator

if TYPE_CHECKING:
    from isoproto.config import RunConfig


@dataclass(frozen=True)
class PrototypeNet(PartState):
    r"""A small network that makes the prototypes: :math:`G = \mathrm{relu}(E W_1^T + b_1) W_2^T + b_2`.

    Attributes:
        tgp_embedding: One vector per class, :math:`E`, shape ``[C, d]``.
        tgp_weight_in: :math:`W_1`, shape ``[d, d]``.
        tgp_bias_in: :math:`b_1`, shape ``[d]``.
        tgp_weight_out: :math:`W_2`, shape ``[d, d]``.
        tgp_bias_out: :math:`b_2`, shape ``[d]``.
    """

    tgp_embedding: Tensor
    tgp_weight_in: Tensor
    tgp_bias_in: Tensor
    tgp_weight_out: Tensor
    tgp_bias_out: Tensor

    @classmethod
    def start(cls, classes: int, width: int, generator: torch.Generator) -> PrototypeNet:
        """Draw the network: the embedding from N(0, 1), the layers as ``nn.Linear`` does."""
        bound = width**-0.5
        embedding = torch.randn(classes, width, generator=generator)
        shapes = [(width, width), (width,), (width, width), (width,)]
        layers = (torch.empty(shape).uniform_(-bound, bound, generator=generator) for shape in shapes)
        return cls(embedding, *layers)

    @property
    def tensors(self) -> list[Tensor]:
        """The weights, in the order of the attributes."""
        return [self.tgp_embedding, self.tgp_weight_in, self.tgp_bias_in, self.tgp_weight_out, self.tgp_bias_out]

    def prototypes(self) -> Tensor:
        """Return the prototypes of all classes, shape ``[C, d]``."""
        hidden = functional.linear(self.tgp_embedding, self.tgp_weight_in, self.tgp_bias_in).relu()
        return functional.linear(hidden, self.tgp_weight_out, self.tgp_bias_out)


def adaptive_margin(prototypes: Tensor, present: Tensor, most: float) -> float:
    r"""Return the largest distance from a class to its nearest other class, at most ``most``.

    .. math::
        \delta = \min\left(\max_c \min_{c' \ne c} \|\bar p^c - \bar p^{c'}\|, \delta_{max}\right)

    Args:
        prototypes: Mean prototypes of this round, shape ``[C, d]``.
        present: Which classes have a prototype, shape ``[C]``, bool. With fewer than two the margin is 0.
        most: :math:`\delta_{max}`.

    Example:
        >>> p = torch.tensor([[1.0, 0.0], [1.0, 1.0], [4.0, 4.0]])
        >>> round(adaptive_margin(p, torch.tensor([True, True, True]), most=100.0), 6)
        4.242641
    """
    rows = prototypes[present].double()
    if len(rows) < 2:
        return 0.0
    distances = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    return min(float(distances.min(1).values.max()), most)


def margin_loss(rows: Tensor, labels: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    r"""Return the mean cross-entropy of rows that must be nearer to their own prototype by a margin.

    .. math::
        \mathrm{logit}_{jk} = -(\|p_j - G_k\| + \delta [k = c_j])

    Args:
        rows: Uploaded class means :math:`p`, shape ``[n, d]``.
        labels: Their classes :math:`c`, shape ``[n]``, int64.
        prototypes: :math:`G`, shape ``[C, d]``.
        margin: :math:`\delta`, >= 0.

    Example:
        >>> x, g = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]])
        >>> margin_loss(x, torch.tensor([0, 1, 1]), g, margin=1.0).round(decimals=6)
        tensor(1.4110)
    """
    # Without matrix products, so that equal rows have distance 0 and a gradient of 0, not NaN.
    distances = torch.cdist(rows, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    is_class = functional.one_hot(labels, len(prototypes))
    return functional.cross_entropy(-(distances + margin * is_class), labels)


@dataclass(frozen=True, kw_only=True)
class TrainablePrototypes(Part):
    """Train prototypes on the server, so that each client's class means are nearest to the prototype of their class.

    A network makes the prototypes of all classes. It is kept between rounds, and each round trains it on the class
    means that clients sent. A class that too few clients sent is not trained on, but has a prototype all the same.
    """

    epochs: int
    learning_rate: float
    most_margin: float
    batch_size: int
    minimum: int
    seed: int

    makes = ("trainable",)
    down = PROTOTYPES

    @classmethod
    def of(cls, config: RunConfig) -> TrainablePrototypes | None:
        """Return the part if the setting `prototypes` asks for it."""
        if config.prototypes != "trainable":
            return None
        return cls(
            epochs=config.tgp__epochs,
            learning_rate=config.tgp__learning_rate,
            most_margin=config.tgp__margin,
            batch_size=config.batch_size,
            minimum=config.min_contributors,
            seed=config.seed,
        )

    def downlink(self, state: ServerState) -> Arrays:
        """Send the prototypes."""
        return send_prototypes(state)

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Train the network on this round's class means; without any, the prototypes stay as they are."""
        classes, width = after.prototypes.shape
        rows = published([s.means for s in sent], classes, self.minimum)
        x, y = (torch.cat([torch.zeros(0), *parts]) for parts in ([r.rows for r in rows], [r.class_ids for r in rows]))
        if not len(y):
            return renewed(after, after.prototypes, torch.zeros_like(after.present), stale="keep")
        mean = average_prototypes(rows, classes, width, weighting="uniform")
        margin = adaptive_margin(mean.vectors, mean.present, self.most_margin)
        kept = PrototypeNet.of(after) or PrototypeNet.start(classes, width, torch_generator(self.seed, "tgp"))
        generator = torch_generator(self.seed, "tgp", before.server_round)
        net = self._trained(kept, x, y.long(), margin, generator)
        return renewed(net.put(after), net.prototypes(), torch.ones_like(after.present), stale="keep")

    def _trained(
        self, net: PrototypeNet, x: Tensor, y: Tensor, margin: float, generator: torch.Generator
    ) -> PrototypeNet:
        """Return the network after some epochs of SGD. If training breaks it, return it as it was."""
        trained = PrototypeNet(*(t.clone().requires_grad_() for t in net.tensors))
        optimizer = torch.optim.SGD(trained.tensors, lr=self.learning_rate)
        for _ in range(self.epochs):
            for index in torch.randperm(len(y), generator=generator).split(self.batch_size):
                optimizer.zero_grad(set_to_none=True)
                margin_loss(x[index], y[index], trained.prototypes(), margin).backward()
                optimizer.step()
        finite = all(bool(t.isfinite().all()) for t in trained.tensors)
        return PrototypeNet(*(t.detach() for t in trained.tensors)) if finite else net
