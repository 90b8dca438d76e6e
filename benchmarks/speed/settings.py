"""Settings of local training for all benchmarks and for the tests that count what a training step does."""

from client_app.training import LocalSettings


def plain_settings(batch_size: int, learning_rate: float, *, amp: str = "off", augment: str = "none") -> LocalSettings:
    """Return the settings of one epoch of SGD with momentum; prototypes are computed after training.

    Args:
        batch_size: Samples in a batch.
        learning_rate: Step size.
        amp: Precision of the forward and backward pass: ``off`` is float32, ``bf16`` is autocast to bfloat16.
        augment: Name of the random changes of the training pictures.
    """
    return LocalSettings(
        epochs=1,
        batch_size=batch_size,
        optimizer="sgd",
        learning_rate=learning_rate,
        momentum=0.9,
        weight_decay=0.0,
        proto_source="post-eval",
        augment=augment,
        amp=amp,
    )
