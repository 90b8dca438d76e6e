"""Evaluate a client's predictions on its test data."""

import torch
from torch import Tensor

from client_app.training import extract, predict
from isoproto import wire
from isoproto.common.samples import FrameSamples, predictions
from isoproto.data import ClientData, class_counts
from isoproto.parts import View
from isoproto.parts.common import everybodys
from models import FeatureModel


@torch.no_grad()
def logits_of(model: FeatureModel, x: Tensor) -> Tensor:
    """Return the logits ``[n, C]`` of samples in eval mode, on the CPU, float32."""
    logits: Tensor = model.head(extract(model, x))
    return logits.float().cpu()


def evaluate_model(model: FeatureModel, data: ClientData, view: View) -> wire.Evaluation:
    """Count the test samples that the client predicts correctly, by each predictor that it has.

    Without a common frame it predicts with the model's head. The nearest global prototype is counted beside it.
    """
    features = extract(model, data.test_x)
    device = features.device
    prototypes, present = view.prototypes() or (None, None)
    if prototypes is not None and present is not None:
        prototypes, present = prototypes.to(device), present.to(device)
    predicted, by_prototype = predict(model, features, data.test_y, prototypes, present)
    predicted = predicted.cpu()
    if view.samples is None or not len(data.test_y):
        return _counted(predicted, data, by_prototype)
    with torch.no_grad():
        head = model.head(features).cpu().double().log_softmax(1)
    held = logits_of(model, data.held_x).double().log_softmax(1)
    return _in_frame(view.samples, data, view, head, held, by_prototype)


def evaluate_in_frame(data: ClientData, view: View) -> wire.Evaluation:
    """Count the test samples that a client without a model predicts correctly, by each predictor in the common frame.

    Raises:
        ValueError: If the client's samples are not in a common frame.
    """
    if view.samples is None:
        raise ValueError(f"client {view.client} has neither a model nor a common frame to predict with")
    return _in_frame(view.samples, data, view, None, None, None)


def _in_frame(
    samples: FrameSamples,
    data: ClientData,
    view: View,
    head: Tensor | None,
    held: Tensor | None,
    by_prototype: int | None,
) -> wire.Evaluation:
    """Count correct predictions of each predictor. ``head`` and ``held`` are the network's, if there is one."""
    by = predictions(samples, everybodys(view.arrays), head, held).by
    shown = by.get(samples.shown, by["joint"])
    return _counted(shown, data, by_prototype, {name: p == data.test_y for name, p in by.items()})


def _counted(
    predicted: Tensor, data: ClientData, by_prototype: int | None, by: dict[str, Tensor] | None = None
) -> wire.Evaluation:
    """Count correct predictions.

    Args:
        predicted: The classes that count as the client's predictions, ``[t]``.
        data: The client's data.
        by_prototype: Test samples that the nearest prototype gets right, if there are any prototypes.
        by: Which test samples each predictor gets right, ``[t]`` bool each.
    """
    classes, correct = len(data.classes), predicted == data.test_y
    by = by or {}
    alone = by.get("alone", correct)
    return wire.Evaluation(
        correct=int(correct.sum()),
        total=len(data.test_y),
        correct_prototype=by_prototype,
        class_correct=tuple(class_counts(data.test_y[correct], classes).tolist()),
        class_total=tuple(class_counts(data.test_y, classes).tolist()),
        class_predicted=tuple(class_counts(predicted, classes).tolist()),
        predictors={name: int(right.sum()) for name, right in by.items()},
        gained=int((correct & ~alone).sum()),
        lost=int((alone & ~correct).sum()),
    )
