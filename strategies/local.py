"""Every client on its own: the control that each method is measured against."""

import dataclasses

from isoproto.config import MethodSettings, RunConfig
from strategies.base import PrototypeStrategy


class Local(PrototypeStrategy):
    """Cross-entropy alone; nothing is exchanged but accuracy.

    The server sends settings only, and ignores the class means that come back. Models, batches and
    evaluation are those of the other strategies under the same seed, so differences are paired.
    """

    method = MethodSettings(prototypes="none", alignment="none", share="none")

    @classmethod
    def resolve(cls, config: RunConfig) -> RunConfig:
        """Leave out whatever is exchanged: a preset says it for the methods of its table, and this is their control."""
        nothing = dataclasses.replace(config, prototypes="none", alignment="none", share="none", hyper__retrain="none")
        return super().resolve(nothing)
