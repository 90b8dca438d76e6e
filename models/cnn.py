"""Plain convolutional networks: two small ones with GroupNorm, and the papers' four layers."""

from torch import nn

from isoproto.errors import ConfigError
from models.base import CellPool, ChannelsLast, ModelSpec


def cnn(spec: ModelSpec) -> nn.Module:
    """Return a strided 5x5 and two 3x3 convolutions with 16, 32 and 64 channels, then a linear layer to 128.

    GroupNorm (Wu and He, ECCV 2018) works alike in training and evaluation and does not depend on the batch. Without
    normalisation this network diverged to infinite numbers on a client with few classes, with SGD at 0.02, momentum 0.9
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
        CellPool(4),
        nn.Linear(1024, 128),
    )


def tiny_cnn(spec: ModelSpec) -> nn.Module:
    """Return a convolution on patches of 4x4 pixels and a strided 3x3 one, 8 and 16 channels, then a layer to 128."""
    return nn.Sequential(
        nn.Conv2d(spec.channels, 8, 4, 4),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        CellPool(4),
        nn.Linear(256, 128),
    )


def cnn4(spec: ModelSpec) -> nn.Module:
    """Return two max-pooled 5x5 convolutions with 32 and 64 channels and a linear layer to 512.

    The head is the fourth layer. Nothing is padded, and the linear layer reads every cell. So its size grows with the
    picture, from 0.8 million weights at 32x32 to 92 million at 224x224.

    Raises:
        ConfigError: If the picture is too small for the second pooling.
    """
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (spec.height, spec.width))
    if min(rows, columns) < 1:
        raise ConfigError(f"model 'cnn4' needs pictures of at least 16x16 pixels, got {spec.height}x{spec.width}")
    return nn.Sequential(
        nn.Conv2d(spec.channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, 512),
        nn.ReLU(),
    )
