"""Weights of the clients' own models, averaged by the server (FedAvg, LG-FedAvg and their kind)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from isoproto.geometry.prototypes import average_tensors
from isoproto.parts.base import Part, Sent
from isoproto.parts.state import ServerState

if TYPE_CHECKING:
    from isoproto.config import RunConfig

# What the setting `share` stands for: the prefix of the tensors' names, and the words that a device's owner allows.
_SHARES = {"head": ("head.", {"head"}), "base": ("base.", {"base"}), "model": ("", {"head", "base"})}


@dataclass(frozen=True)
class SharedWeights(Part):
    r"""Average the clients' weights: :math:`w = \sum_i n_i w_i / \sum_i n_i`, BatchNorm's buffers included."""

    share: str

    @classmethod
    def of(cls, config: RunConfig) -> SharedWeights | None:
        """Return the part if some weights are shared."""
        return None if config.share == "none" else cls(config.share)

    @property
    def asks(self) -> frozenset[str]:
        """Which parts of its model a device's owner must let go."""
        return frozenset(_SHARES[self.share][1])

    def shared(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the model's tensors that travel."""
        prefix = _SHARES[self.share][0]
        return {name: tensor for name, tensor in model.state_dict().items() if name.startswith(prefix)}

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Average the weights of this round."""
        if not sent:
            return after
        shared = average_tensors([dict(s.shared) for s in sent], [s.means.samples for s in sent])
        return dataclasses.replace(after, shared=shared)
