"""The settings of a run, one frozen dataclass for each concern.

``isoproto.config.RunConfig`` inherits from all of them. So a function that needs one section can be called with the
whole configuration. A field's key is its name in kebab-case: ``lambda_`` is ``lambda``, ``hyper__size`` is
``hyper.size``.
"""

from dataclasses import dataclass

from isoproto.settings.rules import AUTO, free, number, one_of

NO_MODEL = "none"
"""Stands for a client's model where the client has none: it takes part by the common frame alone."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """What the method is: `prototypes`, `alignment` and `share`; and how its prototypes are made and used."""

    strategy: str = free(
        "isoproto", doc="Name of the method in `STRATEGIES`. It decides every setting below whose value is `auto`."
    )
    prototypes: str = free(
        AUTO,
        doc="How the server makes global prototypes. `none`: it makes none. `mean`: the mean of the clients' class "
        "means. `hyper`: that mean, and hyper-prototypes beside it. `trainable`: the server trains them. New parts "
        "may add names.",
    )
    alignment: str = free(
        AUTO,
        doc="Loss terms that clients add to cross-entropy, joined by `+`: at most one name in `LOSSES` (`mse`, "
        "`cosine`, `gcsa`, `rcsa`), and names in `TERMS` (`hpcl`, `hpal`, `logits`, `twin`); or `none`. The "
        "strategy's other values stay. With another loss than its own, its `lambda`, `gamma` and `missing` do not "
        "apply.",
    )
    share: str = one_of(
        AUTO, AUTO, "none", "head", "base", "model", doc="Which weights of the clients' models the server averages."
    )
    lambda_: float = number(
        AUTO, 0, doc="Weight of the prototype-level term of the alignment loss. `auto` is the loss's own default."
    )
    gamma: float = number(
        AUTO, 0, doc="Weight of the instance-level term of the alignment loss. `auto` is the loss's own default."
    )
    missing: str = one_of(
        AUTO,
        AUTO,
        "mask",
        "self",
        auto="mask",
        doc="What happens to samples whose class has no global prototype. `mask`: the instance-level term leaves "
        "them out. `self`: they count with a difference of zero, as in FedProto; only `mse` and `cosine` can do that.",
    )
    proto_source: str = one_of(
        "post-eval",
        "post-eval",
        "last-epoch",
        "all-epochs",
        doc="Where the prototypes that a client sends come from: a pass in eval mode after training, or running "
        "means in train mode over the last epoch or over all epochs.",
    )
    proto_weight: str = one_of(
        "class_samples",
        "class_samples",
        "uniform",
        "client_samples",
        doc="Weight of a client's prototype in the global one: its samples of the class, 1, or all its samples.",
    )
    frame: str = one_of(
        AUTO,
        AUTO,
        "shared",
        "procrustes",
        "gram",
        auto="shared",
        doc="In which coordinates prototypes of different clients meet. `shared`: as they are, as in the papers. "
        "`procrustes`: each client's are mapped onto common ones. `gram`: the server makes points from the "
        "clients' averaged relations between classes.",
    )
    anchors: str = one_of(
        "global",
        "global",
        "own",
        "private",
        doc="What the terms of `alignment` compare with. `global`: what the server sends. The other two are controls"
        " that use nothing of other clients. `own`: the client's own class means and their relations. `private`: "
        "random vectors, or relations in which all classes are equally far apart.",
    )
    stale: str = one_of(
        "keep",
        "keep",
        "drop",
        doc="What happens to the prototype of a class that too few clients sent in a round (`min-contributors`).",
    )


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Averaged relations between classes."""

    relation__shrink: float = number(
        AUTO,
        0,
        1,
        auto=0.0,
        doc="How far averaged relations between classes are pulled towards those of the regular simplex, in which all "
        "classes are equally far apart. With 0 in the shared frame, the relations are those of the prototypes that "
        "the server sends.",
    )
    relation__debias: bool = free(True, doc="Subtract what sampling noise adds to distances between class means.")


