"""Settings of a second, small model on each client, which the server averages."""

from dataclasses import dataclass

from isoproto.settings.rules import free, number


@dataclass(frozen=True, kw_only=True)
class TwinModel:
    """Mutual learning of a client's model and a shared one, under `alignment = twin`."""

    twin__alpha: float = number(
        0.5, 0, 1, doc="Weight of the client model's cross-entropy; the rest is the twin's answer."
    )
    twin__beta: float = number(
        0.5, 0, 1, doc="Weight of the twin's cross-entropy; the rest is the client model's answer."
    )
    twin__detach: bool = free(
        False,
        doc="Whether each model learns from the other's answers without changing them. The published code does not "
        "detach them, so each gets the gradient of both losses.",
    )
    twin__clip: float = number(10.0, 0, doc="Largest norm of the gradients of either model; 0 does not limit it.")
