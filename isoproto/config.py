"""The run configuration: Flower's flat mapping, read once into one frozen dataclass.

Flower hands over ``dict[str, bool | int | float | str]`` (no lists, no ``None``), so a list travels as text
and "whatever the strategy says" is the word ``auto``. Keys are the field names in kebab-case (``lambda_`` is
``lambda``, ``hyper__size`` is ``hyper.size``). Every default here stands in ``pyproject.toml`` too, since
Flower refuses to override a key that is not listed there; a test compares the two.
"""

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoproto.errors import ConfigError

Scalar = bool | int | float | str
AUTO = "auto"
ANCHOR_TERMS = ("hpcl", "hpal")
# How Flower finds the pairs in an override. What lies between them it passes over without a word.
_PAIR = re.compile(r"""\S+?=(?:'[^']*'|"[^"]*"|\S+)""")


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a setting may be: one of ``choices``, or a number between ``low`` and ``high``."""

    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # the lower bound itself is not allowed

    def problem(self, key: str, value: Scalar) -> str | None:
        if self.choices:
            if value in self.choices:
                return None
            return f"`{key}` must be one of {', '.join(map(repr, self.choices))}, got {value!r}"
        if isinstance(value, str):
            return None
        if math.isfinite(value) and self.low <= value <= self.high and not (self.above and value == self.low):
            return None
        low = f"{'>' if self.above else '>='} {self.low:g}" if self.low > -math.inf else ""
        high = f"<= {self.high:g}" if self.high < math.inf else ""
        wanted = " and ".join(part for part in (low, high, "finite") if part)
        return f"`{key}` must be {wanted}, got {value!r}"


def one_of(default: str, *choices: str) -> Any:  # noqa: ANN401 - a dataclass field stands for any type
    """Return the field of a setting that is one of some names."""
    return dataclasses.field(default=default, metadata={"rule": _Rule(choices=choices)})


def number(default: Scalar, low: float, high: float = math.inf, *, above: bool = False) -> Any:  # noqa: ANN401
    """Return the field of a setting that is a number from ``low`` (``above`` it) to ``high``."""
    return dataclasses.field(default=default, metadata={"rule": _Rule(low=low, high=high, above=above)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Settings of one run.

    Attributes:
        strategy: Name in ``STRATEGIES``; a point on the three axes below and what is special to a method.
        prototypes: Construction of global prototypes; ``auto`` is the strategy's own.
        alignment: Alignment terms on the client, joined by ``+``: at most one name in ``LOSSES``, ``hpcl``, ``hpal``;
            or ``none``; ``auto`` as above. The strategy's own defaults of other settings hold whatever it is, but for
            ``lambda``, ``gamma`` and ``missing``, which belong to the loss.
        share: Which weights travel besides; ``auto`` as above.
        lambda_: Weight of the prototype-level term, dimensionless; ``auto`` is the default of the alignment.
        gamma: Weight of the instance-level term, likewise.
        missing: Samples whose class has no global prototype: left out of the instance term (``mask``), or
            counted with a zero residual (``self``, FedProto; coordinate losses only); ``auto`` as above.
        proto_source: Where uploaded prototypes come from: a pass in eval mode after training (``post-eval``),
            or running means in train mode over the ``last-epoch`` or ``all-epochs``.
        proto_weight: Weight of a client's prototype in the global one: its samples of the class, 1
            (``uniform``), or all its samples.
        frame: Where prototypes of different clients meet: their coordinates as they are (``shared``, the papers);
            each client's mapped onto common ones (``procrustes``); points made of the clients' averaged relations
            (``gram``); ``auto`` is the strategy's own.
        anchors: What the terms of ``alignment`` are made of: what the server sends (``global``), or, as controls that
            use nothing of other clients, the client's ``own`` prototypes (and their relations), or ``private`` random
            vectors (and the simplex: all classes equally far apart).
        stale: A class nobody sent this round keeps its last prototype (``keep``) or has none (``drop``).
        rounds: Rounds of training, >= 0.
        fraction: Share of the clients that train in a round, in (0, 1].
        over_sample: So many more clients are asked, as a share of those; the round closes with as many good replies as
            ``fraction`` wants, and does not wait for the slowest. For real nodes; 0: nobody more.
        join_late: Share of the clients that take no part in training before round ``join_round``, in [0, 1); they are
            evaluated with the others, and told apart in the figures.
        join_round: The first round they may train in; 0: never.
        seed: Seed of models, cohorts and batches. The partition has its own.
        resume: Run folder (or its name under the output folder) of an interrupted run to go on with.
        scale: ``small`` makes a paper's setting one for two cores: smaller models of the same kinds, at most five
            rounds of one epoch, some thousand samples, stand-ins for data sets that few have; log and
            ``summary.json`` name each. ``paper``: everything is as it is set.
        init_from: Experiment id whose client models (under the same state folder) are the starting point.
        data: Data set: a name, or ``npz:FILE``, ``imagefolder:FOLDER``, ``csv:FILE``, ``jsonl:FILE``,
            ``module:FILE.py:callable``.
        data_dir: Folder with data files; absolute.
        classes: Names of the federation's classes, separated by commas: clients number theirs by them, and may lack
            some; empty: the data set's own.
        partition: Name in ``PARTITIONERS``.
        partition_seed: Seed of the partition and of each client's train/test split.
        alpha: Concentration of the Dirichlet partitions, > 0.
        classes_per_client: Classes a client holds under ``shards``.
        min_samples: Samples every client must at least get, >= 0; 0 allows empty clients.
        split: ``merged``: official train and test part are pooled, and each client splits its own share;
            ``official``: clients get their train data from the train part and test data from the test part;
            ``global``: likewise, but each is tested on the whole test part; ``stratified``: as ``official``, with a
            test part that is drawn by class and domain.
        test_fraction: Share of a client's data that is its test part under ``split = merged``, of all data under
            ``stratified``.
        imbalance: Long tail of the training part, >= 1: how many times rarer the last class is than the first; 1: none.
        max_samples: Samples of the data set that are dealt out at most, drawn by class, domain and official part in
            proportion; 0: all.
        models: A family's name, or model names separated by commas; dealt out by partition id.
        feature_dim: Feature width d that all models have in common.
        heads: Name in ``HEADS``: every client has a ``linear`` head, or they are dealt out like the models: one to four
            layers (``mixed``), HtFLlib's ``htc4``, or those that go with the models ``htm4`` and ``htm10``.
        init: ``per-client``: independent initial weights; ``per-architecture``: equal ones where the
            architecture is equal.
        epochs: Local epochs E per round, >= 1.
        batch_size: Mini-batch size B, >= 2: BatchNorm cannot train on one sample.
        batches: ``shuffled`` anew in every epoch; or ``fixed``, in the order of the data and whole ones alone, as in
            FedSAF's authors' code: what is behind the last whole one is never trained on, unless it is everything.
        augment: Random changes of training pictures, drawn for each sample anew: ``flip``; ``crop_flip``, which shifts
            by up to four pixels too, or ``crop_flip_batch``, alike for a whole batch as in FedHPro's published code;
            AutoAugment's policy for CIFAR-10. Prototypes of ``post-eval`` and tests see none.
        optimizer: Local optimiser, created anew every round.
        learning_rate: Its step size, >= 0; 0 leaves the models as they are.
        momentum: Momentum of SGD, in [0, 1).
        weight_decay: Its L2 penalty, >= 0.
        device: ``auto`` takes a GPU where there is one.
        amp: Precision of a model's forward and backward pass in local training: ``bf16`` is PyTorch's autocast to
            bfloat16; weights, losses, statistics and evaluation stay in float32.
        cohort: Whether clients of an architecture for which it pays are trained as one program (``on``; models,
            batches and pictures in ``client_app.batched``, with linear heads and without augmentation or ``amp``), or
            all one by one (``off``). Rounding differs, nothing else.
        evaluate_every: Rounds between evaluations of all clients; 0: only before the first round and after
            the last.
        clients: Clients of a simulation with fewer nodes, each of which stands for several; 0: one per node.
        min_nodes: Nodes (in a simulation: clients) that can take part, to wait for before round 1; 0: all of a
            simulation that can, else 2.
        wait_timeout: Seconds to wait for them.
        round_timeout: Seconds until a round closes with the replies it has.
        min_replies: Good replies below which a round counts as empty and changes nothing, >= 1.
        max_empty_rounds: Empty rounds in a row after which the run is given up, >= 1.
        min_class_samples: Samples of a class below which a client does not send its prototype, >= 1.
        min_contributors: Clients below which a class's new prototype is not published, >= 1.
        relation__shrink: How far averaged relations between classes are pulled towards the regular simplex, in
            [0, 1]; ``auto`` as above. With 0 in the shared frame, relations are those of the prototypes sent.
        relation__debias: Subtract what sampling noise adds to distances between class means.
        hyper__size: Hyper-prototypes per class.
        hyper__init: They start from noise (``normal``, the paper) or about the prototypes; ``auto`` as above.
            ``anchors`` other than ``global`` say it themselves.
        hyper__spread: Their distance from the prototypes at the start, in radii of the prototypes.
        hyper__steps: Steps of gradient matching per round.
        hyper__learning_rate: Their size; 0: hyper-prototypes stay as they are and no gradients travel; ``auto`` as
            above.
        hyper__optimizer: Optimiser of gradient matching; ``auto`` as above.
        hyper__head: The head that gradients are taken through: the averaged classifier (``shared``; needs ``share``
            = head or model, and ``frame`` = shared), one that the server trains on prototypes (``server``), or the
            nearest-prototype rule (``prototype``); ``auto`` as above.
        hyper__distance: Distance of gradients: ``cosine``, or the published code's ``coordinate_sign``.
        hyper__grad_weight: Weight of a client's gradient of a class in their mean: 1, or its samples of the class.
        hyper__grad_point: Gradients are taken after local training (the paper) or before (the published code).
        hyper__grad_samples: Samples of a class that gradients are taken of, as in the published code, but
            ``min_class_samples`` at least; 0: all.
        hyper__retrain: ``creff``: the server replaces the averaged classifier by one that it trains on features made
            of classifier gradients, as the published code does for long-tailed data.
        hyper__margin: Margin of HPCL: ``none``; the paper's, with its ``literal`` divisor or a true mean over the
            pairs ``present``; the published code's ``additive``; ``auto`` as above.
        hyper__temperature: Temperature of HPCL, > 0.
        hyper__form: Form of HPAL: see ``isoproto.losses.anchors.hpal``; ``auto`` as above.
        hyper__pcl: Weight of HPCL, dimensionless; ``auto`` as above.
        hyper__pal: Weight of HPAL, likewise.
        max_norm: Largest Euclidean norm of a prototype row that the server accepts.
        wire__dtype: How rows of prototypes, gradients, relations and anchors travel, both ways: as they are, or rounded
            with one scale per row. Weights are never rounded.
        output_dir: Folder of run folders; absolute. Empty: ``$ISOPROTO_HOME/runs``, else the user's data folder.
        state_dir: Folder of the clients' own models; absolute. Empty: likewise, ``state``.
    """

    strategy: str = "fedsaf"
    prototypes: str = one_of(AUTO, AUTO, "none", "mean", "hyper")
    alignment: str = AUTO
    share: str = one_of(AUTO, AUTO, "none", "head", "base", "model")
    lambda_: float | str = number(AUTO, 0)
    gamma: float | str = number(AUTO, 0)
    missing: str = one_of(AUTO, AUTO, "mask", "self")
    proto_source: str = one_of("post-eval", "post-eval", "last-epoch", "all-epochs")
    proto_weight: str = one_of("class_samples", "class_samples", "uniform", "client_samples")
    frame: str = one_of(AUTO, AUTO, "shared", "procrustes", "gram")
    anchors: str = one_of("global", "global", "own", "private")
    stale: str = one_of("keep", "keep", "drop")

    relation__shrink: float | str = number(AUTO, 0, 1)
    relation__debias: bool = True
    hyper__size: int = number(5, 1, 64)
    hyper__init: str = one_of(AUTO, AUTO, "normal", "prototypes")
    hyper__spread: float = number(0.3, 0)
    hyper__steps: int = number(30, 1)
    hyper__learning_rate: float | str = number(AUTO, 0)
    hyper__optimizer: str = one_of(AUTO, AUTO, "sgd", "adam")
    hyper__head: str = one_of(AUTO, AUTO, "shared", "server", "prototype")
    hyper__distance: str = one_of("cosine", "cosine", "coordinate_sign")
    hyper__grad_weight: str = one_of("uniform", "uniform", "class_samples")
    hyper__grad_point: str = one_of("after-training", "after-training", "before-training")
    hyper__grad_samples: int = number(0, 0)
    hyper__retrain: str = one_of("none", "none", "creff")
    hyper__margin: str = one_of(AUTO, AUTO, "none", "literal", "present", "additive")
    hyper__temperature: float = number(0.05, 0, above=True)
    hyper__form: str = one_of(AUTO, AUTO, "paper", "paper_mean", "normalised", "normalised_mean")
    hyper__pcl: float | str = number(AUTO, 0)
    hyper__pal: float | str = number(AUTO, 0)

    rounds: int = number(15, 0)
    fraction: float = number(1.0, 0, 1, above=True)
    over_sample: float = number(0.0, 0, 10)
    join_late: float = number(0.0, 0, 0.99)
    join_round: int = number(0, 0)
    seed: int = number(0, 0)
    resume: str = ""
    scale: str = one_of("paper", "paper", "small")
    init_from: str = ""

    data: str = "digits4"
    data_dir: str = ""
    classes: str = ""
    partition: str = "domain"
    partition_seed: int = number(1, 0)
    alpha: float = number(0.1, 0, above=True)
    classes_per_client: int = number(2, 1)
    min_samples: int = number(2, 0)
    split: str = one_of("merged", "merged", "official", "global", "stratified")
    test_fraction: float = number(0.25, 0, 0.9, above=True)
    imbalance: float = number(1.0, 1)
    max_samples: int = number(0, 0)

    models: str = "demo4"
    feature_dim: int = number(128, 1, 65536)
    heads: str = "linear"
    init: str = one_of("per-client", "per-client", "per-architecture")
    epochs: int = number(1, 1)
    batch_size: int = number(32, 2)
    batches: str = one_of("shuffled", "shuffled", "fixed")
    augment: str = one_of("none", "none", "flip", "crop_flip", "crop_flip_batch", "autoaugment")
    optimizer: str = one_of("sgd", "sgd", "adam", "adamw")
    learning_rate: float = number(0.02, 0)
    momentum: float = number(0.9, 0, 0.999)
    weight_decay: float = number(0.0, 0)
    device: str = AUTO
    amp: str = one_of("off", "off", "bf16")
    cohort: str = one_of("on", "on", "off")

    evaluate_every: int = number(0, 0)
    clients: int = number(0, 0)
    min_nodes: int = number(0, 0)
    wait_timeout: float = number(300.0, 0, above=True)
    round_timeout: float = number(3600.0, 0, above=True)
    min_replies: int = number(1, 1)
    max_empty_rounds: int = number(3, 1)
    min_class_samples: int = number(1, 1)
    min_contributors: int = number(1, 1)
    max_norm: float = number(1e6, 0, above=True)
    wire__dtype: str = one_of("float32", "float32", "float16", "int8")

    output_dir: str = ""
    state_dir: str = ""

    @property
    def structural(self) -> str:
        """The term of ``alignment`` that is a name in ``LOSSES``, or an empty text."""
        return next((term for term in self._terms if term not in (*ANCHOR_TERMS, "none")), "")

    @property
    def anchored(self) -> tuple[str, ...]:
        """The terms of ``alignment`` that are not."""
        return tuple(term for term in self._terms if term in ANCHOR_TERMS)

    @property
    def learns(self) -> bool:
        """Whether the server learns hyper-prototypes that its clients use, so that they have to send gradients."""
        used = bool(self.anchored) and self.anchors == "global"
        return self.prototypes == "hyper" and used and float(self.hyper__learning_rate) > 0

    @property
    def _terms(self) -> list[str]:
        return [term.strip() for term in self.alignment.split("+")]

    @classmethod
    def from_mapping(
        cls,
        values: Mapping[str, Scalar],
        *,
        source: str = "run config",
        check: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: (),
    ) -> "RunConfig":
        """Read Flower's run config, or say everything that is wrong with it at once.

        An ``int`` is welcome where a ``float`` is meant, a ``bool`` is not welcome where a number is.

        Args:
            values: Settings by key.
            source: Where they come from, for the error text.
            check: Gives further problems of the settings that are right in themselves, by field name.

        Raises:
            ConfigError: With every unknown key, wrong type, wrong choice and value out of range.

        Example:
            >>> RunConfig.from_mapping({"rounds": 3, "lambda": 0.5}).lambda_
            0.5
            >>> RunConfig.from_mapping({"round": 3, "seed": "x"})
            Traceback (most recent call last):
            isoproto.errors.ConfigError: 2 problems in the run config:
              unknown key `round` (did you mean `rounds`?)
              `seed` must be int, got 'x'
        """
        found, problems = read_fields(_FIELDS, values)
        refuse([*problems, *_relation_problems(found), *check(found)], source)
        return cls(**found)

    def to_mapping(self) -> dict[str, Scalar]:
        """Return the flat mapping that ``from_mapping`` reads."""
        return {key: getattr(self, field.name) for key, field in _FIELDS.items()}

    def changes(self) -> dict[str, Scalar]:
        """Return only what differs from the defaults.

        Sender and receiver run the same code (their fingerprints are compared), so this says everything.
        """
        return {k: v for k, v in self.to_mapping().items() if v != _FIELDS[k].default}


