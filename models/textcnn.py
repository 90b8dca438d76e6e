"""A model that convolves over words (Kim, EMNLP 2014)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.base import TextSpec
from models.text import Words, inside

_WINDOWS = (3, 4, 5)  # words
_CHANNELS = 100


class _Windows(nn.Module):
    """For each filter, the largest output in any window that starts within the text; zeros follow the last word."""

    def __init__(self, spec: TextSpec) -> None:
        super().__init__()
        self.words = Words(spec, spec.feature_dim)
        self.filters = nn.ModuleList(nn.Conv1d(spec.feature_dim, _CHANNELS, size) for size in _WINDOWS)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors, lengths = self.words(tokens)  # [B, T, u]
        rows = functional.pad(vectors.transpose(1, 2), (0, max(_WINDOWS) - 1))
        starts = inside(lengths, vectors.shape[1])[:, None]  # [B, 1, T]
        # A ReLU gives at least zero, so a window outside the text, which is set to zero, never exceeds the others.
        answers = [functional.relu(f(rows))[:, :, : starts.shape[2]] * starts for f in self.filters]
        return torch.cat([answer.amax(2) for answer in answers], dim=1)


def textcnn(spec: TextSpec) -> nn.Module:
    """Return 100 filters for each of windows of 3, 4 and 5 words, their maximum over the text, and a linear layer.

    FedHPro's model (arXiv:2605.13475, Sec. 5) has 32 numbers per word and 32 features: ``feature-dim = 32``.
    """
    return nn.Sequential(_Windows(spec), nn.Dropout(0.8), nn.Linear(len(_WINDOWS) * _CHANNELS, spec.feature_dim))
