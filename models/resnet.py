"""A small residual network with BatchNorm (He et al., CVPR 2016)."""

from torch import Tensor, nn
from torch.nn import functional

from models.base import Grid, ModelSpec, conv_norm, stem


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, stride=stride)
        self.second = conv_norm(outputs, outputs)
        self.shortcut = conv_norm(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(f(x) + shortcut(x))``."""
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


def resnet(spec: ModelSpec) -> nn.Module:
    """Stem and two residual blocks: 16, 32, 64 channels, then a linear layer to 128."""
    return nn.Sequential(
        *stem(spec.channels, 16), ResidualBlock(16, 32), ResidualBlock(32, 64, 2), Grid(2), nn.Linear(256, 128)
    )
