"""What a client trains with in the benchmarks of local training."""

from client_app.training import LocalSettings


def plain_settings(batch_size: int, learning_rate: float) -> LocalSettings:
    """Return one epoch of SGD with momentum, prototypes made afterwards."""
    return LocalSettings(
        epochs=1,
        batch_size=batch_size,
        optimizer="sgd",
        learning_rate=learning_rate,
        momentum=0.9,
        weight_decay=0.0,
        proto_source="post-eval",
    )
