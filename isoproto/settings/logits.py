"""Settings of distillation from class logits."""

from dataclasses import dataclass

from isoproto.settings.rules import number


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Distillation from class logits, under `alignment = logits`."""

    logits__weight: float = number(1.0, 0, doc="Weight of the distillation term.")
