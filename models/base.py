"""What every model is: features ``[B, d]`` and a head on them."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from isoproto.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What comes between features and logits.

    Attributes:
        hidden: Widths of the hidden layers, none for a linear head.
        activation: What follows each of them, a name in ``ACTIVATIONS``; nothing follows the logits.
    """

    hidden: tuple[int, ...] = ()
    activation: str = "relu"


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model must fit.

    Attributes:
        channels: Channels of a picture.
        height: Its height in pixels.
        width: Its width in pixels.
        feature_dim: Feature width d, the same for all clients of a federation.
        num_classes: C.
        head: What its head is, by default linear.
    """

    channels: int
    height: int
    width: int
    feature_dim: int
    num_classes: int
    head: HeadShape = HeadShape()


@dataclass(frozen=True, slots=True)
class TextSpec:
    """What a model for text must fit.

    Attributes:
        vocabulary: Number of token ids, padding (0) and the unknown word (1) among them.
        length: Tokens of the longest text.
        feature_dim: Feature width d, the same for all clients of a federation.
        num_classes: C.
        head: What its head is, by default linear.
    """

    vocabulary: int
    length: int
    feature_dim: int
    num_classes: int
    head: HeadShape = HeadShape()


class FeatureModel(nn.Module):
    """A base that maps pictures or texts to L numbers, pooled to d features, and a head of one or more linear layers.

    The pooling is a parameter-free 1-D adaptive average over the feature axis: output q is the mean of the
    inputs with indices in [floor(q L / d), ceil((q + 1) L / d)), and the identity where L is d.

    Args:
        base: Maps pictures ``[B, channels, height, width]``, or token ids ``[B, length]``, to ``[B, L]``.
        feature_dim: d.
        num_classes: C.
        head: What the head is, by default linear.

    Attributes:
        layout: How a batch of pictures is to lie in memory, as the model's weights do: see :meth:`place`.

    Example:
        >>> model = FeatureModel(nn.Flatten(), feature_dim=2, num_classes=3)
        >>> model.features(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        tensor([[2., 6.]])
    """

    base: nn.Module
    head: nn.Module
    width: int
    layout: torch.memory_format = torch.contiguous_format

    def __init__(self, base: nn.Module, feature_dim: int, num_classes: int, head: HeadShape = HeadShape()) -> None:
        super().__init__()
        self.base = base
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((feature_dim, *head.hidden, num_classes)):
            layers += [nn.Linear(inputs, outputs), ACTIVATIONS[head.activation]()]
        # A linear head keeps its plain names, `head.weight` and `head.bias`.
        self.head = nn.Sequential(*layers[:-1]) if head.hidden else layers[0]
        self.width = feature_dim

    @property
    def linear_head(self) -> tuple[Tensor, Tensor]:
        """Weight ``[C, d]`` and bias ``[C]`` of a linear head, detached.

        Raises:
            ConfigError: If the head has hidden layers.
        """
        if not isinstance(self.head, nn.Linear):
            raise ConfigError("this model's head has hidden layers, and a linear one is wanted; set heads = 'linear'")
        return self.head.weight.detach(), self.head.bias.detach()

    def place(self, device: torch.device, *, rearrange: bool) -> "FeatureModel":
        """Move the model to a device and return it.

        Args:
            device: Where to.
            rearrange: Let weights and pictures lie there as its convolutions are fastest: with the channels last, which
                on a CPU takes 4 to 13 % off the training of a small network and up to 30 % off larger ones, and is what
                the tensor cores of a GPU work on. A model that reshapes feature maps with ``Tensor.view`` does not
                work so.
        """
        if rearrange and device.type != "mps":
            self.layout = torch.channels_last
        return self.to(device).to(memory_format=self.layout)

    def features(self, x: Tensor) -> Tensor:
        """Return the features of pictures or token ids ``x``, shape ``[B, d]``."""
        values: Tensor = self.base(x)
        if values.shape[1] == self.width:
            return values
        return functional.adaptive_avg_pool1d(values, self.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape ``[B, C]``."""
        logits: Tensor = self.head(self.features(x))
        return logits


class CellPool(nn.Module):
    """Average a feature map to ``size`` x ``size`` cells, whatever the picture's size; then flatten."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, c, h, w]`` to ``[B, c * size * size]``."""
        if x.shape[-2:] != (self.size, self.size):
            x = functional.adaptive_avg_pool2d(x, self.size)
        return x.flatten(1)


class ChannelsLast(nn.Module):
    """Lay a feature map out channels last, the layout in which CPUs convolve few channels fastest."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` ``[B, c, h, w]`` with another memory layout."""
        # The permutations say the same as `contiguous(memory_format=...)`, which `torch.vmap` refuses.
        return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def conv_norm(inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias and its BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)
    )


def stem(channels: int, outputs: int) -> list[nn.Module]:
    """A strided 5x5 convolution and a max-pool: the maps are a quarter as wide before the costly layers."""
    return [
        nn.Conv2d(channels, outputs, 5, 2, 2, bias=False),
        ChannelsLast(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]
