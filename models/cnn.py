"""A plain convolutional network without normalisation."""

from torch import nn

from models.base import ChannelsLast, Grid, ModelSpec


def cnn(spec: ModelSpec) -> nn.Module:
    """Two 5x5 convolutions with max-pooling and a linear layer: 32, 64, 128 wide.

    Kaiming initialisation: without normalisation the default shrinks the features from layer to layer.
    """
    base = nn.Sequential(
        nn.Conv2d(spec.channels, 32, 5, 2, 2),
        ChannelsLast(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, 1, 2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.ReLU(),
        Grid(4),
        nn.Linear(1024, 128),
    )
    for module in base.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return base
