"""Perceptrons on bags of words."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.base import TextSpec

_WORDS = 5_000
_FEATURES = 100


class Bag(nn.Module):
    """Count each of the most frequent words in a batch of texts.

    Tokens are in the order of how frequent their words are, behind padding (0) and the unknown word (1). Those two are
    not counted, nor are rarer words. Without parameters.

    Args:
        words: Words that are counted.

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
        columns = tokens.long().clamp(max=self.words + 2)  # the last column is for the rarer words
        counts = torch.zeros(len(tokens), self.words + 3, device=tokens.device)
        return counts.scatter_add(1, columns, torch.ones_like(columns, dtype=counts.dtype))[:, 2:-1]


def bag_mlp(*hidden: int) -> Callable[[TextSpec], nn.Module]:
    """Return a builder of a perceptron on the counts of a text's 5,000 most frequent words, 100 wide at its end.

    HtFLlib's models for Amazon reviews, which FedSAF's (arXiv:2605.05959) authors' code takes. They read bags of 5,000
    words; how those are weighted is not told, and here a word counts as often as it occurs. A smaller vocabulary is
    counted as a whole.

    Args:
        hidden: Widths of the hidden layers; a ReLU follows each of them, and the last layer.
    """

    def build(spec: TextSpec) -> nn.Module:
        words = min(_WORDS, max(1, spec.vocabulary - 2))  # a layer needs an input
        layers: list[nn.Module] = [Bag(words)]
        for inputs, outputs in itertools.pairwise((words, *hidden, _FEATURES)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    return build
