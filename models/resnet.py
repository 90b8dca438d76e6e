"""Residual networks with BatchNorm (He et al., CVPR 2016): a small one, and torchvision's with 4 to 152 layers."""

import itertools
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from models.base import CellPool, ModelSpec, conv_norm, stem


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions whose output is added to that of a 1x1 convolution, the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, stride=stride)
        self.second = conv_norm(outputs, outputs)
        self.shortcut = conv_norm(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(f(x) + shortcut(x))``."""
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


def resnet(spec: ModelSpec) -> nn.Module:
    """Return a stem and two residual blocks, 16, 32 and 64 channels, then a linear layer to 128."""
    return nn.Sequential(
        *stem(spec.channels, 16), ResidualBlock(16, 32), ResidualBlock(32, 64, 2), CellPool(2), nn.Linear(256, 128)
    )


def _torchvision(spec: ModelSpec, blocks: tuple[int, ...], bottleneck: bool, small_pictures: bool) -> nn.Module:
    """Build torchvision's network without its last layer, and with as many stages as ``blocks`` has numbers."""
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    stages = (*blocks, 1, 1, 1)[:4]
    net = ResNet(Bottleneck if bottleneck else BasicBlock, stages)
    for stage in range(len(blocks) + 1, 5):
        setattr(net, f"layer{stage}", nn.Identity())
    net.fc = nn.Identity()
    kernel, stride = (3, 1) if small_pictures else (7, 2)
    net.conv1 = nn.Conv2d(spec.channels, 64, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    if small_pictures:
        net.maxpool = nn.Identity()
    base: nn.Module = net
    return base


def narrow_resnet(width: int) -> Callable[[ModelSpec], nn.Module]:
    """Return a builder of FedHPro's ResNet-10 whose stages have 1, 2, 4 and 8 times ``width`` channels.

    The paper's published code has a width of 32. With 64 this is ``deep_resnet(1, 1, 1, 1, small_pictures=True)``.
    """

    def build(spec: ModelSpec) -> nn.Module:
        from torchvision.models.resnet import BasicBlock

        layers: list[nn.Module] = [conv_norm(spec.channels, width), nn.ReLU(inplace=True)]
        for inputs, outputs in itertools.pairwise((width, width, 2 * width, 4 * width, 8 * width)):
            stride = outputs // inputs
            shortcut = conv_norm(inputs, outputs, 1, stride=stride) if stride > 1 else None
            layers.append(BasicBlock(inputs, outputs, stride, shortcut))
        net = nn.Sequential(*layers, CellPool(1))
        for convolution in (module for module in net.modules() if isinstance(module, nn.Conv2d)):
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        return net

    return build


def deep_resnet(
    *blocks: int, bottleneck: bool = False, small_pictures: bool = False
) -> Callable[[ModelSpec], nn.Module]:
    """Return a builder of a residual network with up to four stages of 64, 128, 256 and 512 channels.

    The last feature map is averaged over its cells. As in FedSAF, the stem is that for ImageNet whatever the size of
    the pictures: a 7x7 convolution and a max-pool, which leave a quarter of the rows and columns. FedHPro's ResNet-10
    keeps all rows and columns.

    Args:
        blocks: Number of residual blocks of each stage. With fewer than four stages the features are narrower.
        bottleneck: Whether a block has 1x1, 3x3 and 1x1 convolutions and four times the channels, instead of two 3x3
            convolutions.
        small_pictures: Whether the stem is one 3x3 convolution of stride 1 without pooling (FedHPro).
    """
    return lambda spec: _torchvision(spec, blocks, bottleneck, small_pictures)
