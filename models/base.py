"""The form of every model: a base that computes features ``[B, d]``, and a head that turns them into logits."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from isoproto.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The layers between features and logits.

    Attributes:
        hidden: Widths of the hidden layers; empty for a linear head.
        activation: Name in ``ACTIVATIONS`` of the function after each hidden layer. No function follows the logits.
    """

    hidden: tuple[int, ...] = ()
    activation: str = "relu"


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The pictures, feature width and classes that a model must fit.

    Attributes:
        channels: Number of channels of a picture.
        height: Height of a picture in pixels.
        width: Width of a picture in pixels.
        feature_dim: Feature width d, the same for all clients of a federation.
        num_classes: Number of classes C.
        head: Shape of the model's head, by default linear.
    """

    channels: int
    height: int
    width: int
    feature_dim: int
    num_classes: int
    head: HeadShape = HeadShape()


@dataclass(frozen=True, slots=True)
class TextSpec:
    """The texts, feature width and classes that a model for text must fit.

    Attributes:
        vocabulary: Number of token ids, including padding (0) and the unknown word (1).
        length: Number of tokens of the longest text.
        feature_dim: Feature width d, the same for all clients of a federation.
        num_classes: Number of classes C.
        head: Shape of the model's head, by default linear.
    """

    vocabulary: int
    length: int
    feature_dim: int
    num_classes: int
    head: HeadShape = HeadShape()


class FeatureModel(nn.Module):
    """A model in two parts: a base whose output is pooled to d features, and a head of one or more linear layers.

    The base maps each sample to L numbers. The pooling is a 1-D adaptive average over them, without parameters: output
    q is the mean of the inputs with indices in [floor(q L / d), ceil((q + 1) L / d)). If L is d, nothing changes.

    Args:
        base: Maps pictures ``[B, channels, height, width]``, or token ids ``[B, length]``, to ``[B, L]``.
        feature_dim: Feature width d.
        num_classes: Number of classes C.
        head: Shape of the head, by default linear.

    Attributes:
        layout: Memory layout that batches of pictures should have, as the model's weights have it: see :meth:`place`.

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
        # A linear head is not wrapped, so that its tensors keep the names `head.weight` and `head.bias`.
        self.head = nn.Sequential(*layers[:-1]) if head.hidden else layers[0]
        self.width = feature_dim

    @property
    def linear_head(self) -> tuple[Tensor, Tensor]:
        """Return weight ``[C, d]`` and bias ``[C]`` of a linear head, detached.

        Raises:
            ConfigError: If the head has hidden layers.
        """
        if not isinstance(self.head, nn.Linear):
            raise ConfigError("this model's head has hidden layers, and a linear one is wanted; set heads = 'linear'")
        return self.head.weight.detach(), self.head.bias.detach()

    def place(self, device: torch.device, *, rearrange: bool) -> "FeatureModel":
        """Move the model to a device and return it.

        Args:
            device: The device.
            rearrange: Whether to store weights and pictures with the channels last, in which convolutions are fastest.
                On a CPU this saves 4 to 13 % of the training time of a small network and up to 30 % of larger ones.
                The tensor cores of a GPU work on this layout too. It breaks a model that reshapes feature maps with
                ``Tensor.view``. Apple's GPUs keep the default layout.
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
    """Average a feature map of any size into ``size`` x ``size`` cells, and flatten the result."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, c, h, w]`` to ``[B, c * size * size]``."""
        if x.shape[-2:] != (self.size, self.size):
            x = functional.adaptive_avg_pool2d(x, self.size)
        return x.flatten(1)


class ChannelsLast(nn.Module):
    """Store a feature map with the channels last, the layout in which CPUs convolve few channels fastest."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` ``[B, c, h, w]`` with the same values in the other memory layout."""
        # The permutations do the same as `contiguous(memory_format=...)`, which `torch.vmap` refuses.
        return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def conv_norm(inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution without bias, followed by BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)
    )


def stem(channels: int, outputs: int) -> list[nn.Module]:
    """Return the first layers of a small network: a strided 5x5 convolution and a max-pool.

    They leave a quarter of the rows and columns, so that the costly layers behind them have less to do.
    """
    return [
        nn.Conv2d(channels, outputs, 5, 2, 2, bias=False),
        ChannelsLast(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]