@dataclass(frozen=True, kw_only=True)
class Hyper:
    """Hyper-prototypes, the gradients that they are learned from, and the two losses of FedHPro.

    HPCL contrasts features with the anchors of all classes. HPAL pulls them towards the anchor of their own class.
    """

    hyper__size: int = number(5, 1, 64, doc="Hyper-prototypes per class.")
    hyper__init: str = one_of(
        AUTO,
        AUTO,
        "normal",
        "prototypes",
        auto="prototypes",
        doc="Where hyper-prototypes start: from noise, as in the paper, or about the prototypes. With `anchors` "
        "other than `global` it is decided by `anchors`.",
    )
    hyper__spread: float = number(
        0.3, 0, doc="Distance of hyper-prototypes from the prototypes at the start. 1 is the radius of the prototypes."
    )
    hyper__steps: int = number(30, 1, doc="Steps of gradient matching in a round.")
    hyper__learning_rate: float = number(
        AUTO,
        0,
        auto=0.002,
        doc="Step size of gradient matching. With 0 hyper-prototypes stay where they started and clients send no "
        "gradients.",
    )
    hyper__optimizer: str = one_of(AUTO, AUTO, "sgd", "adam", auto="adam", doc="Optimiser of gradient matching.")
    hyper__head: str = one_of(
        AUTO,
        AUTO,
        "shared",
        "server",
        "prototype",
        doc="The linear head that gradients are taken through. `shared`: the averaged classifier, which needs "
        "`share` = head or model and `frame` = shared. `server`: one that the server trains on prototypes. "
        "`prototype`: the nearest-prototype rule. `auto` is `shared` where that is possible, else `prototype`.",
    )
    hyper__distance: str = one_of(
        "cosine",
        "cosine",
        "coordinate_sign",
        doc="Distance between gradients: `cosine` as in the paper, `coordinate_sign` as in its published code.",
    )
    hyper__grad_weight: str = one_of(
        "uniform", "uniform", "class_samples", doc="Weight of a client's gradient of a class in their mean."
    )
    hyper__grad_point: str = one_of(
        "after-training",
        "after-training",
        "before-training",
        doc="When clients take gradients: after local training as in the paper, or before it as in the published code.",
    )
    hyper__grad_samples: int = number(
        0,
        0,
        doc="Most samples of a class that gradients are taken of, as in the published code. Values below "
        "`min-class-samples` count as that. 0 takes all.",
    )
    hyper__retrain: str = one_of(
        "none",
        "none",
        "creff",
        doc="`creff`: the server replaces the averaged classifier by one that it trains on features made from "
        "classifier gradients, as the published code does for long-tailed data.",
    )
    hyper__margin: str = one_of(
        AUTO,
        AUTO,
        "none",
        "literal",
        "present",
        "additive",
        auto="none",
        doc="Margin of HPCL. `literal`: the paper's formula, which divides by the same number on every client. "
        "`present`: the mean distance over the pairs of classes that a client holds. `additive`: as in the published "
        "code.",
    )
    hyper__temperature: float = number(0.05, 0, above=True, doc="Temperature of HPCL.")
    hyper__form: str = one_of(
        AUTO,
        AUTO,
        "paper",
        "paper_mean",
        "normalised",
        "normalised_mean",
        auto="normalised",
        doc="Form of HPAL, see `isoproto.losses.anchors.hpal`.",
    )
    hyper__pcl: float = number(AUTO, 0, auto=0.2, doc="Weight of HPCL.")
    hyper__pal: float = number(AUTO, 0, auto=0.2, doc="Weight of HPAL.")


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How many rounds there are, who takes part, and where a run begins."""

    rounds: int = number(15, 0, doc="Rounds of training.")
    fraction: float = number(1.0, 0, 1, above=True, doc="Share of the clients that train in a round.")
    over_sample: float = number(
        0.0,
        0,
        10,
        doc="Extra clients to invite, as a share of the cohort. The round closes once `fraction` of the clients have"
        " replied, and does not wait for the slowest. For real nodes only.",
    )
    join_late: float = number(
        0.0,
        0,
        0.99,
        doc="Share of the clients that do not train before round `join-round`. They are evaluated with the others, "
        "and figures show them apart.",
    )
    join_round: int = number(0, 0, doc="First round in which late clients may train; 0 is never.")
    seed: int = number(0, 0, doc="Seed of models, cohorts and batches. The partition has a seed of its own.")
    resume: str = free("", doc="Run folder of an interrupted run to go on with, or its name under `output-dir`.")
    scale: str = one_of(
        "paper",
        "paper",
        "small",
        doc="`small` shrinks a paper's settings so that two cores are enough: smaller models of the same kinds, at "
        "most five rounds of one epoch, some thousand samples, stand-ins for data sets that few have. The log and "
        "`summary.json` name each change.",
    )
    init_from: str = free(
        "", doc="Experiment id whose client models, under the same `state-dir`, are the starting point."
    )


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data set, and how it is dealt out to clients."""

    data: str = free(
        "digits4",
        doc="Data set: a name, or `npz:FILE`, `imagefolder:FOLDER`, `csv:FILE`, `jsonl:FILE`, "
        "`module:FILE.py:callable`.",
    )
    data_dir: str = free("", doc="Folder with data files; an absolute path.")
    classes: str = free(
        "",
        doc="Names of the federation's classes, separated by commas. Clients number their classes by them and may "
        "lack some. Empty: the classes of the data set.",
    )
    partition: str = free("domain", doc="Name in `PARTITIONERS`: how samples are dealt out to clients.")
    partition_seed: int = number(1, 0, doc="Seed of the partition and of each client's split into train and test part.")
    alpha: float = number(0.1, 0, above=True, doc="Concentration of the Dirichlet partitions.")
    classes_per_client: int = number(2, 1, doc="Classes that a client holds under `shards`.")
    min_samples: int = number(2, 0, doc="Samples that every client gets at least; 0 allows clients without data.")
    split: str = one_of(
        "merged",
        "merged",
        "official",
        "global",
        "stratified",
        doc="`merged`: official train and test part are pooled, and each client splits its share. `official`: "
        "clients train on their share of the train part and are tested on their share of the test part. "
        "`global`: each is tested on the whole test part. `stratified`: as `official`, with a test part drawn by"
        " class and domain.",
    )
    test_fraction: float = number(
        0.25,
        0,
        0.9,
        above=True,
        doc="Share of a client's data that is its test part under `merged`, of all data under `stratified`.",
    )
    imbalance: float = number(
        1.0, 1, doc="Long tail of the training part: how many times rarer the last class is than the first. 1: none."
    )
    max_samples: int = number(
        0, 0, doc="Most samples that are dealt out, drawn by class, domain and official part in proportion. 0: all."
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """The clients' models, and how each trains its own."""

    models: str = free(
        "demo4",
        doc="A family's name, or model names separated by commas. They are dealt out by partition id. `none` among "
        "them stands for a client without a network, which takes part by the common frame alone (`common.map`).",
    )
    feature_dim: int = number(128, 1, 65536, doc="Feature width that all models have in common.")
    heads: str = free(
        "linear",
        doc="Name in `HEADS`. Every client has a `linear` head, or heads are dealt out like the models: one to four "
        "layers (`mixed`), HtFLlib's `htc4`, or those that belong to the models `htm4` and `htm10`.",
    )
    init: str = one_of(
        "per-client",
        "per-client",
        "per-architecture",
        doc="Whether clients of one architecture start from different or from equal weights.",
    )
    epochs: int = number(1, 1, doc="Local epochs in a round.")
    batch_size: int = number(32, 2, doc="Samples of a mini-batch. BatchNorm cannot train on one sample.")
    batches: str = one_of(
        "shuffled",
        "shuffled",
        "fixed",
        doc="`shuffled`: a new order in every epoch. `fixed`: the order of the data, and whole batches only, as in "
        "FedSAF's authors' code; samples after the last whole batch are never trained on, unless there is no "
        "other batch.",
    )
    augment: str = one_of(
        "none",
        "none",
        "flip",
        "crop_flip",
        "crop_flip_batch",
        "autoaugment",
        "warp",
        "warp_flip",
        doc="Random changes of training pictures, drawn anew for each sample. `crop_flip` also shifts by up to four "
        "pixels, `crop_flip_batch` shifts a whole batch alike as in FedHPro's published code, `autoaugment` is "
        "the policy for CIFAR-10. Tests and `post-eval` prototypes use unchanged pictures.",
    )
    optimizer: str = one_of("sgd", "sgd", "adam", "adamw", doc="Local optimiser. It is created anew every round.")
    learning_rate: float = number(0.02, 0, doc="Step size of the local optimiser. 0 leaves the models as they are.")
    momentum: float = number(0.9, 0, 0.999, doc="Momentum of SGD.")
    weight_decay: float = number(0.0, 0, doc="L2 penalty of the local optimiser.")
    device: str = free(AUTO, doc="Where a client computes. `auto` takes a GPU where there is one.")
    amp: str = one_of(
        "off",
        "off",
        "bf16",
        doc="Precision of a model's forward and backward pass in local training. `bf16` is PyTorch's autocast to "
        "bfloat16; weights, losses, statistics and evaluation stay in float32.",
    )
    cohort: str = one_of(
        "on",
        "on",
        "off",
        doc="Whether small models of one architecture train as one program where that is faster, or one after the "
        "other. Nothing but rounding differs.",
    )


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What the server waits for, and which replies it takes."""

    evaluate_every: int = number(
        0, 0, doc="Rounds between evaluations of all clients. 0: only before the first and after the last round."
    )
    clients: int = number(
        0, 0, doc="Clients of a simulation with fewer nodes, each of which stands for several. 0: one per node."
    )
    min_nodes: int = number(
        0,
        0,
        doc="How many nodes (in a simulation: clients) the server waits for before round 1. Only those that can take "
        "part count. 0: all clients of a simulation, else 2.",
    )
    wait_timeout: float = number(300.0, 0, above=True, doc="Seconds to wait for nodes.")
    round_timeout: float = number(3600.0, 0, above=True, doc="Seconds until a round closes with the replies it has.")
    min_replies: int = number(1, 1, doc="Fewest good replies. With fewer, a round counts as empty and changes nothing.")
    max_empty_rounds: int = number(3, 1, doc="Empty rounds in a row after which the run is given up.")
    min_class_samples: int = number(1, 1, doc="Fewest samples of a class for which a client sends its class mean.")
    min_contributors: int = number(
        1,
        1,
        doc="Fewest clients that must send a class, so that it gets a new prototype, or a row in the common frame.",
    )
    max_norm: float = number(
        1e6, 0, above=True, doc="Largest Euclidean norm of a prototype row that the server accepts."
    )


@dataclass(frozen=True, kw_only=True)
class Wire:
    """How numbers are written in messages."""

    wire__dtype: str = one_of(
        "float32",
        "float32",
        "float16",
        "int8",
        doc="How rows of prototypes, gradients, relations and anchors travel, both ways: as they are, or rounded "
        "with one scale per row. Weights are never rounded.",
    )


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The folders that a run is written to."""

    output_dir: str = free(
        "", doc="Folder of run folders; an absolute path. Empty: `$ISOPROTO_HOME/runs`, else the user's data folder."
    )
    state_dir: str = free(
        "",
        doc="Folder of the clients' own models; an absolute path. Empty: `$ISOPROTO_HOME/state`, else the user's data "
        "folder.",
    )
