"""Settings of a second, small model on each client, which the server averages."""

from dataclasses import dataclass

from isoproto.settings.rules import free, number


@dataclass(frozen=True, kw_only=True)
class TwinModel:
    """Mutual learning of a client's model and a shared one, under `alignment = twin`."""

    twin__alpha: float = number(
        0.5,
        0,
        1,
        doc="Weight of cross-entropy in the loss of the client's model. The weight of the divergence from the twin is "
        "1 minus this.",
    )
    twin__beta: float = number(
        0.5,
        0,
        1,
        doc="Weight of cross-entropy in the twin's loss. The weight of the divergence from the client's model is 1 "
        "minus this.",
    )
    twin__detach: bool = free(
        False,
        doc="Whether each model learns from the other's answers without changing them. The published code does not "
        "detach them, so each gets the gradient of both losses.",
    )
    twin__clip: float = number(10.0, 0, doc="Largest norm of the gradients of either model; 0 does not limit it.")
