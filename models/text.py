"""What the models for text have in common: words as vectors, and where a text ends."""

import torch
from torch import Tensor, nn

from models.base import TextSpec


class Words(nn.Module):
    """Look up the vectors of a batch of texts, cut to the longest of them.

    Padding stands behind a text and is all zeros: token 0 has the zero vector and learns nothing. A text of padding
    alone counts as one such token, so that its features are finite.

    Args:
        spec: Gives the vocabulary.
        width: u.
    """

    def __init__(self, spec: TextSpec, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(spec.vocabulary, width, padding_idx=0)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors ``[B, T, u]`` of ``tokens`` ``[B, L]``, and the lengths ``[B]`` of the texts, >= 1."""
        tokens, lengths = trimmed(tokens)
        return self.vectors(tokens), lengths


def trimmed(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Cut padding that all texts of a batch have, and return the lengths of the texts too.

    Example:
        >>> trimmed(torch.tensor([[5, 0, 0, 0], [7, 8, 0, 0], [0, 0, 0, 0]]))
        (tensor([[5, 0],
                [7, 8],
                [0, 0]]), tensor([1, 2, 1]))
    """
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    lengths = ((tokens != 0) * places).amax(1).clamp(min=1)
    if tokens.is_meta:  # nothing is known of the texts
        return tokens, lengths
    return tokens[:, : int(lengths.max())], lengths


def inside(lengths: Tensor, places: int) -> Tensor:
    """Return which of so many places lie within each text, shape ``[B, places]``, bool.

    Example:
        >>> inside(torch.tensor([1, 3]), 3)
        tensor([[ True, False, False],
                [ True,  True,  True]])
    """
    return torch.arange(places, device=lengths.device) < lengths[:, None]


def at_end(states: Tensor, lengths: Tensor) -> Tensor:
    """Return what ``states`` ``[B, T, u]`` are at the last token of each text, shape ``[B, u]``."""
    return states[torch.arange(len(states), device=states.device), lengths - 1]
