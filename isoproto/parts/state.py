"""What a server knows between rounds: one frozen value, replaced not edited. It is the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from isoproto.runs.checkpoint import Checkpoint


class LastAccuracy(NamedTuple):
    """A client's newest own-model accuracy: samples right by its head, of how many, after which round.

    A tuple, as a checkpoint holds it: making 5,000 of them out of dataclasses took a third of a small round.
    """

    correct: int
    total: int
    server_round: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """State of a federation after a round.

    Attributes:
        server_round: The round that is over; 0 before any.
        prototypes: Global prototypes, shape ``[C, d]``, float32; rows that are not present are zero.
        present: Which classes have one, shape ``[C]``, bool.
        age: Rounds since each class was last sent, shape ``[C]``, int64.
        shared: Averaged weights by name; empty unless the strategy shares some.
        memory: What parts keep between rounds, by name; see ``isoproto.parts.base.PartState``.
        figures: What parts say about the round, for the metrics.
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
        """Return the state before round 1: nothing is known."""
        return cls(
            prototypes=torch.zeros(num_classes, feature_dim),
            present=torch.zeros(num_classes, dtype=torch.bool),
            age=torch.zeros(num_classes, dtype=torch.int64),
        )

    def to_checkpoint(self) -> Checkpoint:
        """Return the state as a checkpoint holds it."""
        from isoproto.runs.checkpoint import Checkpoint  # here: local training runs without safetensors, too

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
