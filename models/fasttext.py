"""Means of word vectors (Joulin et al., EACL 2017, without the n-grams)."""

from torch import nn

from models.base import TextSpec


def fasttext(spec: TextSpec) -> nn.Module:
    """The mean vector of a text's words, and a linear layer."""
    return nn.Sequential(_mean(spec), nn.Linear(spec.feature_dim, spec.feature_dim))


def text_logistic(spec: TextSpec) -> nn.Module:
    """The mean vector of a text's words: with the head, a logistic regression on learned vectors."""
    return nn.Sequential(_mean(spec))


def _mean(spec: TextSpec) -> nn.EmbeddingBag:
    """Padding is no word: it does not count. A text without words has the zero vector."""
    return nn.EmbeddingBag(spec.vocabulary, spec.feature_dim, mode="mean", padding_idx=0)
