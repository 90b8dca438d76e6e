"""Networks of depthwise-separable convolutions: a small one (Howard et al., arXiv:1704.04861), and MobileNetV2."""

from torch import nn

from models.base import CellPool, ModelSpec, conv_norm, stem


def _separable(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution of each channel alone, then a 1x1 convolution that mixes the channels."""
    depthwise = conv_norm(inputs, inputs, stride=stride, groups=inputs)
    return [depthwise, conv_norm(inputs, outputs, 1), nn.ReLU()]


def mobilenet(spec: ModelSpec) -> nn.Module:
    """Return a stem and two separable convolutions, 24, 64 and 64 channels, mixed to 32, then a layer to 128."""
    return nn.Sequential(
        *stem(spec.channels, 24),
        *_separable(24, 64),
        *_separable(64, 64, 2),
        conv_norm(64, 32, 1),
        nn.ReLU(),
        CellPool(4),
        nn.Linear(512, 128),
    )


def mobilenet_v2(spec: ModelSpec) -> nn.Module:
    """Return torchvision's MobileNetV2 with its dropout (Sandler et al., arXiv:1801.04381); it is 1280 wide."""
    from torchvision.models.mobilenetv2 import MobileNetV2

    net = MobileNetV2()
    net.classifier[1] = nn.Identity()
    net.features[0][0] = first = nn.Conv2d(spec.channels, 32, 3, 2, 1, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out")
    base: nn.Module = net
    return base
