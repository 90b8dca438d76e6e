"""A transformer encoder for text (Vaswani et al., arXiv:1706.03762)."""

import math

import torch
from torch import Tensor, nn

from models.base import TextSpec
from models.text import Words, inside

_HEADS = 8


class _Encoder(nn.Module):
    """Two post-norm layers of eight heads; the output is taken at a learned vector that is put before every text.

    Word vectors have variance 1/u and are scaled by sqrt(u), so they are as large as the sinusoids that mark places.
    """

    places: Tensor
    start: nn.Parameter

    def __init__(self, spec: TextSpec) -> None:
        super().__init__()
        width = -(-spec.feature_dim // _HEADS) * _HEADS  # each head has a whole number of coordinates
        self.scale = math.sqrt(width)
        self.words = Words(spec, width)
        nn.init.normal_(self.words.vectors.weight[1:], std=1 / self.scale)
        self.start = nn.Parameter(torch.randn(width))
        # Not saved with the model: it is not a weight, and all clients compute the same values.
        self.register_buffer("places", sinusoids(spec.length + 1, width), persistent=False)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, _HEADS, dim_feedforward=2048, dropout=0.1, batch_first=True)
            for _ in range(2)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        vectors, lengths = self.words(tokens)
        x: Tensor = torch.cat([self.start.expand(len(vectors), 1, -1), vectors * self.scale], dim=1)  # [B, 1 + T, u]
        x = self.dropout(x + self.places[: x.shape[1]])
        outside = ~inside(lengths + 1, x.shape[1])
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=outside)
        return x[:, 0]


def sinusoids(places: int, width: int) -> Tensor:
    r"""Return sin and cos of ``p / 10000^(2 i / width)`` side by side, shape ``[places, width]``; ``width`` is even.

    Example:
        >>> sinusoids(2, 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    speed = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angle = torch.arange(places)[:, None] * speed
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


def transformer(spec: TextSpec) -> nn.Module:
    """Return two encoder layers of eight heads, with 2,048 hidden units each and dropout 0.1.

    The encoder is as wide as the features, rounded up to a multiple of eight.
    """
    return nn.Sequential(_Encoder(spec))
