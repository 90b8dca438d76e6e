"""Count the parameters of a model and the arithmetic operations of one forward pass."""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from models import ModelSpec, TextSpec, create_model


@dataclass(frozen=True, slots=True)
class Cost:
    """The size of a model, including its head.

    Attributes:
        parameters: Number of trainable numbers.
        flops: Floating-point operations of the matrix products and convolutions in the forward pass of one sample. A
            multiply-add counts as two; other operations are not counted.
        width: Width of the features before they are pooled to ``feature_dim``.
    """

    parameters: int
    flops: int
    width: int


def cost(name: str, spec: ModelSpec | TextSpec) -> Cost:
    """Count the parameters and operations of model ``name``, without allocating or computing its tensors.

    Raises:
        ConfigError: If no architecture has the name, or the architecture cannot take such data.

    Example:
        >>> cost("cnn4", ModelSpec(channels=3, height=32, width=32, feature_dim=512, num_classes=100))
        Cost(parameters=924708, flops=15744000, width=512)
    """
    with torch.device("meta"):
        model = create_model(name, spec, seed=0).eval()
        if isinstance(spec, TextSpec):
            x = torch.empty(1, spec.length, dtype=torch.int64)
        else:
            x = torch.empty(1, spec.channels, spec.height, spec.width)
    with FlopCounterMode(display=False) as counter:
        width = model.base(x).shape[1]
        model.head(torch.empty(1, spec.feature_dim, device=x.device))
    return Cost(sum(p.numel() for p in model.parameters()), counter.get_total_flops(), width)
