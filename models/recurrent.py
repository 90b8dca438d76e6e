"""Recurrent networks whose feature is the state at a text's end (Hochreiter and Schmidhuber 1997; Cho et al. 2014)."""

import torch
from torch import Tensor, nn

from models.base import TextSpec
from models.text import Words, at_end, inside, trimmed


def _states(layers: nn.LSTM | nn.GRU, vectors: Tensor) -> Tensor:
    """Return the upper layer's state at each place.

    On a CPU this runs in float32, since PyTorch does not have a bfloat16 LSTM for every CPU.
    """
    if vectors.device.type != "cpu":
        return layers(vectors)[0]  # type: ignore[no-any-return]
    with torch.autocast("cpu", enabled=False):
        return layers(vectors.float())[0]  # type: ignore[no-any-return]


class _Recurrent(nn.Module):
    """Two layers that read a text forwards; the output is the state of the upper layer after the last word.

    Padding behind the last word cannot change this state.
    """

    def __init__(self, spec: TextSpec, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words = Words(spec, spec.feature_dim)
        self.layers = kind(spec.feature_dim, spec.feature_dim, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors, lengths = self.words(tokens)
        return at_end(_states(self.layers, vectors), lengths)


class _BothWays(nn.Module):
    """Two networks that read a text forwards and backwards; the output is the state of each after its last word."""

    def __init__(self, spec: TextSpec) -> None:
        super().__init__()
        width = spec.feature_dim
        self.words = Words(spec, width)
        self.onwards = nn.LSTM(width, width, batch_first=True)
        self.backwards = nn.LSTM(width, width, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens, lengths = trimmed(tokens)
        # These are two plain networks, since torch's bidirectional one would start to read backwards in the padding.
        return torch.cat(
            [
                at_end(_states(self.onwards, self.words.vectors(tokens)), lengths),
                at_end(_states(self.backwards, self.words.vectors(backwards(tokens, lengths))), lengths),
            ],
            dim=1,
        )


def backwards(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the words of each text and leave its padding at the end.

    Example:
        >>> backwards(torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]]), torch.tensor([3, 2]))
        tensor([[7, 6, 5, 0],
                [9, 8, 0, 0]])
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return tokens.gather(1, torch.where(inside(lengths, len(places)), lengths[:, None] - 1 - places, places))


def lstm(spec: TextSpec) -> nn.Module:
    """Return two LSTM layers and a ReLU, with dropout 0.2 between and after the layers."""
    return nn.Sequential(_Recurrent(spec, nn.LSTM), nn.ReLU(), nn.Dropout(0.2))


def gru(spec: TextSpec) -> nn.Module:
    """Return two GRU layers, with dropout 0.2 between and after them."""
    return nn.Sequential(_Recurrent(spec, nn.GRU), nn.Dropout(0.2))


def bilstm(spec: TextSpec) -> nn.Module:
    """Return an LSTM layer for each reading direction, followed by a linear layer."""
    return nn.Sequential(_BothWays(spec), nn.Linear(2 * spec.feature_dim, spec.feature_dim))
