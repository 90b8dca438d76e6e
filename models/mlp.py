"""A perceptron: the cheapest model that learns digits."""

from torch import nn

from models.base import CellPool, ModelSpec


def mlp(spec: ModelSpec) -> nn.Module:
    """Return an average of the picture to 16x16 cells, a hidden layer of 64 units and a linear layer to 128.

    Because of the cells the size of the model does not depend on the size of the picture.
    """
    return nn.Sequential(CellPool(16), nn.Linear(256 * spec.channels, 64), nn.ReLU(), nn.Linear(64, 128))
