"""A linear head that the server owns, and trains on the clients' class means (as FedGH does)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.errors import FrameError
from isoproto.geometry.prototypes import ClassRows
from isoproto.geometry.similarity import similarity_map
from isoproto.parts.anchors import learns_hyper_prototypes
from isoproto.parts.base import Arrays, Field, Part, PartState, Sent
from isoproto.parts.mean import published
from isoproto.parts.state import ServerState
from isoproto.seeding import torch_generator

if TYPE_CHECKING:
    from isoproto.config import RunConfig

_log = logging.getLogger("isoproto")

LinearHead = tuple[Tensor, Tensor]
"""Weight ``[C, d]`` and bias ``[C]``."""

# Epochs, batch size and step size as in FedGH.
EPOCHS, BATCH, RATE = 100, 100, 0.01


@dataclass(frozen=True)
class HeadState(PartState):
    """The server's head: weight ``[C, d]`` and bias ``[C]``."""

    head_weight: Tensor
    head_bias: Tensor


def server_head(state: ServerState, seed: int) -> LinearHead:
    """Return the server's head: the one it trained last, or one drawn from the seed."""
    if kept := HeadState.of(state):
        return kept.head_weight, kept.head_bias
    classes, width = state.prototypes.shape
    weight = torch.randn(classes, width, generator=torch_generator(seed, "server-head")) / width**0.5
    return weight, torch.zeros(classes)


@dataclass(frozen=True)
class ServerHead(Part):
    """Send the server's head, which clients take gradients through, and train it on the class means that they send."""

    seed: int
    frame: str
    minimum: int

    down = (
        Field(name="head-weight", shape="C d", together="head"),
        Field(name="head-bias", shape="C", together="head"),
    )

    @classmethod
    def of(cls, config: RunConfig) -> ServerHead | None:
        """Return the part if hyper-prototypes are learned through the server's head."""
        if not learns_hyper_prototypes(config) or config.hyper__head != "server":
            return None
        return cls(config.seed, config.frame, config.min_contributors)

    def downlink(self, state: ServerState) -> Arrays:
        """Send the head."""
        weight, bias = server_head(state, self.seed)
        return {"head-weight": weight, "head-bias": bias}

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Train the head on this round's class means."""
        rows = published([s.means for s in sent], len(after.present), self.minimum)
        return HeadState(*self._trained(server_head(before, self.seed), after, rows)).put(after)

    def _trained(self, head: LinearHead, state: ServerState, sent: Sequence[ClassRows]) -> LinearHead:
        """Return the head after some epochs of SGD on class means, each mapped into the common frame."""
        mapped = [(c.class_ids, rows) for c in sent if (rows := self._in_the_frame(c, state)) is not None]
        if not mapped:
            return head
        y, x = (torch.cat(parts) for parts in zip(*mapped, strict=True))
        weight, bias = (t.clone().requires_grad_() for t in head)
        optimizer = torch.optim.SGD([weight, bias], lr=RATE)
        generator = torch_generator(self.seed, "server-head", state.server_round)
        for _ in range(EPOCHS):
            for index in torch.randperm(len(y), generator=generator).split(BATCH):
                loss = functional.cross_entropy(x[index] @ weight.T + bias, y[index])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        return weight.detach(), bias.detach()

    def _in_the_frame(self, sent: ClassRows, state: ServerState) -> Tensor | None:
        """Return a client's class means in the server's frame, or ``None`` if there is no map."""
        if self.frame == "shared":
            return sent.rows
        common = state.present[sent.class_ids]
        try:
            to_frame = similarity_map(sent.rows[common], state.prototypes[sent.class_ids[common]], sent.counts[common])
        except FrameError as err:
            _log.warning("a client's class means are left out of the server's head: %s", err)
            return None
        return to_frame.forward(sent.rows) if to_frame else None
