"""A small depthwise-separable network (Howard et al., arXiv:1704.04861)."""

from torch import nn

from models.base import Grid, ModelSpec, conv_norm, stem


def _separable(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """A convolution per channel, then a mixture of the channels."""
    depthwise = conv_norm(inputs, inputs, stride=stride, groups=inputs)
    return [depthwise, conv_norm(inputs, outputs, 1), nn.ReLU()]


def mobilenet(spec: ModelSpec) -> nn.Module:
    """Stem and two separable convolutions: 24, 64, 64 channels, mixed to 32, then a linear layer to 128."""
    return nn.Sequential(
        *stem(spec.channels, 24),
        *_separable(24, 64),
        *_separable(64, 64, 2),
        conv_norm(64, 32, 1),
        nn.ReLU(),
        Grid(4),
        nn.Linear(512, 128),
    )
