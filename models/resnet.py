"""Residual networks with BatchNorm (He et al., CVPR 2016): a small one, and torchvision's of 4 to 152 layers."""

import itertools
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from models.base import CellPool, ModelSpec, conv_norm, stem


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
        *stem(spec.channels, 16), ResidualBlock(16, 32), ResidualBlock(32, 64, 2), CellPool(2), nn.Linear(256, 128)
    )


def _torchvision(spec: ModelSpec, blocks: tuple[int, ...], bottleneck: bool, small_pictures: bool) -> nn.Module:
    """Build torchvision's network without its last layer, and without the stages that ``blocks`` does not name."""
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
    """Return a builder of FedHPro's ResNet-10 with ``width``, 2, 4 and 8 times as many channels instead of 64 to 512.

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
    """Return a builder of a residual network of up to four stages: 64, 128, 256 and 512 channels, averaged over cells.

    The stem is ImageNet's for pictures of every size, as in FedSAF: a 7x7 convolution and a max-pool, which leave a
    quarter of the rows and columns. FedHPro's own ResNet-10 keeps them all.

    Args:
        blocks: Residual blocks per stage; fewer than four stages end early, and the features are narrower.
        bottleneck: 1x1, 3x3, 1x1 convolutions and four times the channels, instead of two 3x3 convolutions.
        small_pictures: A stem of one 3x3 convolution of stride 1 and no pooling (FedHPro).
    """
    return lambda spec: _torchvision(spec, blocks, bottleneck, small_pictures)
