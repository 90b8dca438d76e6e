"""A client's samples in the common frame, and the predictions that can be made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isoproto.common.classifier import Classifier, log_prior, log_probabilities
from isoproto.common.mixture import PREDICTIONS, best_weights, mixed, mixture_errors
from isoproto.common.own import Choice


@dataclass(frozen=True, kw_only=True)
class FrameSamples:
    """A client's samples in the common frame.

    Attributes:
        fit: Training samples in V versions each, the first unchanged, ``[n, V, D]``.
        fit_labels: Their classes, ``[n]``, int64.
        held: Samples that are held out, likewise ``[m, V, D]``.
        held_labels: Their classes, ``[m]``, int64.
        test: Test samples, ``[t, D]``.
        num_classes: Number of classes C.
        digests: Checksums of the training samples and of those held out, which tell the server what it has already.
        choice: Shrinkage and temperature that are best for the client alone.
        own_fit: The client's classifier from its training samples.
        own: The client's classifier from the samples held out, too.
        shown: Name of the prediction that counts as the client's.
    """

    fit: Tensor
    fit_labels: Tensor
    held: Tensor
    held_labels: Tensor
    test: Tensor
    num_classes: int
    digests: tuple[int, int]
    choice: Choice
    own_fit: Classifier
    own: Classifier
    shown: str = "joint"

    @property
    def prior(self) -> Tensor:
        """Logarithm of the client's class frequencies, ``[C]``."""
        labels = torch.cat([self.fit_labels, self.held_labels])
        return log_prior(torch.bincount(labels, minlength=self.num_classes))


class Everybodys(NamedTuple):
    """Everybody's classifier, as the server sends it.

    Attributes:
        classifier: From all samples.
        without_held: From all samples but those that clients hold out.
        temperature: Factor of the logits of both.
        mixtures: Share of all clients' held-out samples that each mixture gets wrong, ``[M]``; ``None`` if not known.
    """

    classifier: Classifier
    without_held: Classifier
    temperature: float
    mixtures: Tensor | None


class Predictions(NamedTuple):
    """Predicted classes of the test samples, ``[t]`` each, int64.

    Attributes:
        by: By name of the predictor; see ``isoproto.wire.PREDICTORS``.
        weights: Weights of everybody's classifier, the client's own, and its network in the joint prediction.
    """

    by: Mapping[str, Tensor]
    weights: Tensor


def held_out(samples: FrameSamples, everybodys: Everybodys | None, head: Tensor | None) -> Tensor:
    """Return how many held-out samples each mixture gets wrong, ``[M]``, int64.

    Args:
        samples: The client's samples.
        everybodys: What the server sent; ``None`` for nothing.
        head: Logarithms of the network's probabilities of these samples, ``[m, C]``; ``None`` without a network.
    """
    common = None if everybodys is None else (everybodys.without_held, everybodys.temperature)
    each = _log_probs(samples, samples.held[:, 0], common, samples.own_fit)
    return mixture_errors([*each, head], samples.held_labels)


def predictions(
    samples: FrameSamples, everybodys: Everybodys | None, head: Tensor | None, head_held: Tensor | None
) -> Predictions:
    """Predict the test samples in every way there is.

    Args:
        samples: The client's samples.
        everybodys: What the server sent; ``None`` for nothing.
        head: Logarithms of the network's probabilities of the test samples, ``[t, C]``; ``None`` without a network.
        head_held: Likewise of the samples held out, ``[m, C]``.
    """
    common = None if everybodys is None else (everybodys.classifier, everybodys.temperature)
    each = [*_log_probs(samples, samples.test, common, samples.own), head]
    errors = held_out(samples, everybodys, head_held)
    others = None if everybodys is None else everybodys.mixtures
    joint = best_weights(errors, others, alone=everybodys is None)
    by = {name: p.argmax(1) for name, p in zip(PREDICTIONS, each, strict=True) if p is not None}
    by["joint"] = mixed(each, joint).argmax(1)
    if samples.shown == "joint":  # the same mixture without everybody's classifier
        by["alone"] = mixed([None, *each[1:]], best_weights(errors, others, alone=True)).argmax(1)
    elif samples.shown == "common":
        by["alone"] = by["own"]
    return Predictions(by, joint)


def _log_probs(
    samples: FrameSamples, phi: Tensor, common: tuple[Classifier, float] | None, own: Classifier
) -> list[Tensor | None]:
    prior = samples.prior
    own_probs = log_probabilities(own.logits(phi), samples.choice.temperature, prior)
    if common is None:
        return [None, own_probs]
    classifier, temperature = common
    return [log_probabilities(classifier.logits(phi), temperature, prior), own_probs]
