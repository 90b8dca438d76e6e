"""Layers and functions that models for text share: word vectors, and finding where a text ends."""

import torch
from torch import Tensor, nn

from models.base import TextSpec


class Words(nn.Module):
    """Look up the vectors of a batch of texts, cut to the longest of them.

    Padding stands behind a text. Its token 0 has the zero vector, which is not trained. A text that is all padding
    counts as one token, so that its features are finite.

    Args:
        spec: The texts; the layer uses the size of their vocabulary.
        width: Number u of values in a word vector.
    """

    def __init__(self, spec: TextSpec, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(spec.vocabulary, width, padding_idx=0)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors ``[B, T, u]`` of ``tokens`` ``[B, L]``, and the lengths ``[B]`` of the texts, >= 1."""
        tokens, lengths = trimmed(tokens)
        return self.vectors(tokens), lengths


def trimmed(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Cut off the padding that all texts of a batch share, and return the tokens and the length of each text.

    Example:
        >>> trimmed(torch.tensor([[5, 0, 0, 0], [7, 8, 0, 0], [0, 0, 0, 0]]))
        (tensor([[5, 0],
                [7, 8],
                [0, 0]]), tensor([1, 2, 1]))
    """
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    lengths = ((tokens != 0) * places).amax(1).clamp(min=1)
    if tokens.is_meta:  # meta tensors have no values, so the longest text is not known
        return tokens, lengths
    return tokens[:, : int(lengths.max())], lengths


def inside(lengths: Tensor, places: int) -> Tensor:
    """Return whether each of the first ``places`` places lies within each text, shape ``[B, places]``, bool.

    Example:
        >>> inside(torch.tensor([1, 3]), 3)
        tensor([[ True, False, False],
                [ True,  True,  True]])
    """
    return torch.arange(places, device=lengths.device) < lengths[:, None]


def at_end(states: Tensor, lengths: Tensor) -> Tensor:
    """Return the rows of ``states`` ``[B, T, u]`` at the last token of each text, shape ``[B, u]``."""
    return states[torch.arange(len(states), device=states.device), lengths - 1]
