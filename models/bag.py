"""Perceptrons that read how often each word occurs in a text."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.base import TextSpec

_WORDS = 5_000
_FEATURES = 100


class Bag(nn.Module):
    """Count how often each of the most frequent words occurs in each text of a batch.

    Token ids are in descending order of frequency, after padding (0) and the unknown word (1). These two and rarer
    words are not counted. The layer has no parameters.

    Args:
        words: Number of words that are counted.

    Example:
        >>> Bag(2)(torch.tensor([[3, 2, 3, 1, 9, 0], [2, 0, 0, 0, 0, 0]]))
        tensor([[1., 2.],
                [1., 0.]])
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = words

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens ``[B, L]`` to counts ``[B, words]``, float32."""
        columns = tokens.long().clamp(max=self.words + 2)  # the last column takes the rarer words
        counts = torch.zeros(len(tokens), self.words + 3, device=tokens.device)
        return counts.scatter_add(1, columns, torch.ones_like(columns, dtype=counts.dtype))[:, 2:-1]


def bag_mlp(*hidden: int) -> Callable[[TextSpec], nn.Module]:
    """Return a builder of a perceptron on the counts of the 5,000 most frequent words; its last layer is 100 wide.

    These are HtFLlib's models for Amazon reviews, which the code of FedSAF's authors (arXiv:2605.05959) uses. They read
    bags of 5,000 words, and their authors do not say how words are weighted. Here a word counts as often as it
    occurs. If the vocabulary is smaller, all its words are counted.

    Args:
        hidden: Widths of the hidden layers. A ReLU follows each of them and the last layer.
    """

    def build(spec: TextSpec) -> nn.Module:
        words = min(_WORDS, max(1, spec.vocabulary - 2))  # a layer needs an input
        layers: list[nn.Module] = [Bag(words)]
        for inputs, outputs in itertools.pairwise((words, *hidden, _FEATURES)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    return build
