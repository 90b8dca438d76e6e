"""Settings of prototypes that the server trains."""

from dataclasses import dataclass

from isoproto.settings.rules import number


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """Training of prototypes on the server, under `prototypes = trainable`."""

    tgp__epochs: int = number(100, 0, doc="Passes over the class means of a round.")
    tgp__learning_rate: float = number(0.01, 0, doc="Step size of plain SGD.")
    tgp__margin: float = number(100.0, 0, doc="Largest margin between prototypes.")
