"""Texts as token ids."""

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

LENGTH = 200  # tokens of a text that are kept by default, as both papers' text models take them
VOCABULARY = 30_000  # words at most
_RARE = 2  # a word that occurs less often in the training texts is unknown
_AT_ONCE = 2_000  # texts
_FORMAT = 1  # of what is cached


def tokenise(
    name: str, texts: Sequence[str], test: Sequence[bool], length: int = LENGTH
) -> tuple[Tensor, tuple[str, ...]]:
    """Return token ids of words and signs, and what each id adds to a text.

    The vocabulary is made of the official training texts alone (of all texts, if that part is empty): words that occur
    twice or more, the most frequent first. Upper and lower case are one. Ids and vocabulary are kept in
    ``cache_folder()``, under the hash of the texts.

    Args:
        name: For the file names in the cache.
        texts: The ``N`` texts.
        test: Whether each is of the official test part.
        length: Tokens of a text that are kept.

    Returns:
        Ids, shape ``[N, L]``, int32: 0 behind the end of a text, 1 for a word that is not in the vocabulary; L is the
        length of the longest text, ``length`` at most.

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
    """Read the vocabulary from the cache, or make it from ``texts``: the same one in every process."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    path = cache_folder() / f"{key}.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as err:  # the library has no class of its own for it
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
