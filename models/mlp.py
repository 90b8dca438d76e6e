"""A perceptron: the cheapest model that learns digits."""

from torch import nn

from models.base import CellPool, ModelSpec


def mlp(spec: ModelSpec) -> nn.Module:
    """Pictures averaged to 16x16 cells, one hidden layer of 64 units, then a linear layer to 128.

    The cells keep it small whatever the picture's size.
    """
    return nn.Sequential(CellPool(16), nn.Linear(256 * spec.channels, 64), nn.ReLU(), nn.Linear(64, 128))
