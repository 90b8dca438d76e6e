"""The server's state between rounds: a frozen value that each round replaces. It is written as the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from isoproto.runs.checkpoint import Checkpoint


class LastAccuracy(NamedTuple):
    """The newest accuracy of a client's own model: correct samples, test samples, and the round that it is from.

    It is a tuple, as in a checkpoint. Converting 5,000 dataclasses took a third of a small round.
    """

    correct: int
    total: int
    server_round: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """State of a federation after a round.

    Attributes:
        server_round: The last round that is over; 0 before round 1.
        prototypes: Global prototypes, shape ``[C, d]``, float32; rows that are not present are zero.
        present: Which classes have a prototype, shape ``[C]``, bool.
        age: Rounds since each class was last sent, shape ``[C]``, int64.
        shared: Averaged weights by name; empty unless the strategy shares some.
        memory: What parts keep between rounds, by name; see ``isoproto.parts.base.PartState``.
        figures: Figures of the round that parts add to the metrics.
        accuracy: The newest accuracy of every client.
        empty_rounds: Rounds in a row without enough good replies.
    """

    prototypes: Tensor
    present: Tensor
    age: Tensor
    server_round: int = 0
    shared: dict[str, Tensor] = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    accuracy: dict[str, LastAccuracy] = field(default_factory=dict)
    empty_rounds: int = 0

    @classmethod
    def start(cls, num_classes: int, feature_dim: int) -> ServerState:
        """Return the state before round 1, without prototypes."""
        return cls(
            prototypes=torch.zeros(num_classes, feature_dim),
            present=torch.zeros(num_classes, dtype=torch.bool),
            age=torch.zeros(num_classes, dtype=torch.int64),
        )

    def to_checkpoint(self) -> Checkpoint:
        """Return the state as a checkpoint holds it."""
        from isoproto.runs.checkpoint import (
            Checkpoint,  # imported here, so that local training also runs without safetensors
        )

        tensors = {"prototypes": self.prototypes, "present": self.present, "age": self.age}
        tensors |= {f"shared.{name}": tensor for name, tensor in self.shared.items()}
        tensors |= {f"memory.{name}": tensor for name, tensor in self.memory.items()}
        values: dict[str, Any] = {"accuracy": dict(self.accuracy), "empty-rounds": self.empty_rounds}
        return Checkpoint(self.server_round, tensors, values)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> ServerState:
        """Return the state that ``to_checkpoint`` wrote."""
        tensors, values = checkpoint.tensors, checkpoint.values

        def below(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        return cls(
            server_round=checkpoint.server_round,
            prototypes=tensors["prototypes"],
            present=tensors["present"],
            age=tensors["age"],
            shared=below("shared."),
            memory=below("memory."),
            accuracy={client: LastAccuracy(*last) for client, last in values["accuracy"].items()},
            empty_rounds=values["empty-rounds"],
        )
