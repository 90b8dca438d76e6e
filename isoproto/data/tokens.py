"""Turn texts into token ids: numbers of words in a vocabulary."""

import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from isoproto import paths
from isoproto.data.folders import Array, cache_folder, cached_array, content_key, warn_once
from isoproto.errors import StateError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger("isoproto")

LENGTH = 200  # tokens kept of a text by default, as in the text models of both papers
VOCABULARY = 30_000  # largest number of words
_RARE = 2  # a word that occurs less often than this in the training texts is unknown
_AT_ONCE = 2_000  # texts that are encoded together
_FORMAT = 1  # of the cached arrays; a new number makes all caches outdated


def tokenise(
    name: str, texts: Sequence[str], test: Sequence[bool], length: int = LENGTH
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the token ids of texts, and the characters that each id adds when a text is printed.

    Words and punctuation marks are tokens. The vocabulary holds the words that occur twice or more in the official
    training texts, the most frequent first; if that part is empty, all texts count. Upper and lower case are the same.
    Ids and vocabulary are kept in ``cache_folder()`` under the hash of the texts.

    Args:
        name: Name of the set, for the file names in the cache.
        texts: The ``N`` texts.
        test: Whether each text belongs to the official test part.
        length: Largest number of tokens kept of a text.

    Returns:
        Ids, shape ``[N, L]``, int32: 0 behind the end of a text, 1 for a word that is not in the vocabulary; L is the
        length of the longest text, at most ``length``. Then the characters of each id.

    Example:
        >>> tokenise("pets", ["A cat, a dog.", "The cat; a dog!"], [False, True])
        (tensor([[2, 1, 1, 2, 1, 1],
                [1, 1, 1, 2, 1, 1]], dtype=torch.int32), ('', '[UNK] ', 'a '))
    """
    digest = hashlib.sha256()
    for text, part in zip(texts, test, strict=True):
        digest.update(f"{part:d}{len(text)}:{text}".encode())
    key = content_key(name, (_FORMAT, length, VOCABULARY, _RARE, digest.hexdigest()))
    counted = [text for text, part in zip(texts, test, strict=True) if not part] or texts
    tokenizer = _tokenizer(key, counted, length)
    ids = cached_array(key, lambda: _encode(tokenizer, texts, length))
    places = tokenizer.get_vocab()
    return torch.from_numpy(ids), ("", *(f"{word} " for word in sorted(places, key=places.__getitem__)[1:]))


def _encode(tokenizer: "Tokenizer", texts: Sequence[str], length: int) -> Array:
    ids = np.zeros((len(texts), length), np.int32)
    for start in range(0, len(texts), _AT_ONCE):
        for row, text in enumerate(tokenizer.encode_batch_fast(list(texts[start : start + _AT_ONCE])), start):
            ids[row, : len(text.ids)] = text.ids
    return ids[:, : max(1, int((ids != 0).any(0).sum()))]


def _tokenizer(key: str, texts: Sequence[str], length: int) -> "Tokenizer":
    """Return the tokenizer from the cache, or train it on ``texts``; the result is the same in every process."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    path = cache_folder() / f"{key}.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as err:  # the library raises a plain Exception
            logger.info("cached vocabulary %s cannot be read (%s) and is made anew", path, err)
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(length)
    tokenizer.train_from_iterator(
        texts,
        trainers.WordLevelTrainer(
            vocab_size=VOCABULARY, min_frequency=_RARE, special_tokens=["[PAD]", "[UNK]"], show_progress=False
        ),
    )
    try:
        paths.write_atomically(path, tokenizer.to_str().encode())
    except StateError as err:
        warn_once(f"the vocabulary is not kept and is made again by every process: {err}")
    return tokenizer
