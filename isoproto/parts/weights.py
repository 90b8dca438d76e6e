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

# The modules of a model that each value of `share` stands for. A device's owner allows them by the same words.
_SHARES = {"head": ("head",), "base": ("base",), "model": ("base", "head")}


@dataclass(frozen=True)
class SharedWeights(Part):
    r"""Average the clients' weights: :math:`w = \sum_i n_i w_i / \sum_i n_i`, BatchNorm's buffers included."""

    share: str

    words = ("head", "base")

    @classmethod
    def of(cls, config: RunConfig) -> SharedWeights | None:
        """Return the part if some weights are shared."""
        return cls(config.share) if config.share in _SHARES else None

    @property
    def asks(self) -> frozenset[str]:
        """The modules of the model that a device's owner must allow to leave the device."""
        return frozenset(_SHARES[self.share])

    def shared(self, model: nn.Module, modules: Mapping[str, nn.Module]) -> Mapping[str, Tensor]:
        """Return the tensors of the shared modules."""
        return self._chosen(model.state_dict())

    def _chosen(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors.items() if name.partition(".")[0] in _SHARES[self.share]}

    def fold(self, before: ServerState, after: ServerState, sent: Sequence[Sent]) -> ServerState:
        """Average the weights of this round."""
        if not sent:
            return after
        shared = average_tensors([self._chosen(s.shared) for s in sent], [s.means.samples for s in sent])
        return dataclasses.replace(after, shared={**after.shared, **shared})
