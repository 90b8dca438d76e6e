"""Networks with parallel branches of several kernel sizes (Szegedy et al., CVPR 2015): a small one, and GoogLeNet."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.base import CellPool, ModelSpec, conv_norm, stem


class InceptionBlock(nn.Module):
    """1x1, 3x3 and 5x5 convolutions and a pooled branch, concatenated: 16 + 24 + 8 + 16 channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.reduce = conv_norm(inputs, 16 + 16 + 8, 1)
        self.middle = conv_norm(16, 24)
        self.large = conv_norm(8, 8, 5)
        self.pooled = conv_norm(inputs, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, h, w]`` to ``[B, 64, h, w]``."""
        small, middle, large = functional.relu(self.reduce(x)).split([16, 16, 8], dim=1)
        pooled = self.pooled(functional.max_pool2d(x, 3, 1, 1))
        rest = functional.relu(torch.cat([self.middle(middle), self.large(large), pooled], dim=1))
        return torch.cat([small, rest], dim=1)


def inception(spec: ModelSpec) -> nn.Module:
    """Return a stem of 16 channels, one block, a 1x1 convolution to 32 channels and a linear layer to 128."""
    return nn.Sequential(
        *stem(spec.channels, 16),
        InceptionBlock(16),
        nn.MaxPool2d(2, ceil_mode=True),
        conv_norm(64, 32, 1),
        nn.ReLU(),
        CellPool(4),
        nn.Linear(512, 128),
    )


def googlenet(spec: ModelSpec) -> nn.Module:
    """Return torchvision's GoogLeNet with BatchNorm and dropout, without auxiliary heads; it is 1024 wide."""
    from torchvision.models.googlenet import GoogLeNet

    net = GoogLeNet(aux_logits=False, init_weights=True)
    net.fc = nn.Identity()
    net.conv1.conv = first = nn.Conv2d(spec.channels, 64, 7, 2, 3, bias=False)
    nn.init.trunc_normal_(first.weight, std=0.01)
    base: nn.Module = net
    return base
