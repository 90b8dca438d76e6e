"""Evaluate a client's model on the client's test data."""

from client_app.training import extract, predict
from isoproto import wire
from isoproto.data import ClientData, class_counts
from isoproto.parts import View
from models import FeatureModel


def evaluate_model(model: FeatureModel, data: ClientData, view: View) -> wire.Evaluation:
    """Count the test samples that the head gets right, and those that the nearest global prototype gets right."""
    features = extract(model, data.test_x)
    device, classes = features.device, len(data.classes)
    prototypes, present = view.prototypes() or (None, None)
    if prototypes is not None and present is not None:
        prototypes, present = prototypes.to(device), present.to(device)
    predicted, by_prototype = predict(model, features, data.test_y, prototypes, present)
    correct = predicted == data.test_y.to(device)
    return wire.Evaluation(
        correct=int(correct.sum()),
        total=len(data.test_y),
        correct_prototype=by_prototype,
        class_correct=tuple(class_counts(data.test_y[correct.cpu()], classes).tolist()),
        class_total=tuple(class_counts(data.test_y, classes).tolist()),
        class_predicted=tuple(class_counts(predicted.cpu(), classes).tolist()),
    )
