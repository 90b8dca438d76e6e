"""Texts that are written out again from token ids, for maps that read texts rather than ids."""

from __future__ import annotations

from torch import Tensor

PROBES = (
    "the match ended without a goal",
    "shares fell after the bank raised its rate",
    "scientists found water on the far side of the moon",
    "a quiet film with two very good actors",
    "it broke after three days , and nobody answered",
    "the senate votes on the treaty next week",
    "to be , or not to be",
    "the new phone has a larger screen",
)
"""Texts that the checksum of a map is made of."""


def written(x: Tensor, words: tuple[str, ...]) -> list[str]:
    """Return texts as characters, without the space behind the last word.

    Args:
        x: Token ids ``[B, L]``.
        words: The characters that each token id adds.

    Example:
        >>> import torch
        >>> written(torch.tensor([[2, 3, 0], [3, 0, 0]]), ("", "[UNK] ", "a ", "cat "))
        ['a cat', 'cat']
    """
    return ["".join([words[i] for i in row]).rstrip(" ") for row in x.tolist()]
