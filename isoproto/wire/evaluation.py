"""The accuracy of a client's own model, in a training reply or in an evaluation reply."""

import dataclasses
from dataclasses import dataclass

from flwr.app import MetricRecord, RecordDict

from isoproto.errors import WireError
from isoproto.wire.broadcast import Broadcast, Expected, check_reply_config, reply_config
from isoproto.wire.codec import (
    CONFIG,
    METRICS,
    check_names,
    integer_of,
    integers_of,
    record_of,
)

EVALUATED = ("correct", "total", "correct-prototype")
_EVALUATE_METRICS = (*(f"after-{name}" for name in EVALUATED), "class-correct", "class-total", "class-predicted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The accuracy of a client's own model on the client's test samples.

    Attributes:
        correct: Test samples that the model's head predicts correctly.
        total: Number of test samples.
        correct_prototype: Test samples whose nearest global prototype is that of their class; ``None`` without
            prototypes.
        class_correct: Correct samples of each class, ``[C]``.
        class_total: Test samples of each class, ``[C]``.
        class_predicted: Test samples that the head predicts to be of each class, ``[C]``.
    """

    correct: int
    total: int
    correct_prototype: int | None = None
    class_correct: tuple[int, ...] = ()
    class_total: tuple[int, ...] = ()
    class_predicted: tuple[int, ...] = ()


def write_evaluate_reply(evaluation: Evaluation, broadcast: Broadcast, client: str) -> RecordDict:
    """Encode a client's accuracy."""
    metrics = MetricRecord(
        {
            **evaluation_metrics("after", evaluation),
            "class-correct": list(evaluation.class_correct),
            "class-total": list(evaluation.class_total),
            "class-predicted": list(evaluation.class_predicted),
        }
    )
    return RecordDict({CONFIG: reply_config(broadcast, client), METRICS: metrics})


def evaluation_metrics(moment: str, evaluation: Evaluation) -> dict[str, int]:
    """Return an evaluation as metrics whose names begin with ``moment``: ``before`` or ``after`` training."""
    prototype = evaluation.correct_prototype
    return {
        f"{moment}-correct": evaluation.correct,
        f"{moment}-total": evaluation.total,
        f"{moment}-correct-prototype": -1 if prototype is None else prototype,
    }


def read_evaluate_reply(content: RecordDict, expected: Expected) -> Evaluation:
    """Decode and check an evaluation reply.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: If anything else in it is impossible.
    """
    check_reply_config(content, expected)
    metrics = record_of(content, METRICS, MetricRecord)
    check_names("metrics", metrics, _EVALUATE_METRICS)
    evaluation = read_evaluation(metrics, "after")
    correct = integers_of(metrics, "class-correct", expected.num_classes)
    total = integers_of(metrics, "class-total", expected.num_classes)
    predicted = integers_of(metrics, "class-predicted", expected.num_classes)
    for class_id, (right, samples, given) in enumerate(zip(correct, total, predicted, strict=True)):
        if right > samples:
            raise WireError(f"metric 'class-correct', class {class_id}: {right} right of {samples} samples")
        if right > given:
            raise WireError(f"metric 'class-predicted', class {class_id}: {right} right of {given} predictions")
    if (sum(correct), sum(total)) != (evaluation.correct, evaluation.total):
        raise WireError(
            f"metric 'class-correct': the classes add up to {sum(correct)} right of {sum(total)}, "
            f"'after-correct' and 'after-total' say {evaluation.correct} of {evaluation.total}"
        )
    if sum(predicted) != evaluation.total:
        raise WireError(
            f"metric 'class-predicted': {sum(predicted)} predictions of {evaluation.total} samples ('after-total')"
        )
    return dataclasses.replace(evaluation, class_correct=correct, class_total=total, class_predicted=predicted)


def read_evaluation(metrics: MetricRecord, moment: str) -> Evaluation:
    """Decode and check the metrics that :func:`evaluation_metrics` returned."""
    correct = integer_of(metrics, f"{moment}-correct", 0)
    total = integer_of(metrics, f"{moment}-total", 0)
    prototype = integer_of(metrics, f"{moment}-correct-prototype", -1)
    if max(correct, prototype) > total:
        raise WireError(f"metric '{moment}-correct': {max(correct, prototype)} right of {total} samples")
    return Evaluation(correct=correct, total=total, correct_prototype=None if prototype < 0 else prototype)
