"""Local training only: the control that each method is compared with."""

import dataclasses

from isoproto.config import MethodSettings, RunConfig
from strategies.base import PrototypeStrategy


class Local(PrototypeStrategy):
    """Train with cross-entropy alone. Clients learn nothing from each other.

    The server sends settings only, and ignores the class means that clients send. Models, batches and evaluation are
    those of the other strategies under the same seed, so runs can be compared client by client.
    """

    method = MethodSettings(prototypes="none", alignment="none", share="none")

    @classmethod
    def resolve(cls, config: RunConfig) -> RunConfig:
        """Ignore settings of what is exchanged. A preset sets them for other methods, and this one is their control."""
        nothing = dataclasses.replace(config, prototypes="none", alignment="none", share="none", hyper__retrain="none")
        return super().resolve(nothing)
