"""The accuracy of a client's own model, in a training reply or in an evaluation reply."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import MetricRecord, RecordDict

from isoproto.errors import WireError
from isoproto.runs.added import PREDICTORS
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
_BY_CLASS = ("class-correct", "class-total", "class-predicted")
_DISCORDANT = ("gained", "lost")


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
        predictors: Test samples that each named predictor gets right; empty where the method has one predictor only.
            Names are those of ``isoproto.runs.added.PREDICTORS``. ``alone`` is the client with nothing exchanged.
        gained: Test samples that the shown prediction, counted in ``correct``, gets right and ``alone`` gets wrong.
        lost: Test samples that ``alone`` gets right and the shown prediction gets wrong.

    Example:
        Of 10 samples the shown prediction gets 8 right and ``alone`` gets 6. They agree on 5 right ones, so the
        exchange gained 3 and lost 1, and ``8 - 6 = 3 - 1``:

        >>> e = Evaluation(correct=8, total=10, predictors={"joint": 8, "alone": 6}, gained=3, lost=1)
        >>> e.correct - e.predictors["alone"] == e.gained - e.lost
        True
    """

    correct: int
    total: int
    correct_prototype: int | None = None
    class_correct: tuple[int, ...] = ()
    class_total: tuple[int, ...] = ()
    class_predicted: tuple[int, ...] = ()
    predictors: Mapping[str, int] = field(default_factory=dict)
    gained: int = 0
    lost: int = 0


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
    """Return an evaluation as metrics whose names begin with ``moment``: ``before`` or ``after`` training.

    Predictors are further metrics, and only where there are some: the messages of other methods do not change.

    Raises:
        ValueError: If a predictor has a name that is not in ``PREDICTORS``. The server would refuse the reply.

    Example:
        >>> evaluation_metrics("after", Evaluation(correct=3, total=4, predictors={"alone": 2}, gained=1))
        ... # doctest: +NORMALIZE_WHITESPACE
        {'after-correct': 3, 'after-total': 4, 'after-correct-prototype': -1,
         'after-correct-alone': 2, 'after-gained': 1, 'after-lost': 0}
    """
    if unknown := sorted(set(evaluation.predictors).difference(PREDICTORS)):
        raise ValueError(f"unknown predictors {unknown}; an evaluation may count {', '.join(PREDICTORS)}")
    prototype, counts = evaluation.correct_prototype, evaluation.predictors
    metrics = {
        f"{moment}-correct": evaluation.correct,
        f"{moment}-total": evaluation.total,
        f"{moment}-correct-prototype": -1 if prototype is None else prototype,
        **{f"{moment}-correct-{name}": counts[name] for name in PREDICTORS if name in counts},
    }
    if "alone" in counts:
        metrics |= {f"{moment}-gained": evaluation.gained, f"{moment}-lost": evaluation.lost}
    return metrics


def evaluated_names(moment: str, predictors: Iterable[str]) -> list[str]:
    """Return the names of the metrics that an evaluation may consist of, if it may count some predictors.

    Example:
        >>> evaluated_names("after", ())
        ['after-correct', 'after-total', 'after-correct-prototype']
        >>> evaluated_names("after", ("head", "alone"))[3:]
        ['after-correct-head', 'after-correct-alone', 'after-gained', 'after-lost']
    """
    further = [f"correct-{name}" for name in predictors]
    return [f"{moment}-{name}" for name in (*EVALUATED, *further, *(_DISCORDANT if further else ()))]


def read_evaluate_reply(content: RecordDict, expected: Expected) -> Evaluation:
    """Decode and check an evaluation reply.

    Raises:
        SchemaMismatch: If the client speaks another schema version.
        WireError: If anything else in it is impossible.
    """
    check_reply_config(content, expected)
    metrics = record_of(content, METRICS, MetricRecord)
    check_names("metrics", metrics, (*evaluated_names("after", expected.predictors), *_BY_CLASS))
    evaluation = read_evaluation(metrics, "after", expected.predictors)
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


def read_evaluation(metrics: MetricRecord, moment: str, predictors: Iterable[str] = ()) -> Evaluation:
    """Decode and check the metrics that :func:`evaluation_metrics` returned.

    Args:
        metrics: The metrics of a reply.
        moment: How the names of the metrics begin: ``before`` or ``after``.
        predictors: Names of the predictors that may be counted; any of them may be absent.

    Raises:
        WireError: If a count is missing or impossible. The text names the metric.
    """
    correct = integer_of(metrics, f"{moment}-correct", 0)
    total = integer_of(metrics, f"{moment}-total", 0)
    prototype = integer_of(metrics, f"{moment}-correct-prototype", -1)
    if max(correct, prototype) > total:
        raise WireError(f"metric '{moment}-correct': {max(correct, prototype)} right of {total} samples")
    counts = _read_predictors(metrics, moment, predictors, total)
    gained, lost = _read_discordant(metrics, moment, correct, total, counts.get("alone"))
    return Evaluation(
        correct=correct,
        total=total,
        correct_prototype=None if prototype < 0 else prototype,
        predictors=counts,
        gained=gained,
        lost=lost,
    )


def _read_predictors(metrics: MetricRecord, moment: str, predictors: Iterable[str], total: int) -> dict[str, int]:
    """Return the correct samples of each predictor that is in a reply."""
    counts = {}
    for name in predictors:
        if (key := f"{moment}-correct-{name}") in metrics:
            counts[name] = integer_of(metrics, key, 0)
            if counts[name] > total:
                raise WireError(f"metric '{key}': {counts[name]} right of {total} samples")
    return counts


def _read_discordant(
    metrics: MetricRecord, moment: str, correct: int, total: int, alone: int | None
) -> tuple[int, int]:
    """Return the samples that only the shown prediction, and that only ``alone`` gets right."""
    if alone is None:
        if came := [name for name in _DISCORDANT if f"{moment}-{name}" in metrics]:
            raise WireError(
                f"metric '{moment}-{came[0]}' compares with the prediction with nothing exchanged, "
                f"but '{moment}-correct-alone' is missing"
            )
        return 0, 0
    gained = integer_of(metrics, f"{moment}-gained", 0)
    lost = integer_of(metrics, f"{moment}-lost", 0)
    if gained > total - alone:
        raise WireError(
            f"metric '{moment}-gained': {gained} samples gained, but '{moment}-correct-alone' leaves only "
            f"{total - alone} of {total} to gain"
        )
    if lost > alone:
        raise WireError(
            f"metric '{moment}-lost': {lost} samples lost, but '{moment}-correct-alone' has only {alone} to lose"
        )
    if gained - lost != correct - alone:
        raise WireError(
            f"metric '{moment}-gained': {gained} gained and {lost} lost make {gained - lost:+d}, "
            f"but '{moment}-correct' and '{moment}-correct-alone' differ by {correct - alone:+d}"
        )
    return gained, lost
