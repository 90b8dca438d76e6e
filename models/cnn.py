"""A plain convolutional network with GroupNorm."""

from torch import nn

from models.base import ChannelsLast, Grid, ModelSpec


def cnn(spec: ModelSpec) -> nn.Module:
    """A strided 5x5 and two 3x3 convolutions: 16, 32, 64 channels, then a linear layer to 128.

    GroupNorm (Wu and He, ECCV 2018) makes no difference between training and evaluation and needs no batch. Without
    any normalisation this network left the finite numbers on a client with few classes, at SGD 0.02 with momentum 0.9
    and cross-entropy alone.
    """
    return nn.Sequential(
        nn.Conv2d(spec.channels, 16, 5, 2, 2),
        ChannelsLast(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 1, 1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 1, 1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        Grid(4),
        nn.Linear(1024, 128),
    )