def read_fields(
    fields: Mapping[str, "dataclasses.Field[Any]"], values: Mapping[str, Scalar]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values that are right, by field name, and what is wrong with each of the others."""
    problems, found = [], {}
    for key, value in values.items():
        field = fields.get(key)
        if field is None:
            close = difflib.get_close_matches(key, fields, n=1)
            problems.append(f"unknown key `{key}`" + (f" (did you mean `{close[0]}`?)" if close else ""))
        elif (problem := _type_problem(key, field, value)) or (problem := _rule_problem(key, field, value)):
            problems.append(problem)
        else:
            found[field.name] = float(value) if field.type is float else value
    return found, problems


def refuse(problems: Sequence[str], source: str) -> None:
    """Say everything that is wrong with some settings at once.

    Raises:
        ConfigError: If there is a problem.
    """
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError("\n  ".join([f"{count} in the {source}:", *problems]))


_FIELDS: dict[str, "dataclasses.Field[Any]"] = {
    f.name.rstrip("_").replace("__", ".").replace("_", "-"): f for f in dataclasses.fields(RunConfig)
}
# Paths that name this machine's folders: a process elsewhere cannot resolve a relative one.
_PATHS = ("data_dir", "output_dir", "state_dir")


def _type_problem(key: str, field: "dataclasses.Field[Any]", value: Scalar) -> str | None:
    if field.type is int and type(value) is not int:
        return f"`{key}` must be int, got {value!r}"
    if field.type is float and type(value) not in (int, float):
        return f"`{key}` must be float, got {value!r}"
    if field.type is bool and type(value) is not bool:
        return f"`{key}` must be true or false, got {value!r}"
    if field.type is str and type(value) is not str:
        return f"`{key}` must be text, got {value!r}"
    if field.type == float | str and (type(value) is bool or (isinstance(value, str) and value != AUTO)):
        return f"`{key}` must be a number or '{AUTO}', got {value!r}"
    return None


def _rule_problem(key: str, field: "dataclasses.Field[Any]", value: Scalar) -> str | None:
    rule: _Rule | None = field.metadata.get("rule")
    return rule.problem(key, value) if rule else None


def _relation_problems(found: Mapping[str, Any]) -> Iterable[str]:
    for name in _PATHS:
        path = found.get(name, "")
        if path and not Path(path).expanduser().is_absolute():
            yield (
                f"`{name.replace('_', '-')}` must be absolute, got {path!r}: Flower's processes run in another folder"
            )


def read_overrides(texts: Iterable[str]) -> dict[str, Scalar]:
    """Merge run-config overrides, each ``key=value ...`` or a TOML file; later ones win.

    Raises:
        ConfigError: If a text or file cannot be read as TOML.

    Example:
        >>> read_overrides(["rounds=3 partition='dirichlet'", "rounds=5"])
        {'rounds': 5, 'partition': 'dirichlet'}
    """
    from flwr.common.config import flatten_dict, parse_config_args

    merged: dict[str, Scalar] = {}
    for text in texts:
        try:
            if text.endswith(".toml"):
                with Path(text).expanduser().open("rb") as file:
                    merged |= flatten_dict(tomllib.load(file))
            else:
                if rest := _PAIR.sub("", text).strip():
                    raise ValueError(f"no key=value in {rest!r}")
                merged |= parse_config_args([text])
        except OSError as err:
            raise ConfigError(f"cannot read the run-config file {text!r}: {err.strerror}") from err
        except Exception as err:
            raise ConfigError(
                f"cannot read the run config {text!r}: {err}. Write key=value pairs, blanks only between them, "
                "text in quotes: -c \"rounds=3 partition='dirichlet'\", or name a .toml file"
            ) from err
    return merged
