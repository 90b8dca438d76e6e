"""Models that average the word vectors of a text (Joulin et al., EACL 2017, without the n-grams)."""

from torch import nn

from models.base import TextSpec


def fasttext(spec: TextSpec) -> nn.Module:
    """Return the mean of a text's word vectors, followed by a linear layer."""
    return nn.Sequential(_mean(spec), nn.Linear(spec.feature_dim, spec.feature_dim))


def text_logistic(spec: TextSpec) -> nn.Module:
    """Return the mean of a text's word vectors; with the head this is a logistic regression on learned vectors."""
    return nn.Sequential(_mean(spec))


def _mean(spec: TextSpec) -> nn.EmbeddingBag:
    """Return a layer that averages word vectors without padding; a text without words gets the zero vector."""
    return nn.EmbeddingBag(spec.vocabulary, spec.feature_dim, mode="mean", padding_idx=0)
