r"""Texts as counts of hashed pieces of words, or of the characters before the end.

No vocabulary is agreed on: the place of a piece follows from a hash of its characters, so two nodes with different
vocabularies give the same features to the same text. Half of the pieces count with a minus sign, so that two pieces
that share a place do not add up on average.
Reference: Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.errors import ConfigError

WIDTH = 2048
# Letters that the first piece of a word keeps. Words of one stem then share a piece: `market`, `marketing`.
_STEM = 4
# Characters of the longest piece before the end of a text, and the weight of each piece against the next shorter one.
_REACH, _FADE = 5, 0.7
# Token ids that stand for no word: behind the end of a text, and a word that is not in the vocabulary.
_NO_WORDS = 2
_PRIME, _FACTOR, _SPREAD = 2**31 - 1, 1103515245, 48271


class _Pieces(NamedTuple):
    """Where each token id counts, ``[V, 2]``: the place, and 1, -1 or 0 for nothing."""

    place: Tensor
    sign: Tensor


def word_map(shape: tuple[int, ...], words: tuple[str, ...], device: torch.device) -> Words | Characters:
    """Return the map of texts: ``Words``, or ``Characters`` if each token is a single character.

    Args:
        shape: Must be empty: texts have no channels.
        words: The characters that each token id stands for.
        device: Where it is computed.

    Raises:
        ConfigError: If the samples are pictures.

    Example:
        >>> word_map((), ("", "?", "a", "b"), torch.device("cpu")).name
        'characters'
    """
    if shape or len(words) <= _NO_WORDS:
        raise ConfigError(
            f"common.map 'words' is a map of texts; the samples are pictures {shape}. Set common.map = \"standard\""
            if shape
            else f"common.map 'words' needs a vocabulary of at least one word, got {words}"
        )
    single = all(len(word) <= 1 for word in words)
    return Characters(words, device) if single else Words(words, device)


@dataclass(frozen=True)
class Words:
    r"""Counts of word beginnings and words, at places that their hashes say.

    .. math::
        n_j = \sum_{p: h(p) = j} s(p)\,\#p, \qquad f_j = \mathrm{sign}(n_j) \log(1 + |n_j|), \qquad f / |f|

    The pieces :math:`p` of a word are its first four characters, and all of it if it is longer. Padding and words that
    are not in the vocabulary count nothing; a text of only those has zero features.

    Attributes:
        words: The characters that each token id stands for.
        device: Where it is computed.

    Example:
        Two vocabularies give the same features. ``markets`` shares its first four letters with ``market``:

        >>> here = Words(("", "[UNK] ", "market ", "the "), torch.device("cpu"))
        >>> there = Words(("", "[UNK] ", "a ", "the ", "markets ", "market "), torch.device("cpu"))
        >>> a, b = here(torch.tensor([[3, 2]])), there(torch.tensor([[3, 5], [3, 4]]))
        >>> torch.equal(a[0], b[0]), round(float(a[0] @ b[1]), 2)
        (True, 0.67)
    """

    words: tuple[str, ...]
    device: torch.device

    name = "words"
    width = WIDTH
    usual = (WIDTH, 0)
    standardise = False
    shape: tuple[int, ...] = ()

    def probed(self) -> Tensor:
        """Return the features of eight fixed texts, whatever the vocabulary of this node."""
        probe = Words(
            ("", "?", *(f"{stem}{end}" for stem in ("probe", "prob", "x") for end in "abcdefgh")), self.device
        )
        return probe(torch.arange(24).view(3, 8).T + _NO_WORDS)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features ``[B, 2048]``, float32, on the CPU, of token ids ``[B, L]``."""
        pieces = _pieces(self.words)
        ids = x.long()
        place, sign = (table[ids].flatten(1).to(self.device) for table in pieces)
        counts = torch.zeros(len(x), WIDTH, device=self.device).scatter_add_(1, place, sign)
        return functional.normalize(counts.sign() * counts.abs().log1p()).cpu()


@lru_cache(maxsize=8)
def _pieces(words: tuple[str, ...]) -> _Pieces:
    """Return where each word of a vocabulary counts."""
    place = torch.zeros(len(words), 2, dtype=torch.int64)
    sign = torch.zeros(len(words), 2)
    for number, word in enumerate(words[_NO_WORDS:], _NO_WORDS):
        word = word.strip()
        for column, piece in enumerate((word[:_STEM], word) if len(word) > _STEM else (word,) * bool(word)):
            digest = hashlib.blake2b(piece.encode(), digest_size=8).digest()
            place[number, column] = int.from_bytes(digest[:4], "little") % WIDTH
            sign[number, column] = 1.0 if digest[4] % 2 else -1.0
    return _Pieces(place, sign)


@dataclass(frozen=True)
class Characters:
    r"""The last 1 to 5 characters of a text, each run of them at a place that its hash says.

    .. math::
        f_j = \sum_{k: h(t_{-k} \ldots t_{-1}) = j} 0.7^{k - 1} s(t_{-k} \ldots t_{-1}), \qquad f / |f|

    This suits data whose class is the character that follows a text. What stands before the last five characters
    changes nothing.

    Attributes:
        words: The character that each token id stands for.
        device: Where it is computed.

    Example:
        Texts whose last two characters agree share two of their three runs, with weights 1 and 0.7:

        >>> texts = Characters(("", "?", *"abc"), torch.device("cpu"))
        >>> f = texts(torch.tensor([[2, 3, 4, 0], [4, 3, 4, 0]]))
        >>> round(float(f[0] @ f[1]), 3), round((1 + 0.7**2) / (1 + 0.7**2 + 0.7**4), 3)
        (0.861, 0.861)
    """

    words: tuple[str, ...]
    device: torch.device

    name = "characters"
    width = WIDTH
    usual = (WIDTH, 0)
    standardise = False
    shape: tuple[int, ...] = ()

    def probed(self) -> Tensor:
        """Return the features of eight fixed texts, whatever the vocabulary of this node."""
        probe = Characters(("", "?", *"abcdefgh"), self.device)
        return probe(torch.arange(40).view(8, 5) % 8 + _NO_WORDS)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features ``[B, 2048]``, float32, on the CPU, of token ids ``[B, L]``."""
        codes = torch.tensor([0, *(ord(word or "\0") + 1 for word in self.words[1:])], device=self.device)
        ids = x.to(self.device).long()
        last = (ids > 0).long().mul(torch.arange(1, ids.shape[1] + 1, device=self.device)).amax(1)
        features = torch.zeros(len(ids), WIDTH, device=self.device)
        run = torch.zeros_like(last)
        for k in range(1, min(_REACH, ids.shape[1]) + 1):
            there = last >= k
            code = codes[ids.gather(1, (last - k).clamp(min=0).unsqueeze(1)).squeeze(1)]
            run = (run * _FACTOR + code + k) % _PRIME  # below 2^62: no overflow
            mixed = run * _SPREAD % _PRIME
            sign = 1.0 - 2.0 * (mixed // WIDTH % 2)
            features.scatter_add_(1, (mixed % WIDTH).unsqueeze(1), (sign * there * _FADE ** (k - 1)).unsqueeze(1))
        return functional.normalize(features).cpu()
