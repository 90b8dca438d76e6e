"""Write one preset file per column of the tables in the FedSAF and FedHPro papers.

Each paper has a base: the settings that its columns share. Each column is one row below: its file name, its tables,
one line about it, and the settings that differ from the base. The files stay in the repository because ``flwr run -c``
takes exactly one file. Change a row here, never a file; a test compares them byte for byte.

    make presets                 # the same as: python conf/tables.py
"""

import textwrap
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
Settings = dict[str, str | int | float]

# The order of settings in a file. Writing a setting that is not listed fails, so a misspelt name is found at once.
ORDER = (
    "strategy",
    "share",
    "clients",
    "data",
    "partition",
    "alpha",
    "imbalance",
    "models",
    "heads",
    "augment",
    "fraction",
    "split",
    "test-fraction",
    "feature-dim",
    "init",
    "proto-source",
    "proto-weight",
    "rounds",
    "epochs",
    "batch-size",
    "optimizer",
    "learning-rate",
    "momentum",
    "weight-decay",
    "evaluate-every",
)


@dataclass(frozen=True)
class Column:
    """One column of a paper's tables, which becomes one preset file.

    Attributes:
        name: File name without ``.toml``.
        tables: Tables of the paper that contain this column, for example ``"Tables II and VII"``.
        about: Data, split, models and number of clients, in words.
        settings: Settings that are added to the base of the paper, or replace it.
        notes: What the paper leaves open and what this preset does instead. Each note becomes a paragraph.
    """

    name: str
    tables: str
    about: str
    settings: Settings
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paper:
    """A paper with its common settings and its columns.

    Attributes:
        folder: Folder below ``conf/``, which is also the name of the paper's strategy.
        title: Name and arXiv number.
        base: Settings of every column.
        advice: Comment lines that every file repeats.
        options: Settings of the command that ends the comment of each file.
        columns: The rows of the table.
    """

    folder: str
    title: str
    base: Settings
    advice: tuple[str, ...]
    options: str
    columns: tuple[Column, ...]


TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "Tiny-ImageNet", "ham10000": "HAM10000"}


def dirichlet(alpha: float) -> Settings:
    """Return the settings of label skew that is drawn from a Dirichlet distribution."""
    return {"partition": "dirichlet", "alpha": alpha}


FEDSAF_BASE: Settings = {
    "strategy": "fedsaf",
    "clients": 20,
    "models": "htfe9",
    "feature-dim": 512,
    "init": "per-architecture",
    "proto-source": "last-epoch",
    "proto-weight": "uniform",
    "rounds": 300,
    "epochs": 5,
    "batch-size": 100,
    "optimizer": "sgd",
    "learning-rate": 0.01,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "evaluate-every": 1,
}
FEDSAF_ADVICE = (
    "The paper states neither the optimiser nor lambda and gamma. The optimiser here is that of its authors' code.",
    "Fig. 5 of the paper supports these weights, lambda / gamma:",
    "  gcsa    5 / 30",
    "  rcsa    5 / 30",
    "  mse     0.01 / 0.01",
    "  cosine  0.01 / 1",
    "A run that sets no lambda and gamma takes the weights of docs/adr/0003-weights.md.",
    "For strategy='fedproto' add proto-source='all-epochs' stale='drop', as in the reference code of FedProto.",
)
VIT_HEAD = "The head of a ViT has a hidden layer of 768 units. The heads of the other models are linear."
AUTHORS_GROUP = "The paper only names this group of models. Its members are those of the authors' code."
EPOCHS_FIGURE = "Fig. 10 of the paper repeats this column with epochs = 1, 5, 10 and 20."
PACS_ORDER = "Client 0 has art, client 1 cartoon, client 2 photo and client 3 sketch, as in the paper."
AG_NEWS_ALPHA = (
    "The paper does not state alpha. With alpha below about 1, its accuracies would be lower than those of always "
    "predicting a client's largest class."
)
AMAZON_MODELS = (
    "The models are perceptrons on the counts of the 5,000 most frequent words, as in the authors' code. The four "
    "clients have, in turn, no hidden layer, one of 200 units, one of 500 units, and two of 1000 and 500 units. The "
    'paper names HtFE-txt for all of its texts instead; that is models = "htfe6txt".'
)
AMAZON_WORDS = (
    "A review is cut after 2,000 words; four reviews of FDU-MTL are longer. The paper does not state whether words are "
    "weighted."
)
SHAKESPEARE_CODE = "The number of clients and the test part are those of the authors' code."
GROUP_TITLES = {"htfe2": "HtFE2", "htfe4": "HtFE4", "htfe9": "HtFE9", "htm4": "HtM4", "htm10": "HtM10"}
GROUP_NOTES = {"htm4": (VIT_HEAD, AUTHORS_GROUP), "htm10": (VIT_HEAD,)}


def fedsaf_skew(data: str, alpha: float, group: str, tables: str, *notes: str) -> Column:
    """Return a FedSAF column of 20 clients with label skew."""
    settings: Settings = {"data": data, **dirichlet(alpha), "models": group}
    if group in GROUP_NOTES:  # groups with transformers, which come with heads of the same name
        settings["heads"] = group
    about = f"{TITLES[data]}, Dirichlet {alpha}, {GROUP_TITLES[group]}, 20 clients"
    return Column(f"{data}_dir{alpha}_{group}", tables, about, settings, (*GROUP_NOTES.get(group, ()), *notes))


def fedsaf_many(clients: int) -> Column:
    """Return a FedSAF column of Table VI, in which a fifth of the clients trains in each round."""
    settings: Settings = {"clients": clients, "data": "cifar100", **dirichlet(0.1)}
    settings |= {"fraction": 0.2, "epochs": 1, "batch-size": 10}
    about = f"CIFAR-100, Dirichlet 0.1, HtFE9, {clients} clients, a fifth of them in each round"
    return Column(f"cifar100_dir0.1_n{clients}", "Table VI", about, settings)


FEDSAF = Paper(
    folder="fedsaf",
    title="FedSAF (arXiv:2605.05959)",
    base=FEDSAF_BASE,
    advice=FEDSAF_ADVICE,
    options="strategy='fedsaf' alignment='gcsa' lambda=5 gamma=30",
    columns=(
        fedsaf_skew("cifar10", 0.1, "htfe2", "Tables II and VII"),
        fedsaf_skew("cifar10", 0.1, "htfe4", "Tables II and VII"),
        fedsaf_skew("cifar10", 0.1, "htfe9", "Tables I, III and VIII"),
        fedsaf_skew("cifar10", 0.1, "htm4", "Table VII"),
        fedsaf_skew("cifar10", 0.1, "htm10", "Table VII"),
        fedsaf_skew("cifar10", 0.5, "htfe9", "Tables I and III"),
        fedsaf_skew("cifar10", 1.0, "htfe9", "Tables I and III"),
        fedsaf_skew("cifar100", 0.1, "htfe2", "Tables II and VII"),
        fedsaf_skew("cifar100", 0.1, "htfe4", "Tables II, VII and IX"),
        fedsaf_skew("cifar100", 0.1, "htfe9", "Tables I, III and VIII"),
        fedsaf_skew("cifar100", 0.1, "htm4", "Table VII"),
        fedsaf_skew("cifar100", 0.1, "htm10", "Table VII"),
        fedsaf_skew("cifar100", 0.5, "htfe9", "Tables I and III", EPOCHS_FIGURE),
        fedsaf_skew("cifar100", 1.0, "htfe9", "Tables I and III"),
        fedsaf_skew("tiny_imagenet", 0.1, "htfe2", "Table II"),
        fedsaf_skew("tiny_imagenet", 0.1, "htfe4", "Table II"),
        fedsaf_skew("tiny_imagenet", 0.1, "htfe9", "Table I"),
        fedsaf_skew("tiny_imagenet", 0.5, "htfe9", "Table I"),
        fedsaf_skew("tiny_imagenet", 1.0, "htfe9", "Table I"),
        fedsaf_many(50),
        fedsaf_many(100),
        fedsaf_many(200),
        Column(
            "domainnet",
            "Table IV",
            "DomainNet, one domain per client, HtFE9, 6 clients",
            {"clients": 6, "data": "domainnet", "partition": "one_domain"},
        ),
        Column(
            "pacs",
            "Table IV",
            "PACS, one domain per client, HtFE9, 4 clients",
            {"clients": 4, "data": "pacs", "partition": "one_domain"},
            (PACS_ORDER,),
        ),
        Column(
            "ag_news",
            "Table V",
            "AG News, Dirichlet, HtFE6-txt, 20 clients",
            {"data": "ag_news", **dirichlet(1.0), "models": "htfe6txt"},
            (AG_NEWS_ALPHA,),
        ),
        Column(
            "amazon",
            "Table V",
            "Amazon reviews, one kind of product per client, 4 clients",
            {
                "clients": 4,
                "data": "amazon:books,dvd,electronics,kitchen_housewares@2000",
                "partition": "one_domain",
                "models": "mlp5txt",
            },
            (AMAZON_MODELS, AMAZON_WORDS),
        ),
        Column(
            "shakespeare",
            "Table V",
            "Shakespeare, one role per client, HtFE6-txt, 118 clients",
            {"clients": 118, "data": "shakespeare", "partition": "user", "models": "htfe6txt", "test-fraction": 0.1},
            (SHAKESPEARE_CODE,),
        ),
    ),
)

FEDHPRO_BASE: Settings = {
    "strategy": "fedhpro",
    "share": "model",
    "clients": 10,
    "split": "official",
    "feature-dim": 512,
    "rounds": 100,
    "epochs": 10,
    "batch-size": 64,
    "optimizer": "sgd",
    "learning-rate": 0.01,
    "momentum": 0.9,
    "weight-decay": 0.00001,
    "evaluate-every": 1,
}
NID2_HALF = "The paper does not state which share of a class its client has. Here it is half."
TABLE_A9 = (
    "Only the classifier is averaged. The paper does not state which accuracy the table holds. Here it is that of "
    "every client on a quarter of its own samples, as in the papers from which the group of models comes. For the "
    "other reading, every client's model on the whole official test part, set split='global'."
)
HAM_TEST = (
    "The paper brings pictures to 224x224, and so does this preset; the ResNet-10 is the one for large pictures. The "
    "paper trains on 8,912 of the 10,015 pictures and tests on 1,103, but does not state which. Here the test pictures "
    "are drawn by class, so pictures of one lesion may be in both parts. split='official' separates them by lesion."
)
OFFICE_OPEN = (
    "The paper states neither the size of the pictures (here 64x64), nor the test part (here three tenths, drawn by "
    "domain and class, as there is no official one), nor which ResNet-10 it uses (here the one for large pictures). "
    "The shares are those of amazon, caltech, dslr and webcam, in this order, of the pictures that are not for tests."
)
SUN_OPEN = (
    "The paper states neither the model nor the size of the pictures (here ResNet-10 and 64x64). It mentions no "
    "pretraining either, without which its accuracies are out of reach. The available copies have no official test "
    "part."
)
# Data, model and changes of pictures that all of a data set's columns share.
PICTURES: dict[str, Settings] = {
    "cifar10": {"data": "cifar10", "models": "resnet10_cifar", "augment": "crop_flip"},
    "cifar100": {"data": "cifar100", "models": "resnet10_cifar", "augment": "crop_flip"},
    "tiny_imagenet": {"data": "tiny_imagenet", "models": "mobilenet_v2", "augment": "autoaugment"},
    "ham10000": {
        "data": "ham10000:@224",
        "models": "resnet10",
        "augment": "none",
        "split": "stratified",
        "test-fraction": 0.11013,
    },
    "digits": {
        "clients": 20,
        "data": "digits",
        "partition": "domain:3@0.01,7@0.01,6@0.01,4@0.01",
        "models": "resnet10_cifar",
    },
    "office_caltech": {
        "data": "office_caltech",
        "partition": "domain:2@0.2,3@0.2,4@0.2,1@0.2",
        "models": "resnet10",
        "split": "stratified",
        "test-fraction": 0.3,
    },
}
DATA_NOTES = {"ham10000": (HAM_TEST,), "office_caltech": (OFFICE_OPEN,)}
MODEL_TITLES = {"resnet10_cifar": "ResNet-10", "resnet10": "ResNet-10", "mobilenet_v2": "MobileNetV2"}


def _model(data: str) -> str:
    return MODEL_TITLES[str(PICTURES[data]["models"])]


def nid1(data: str, alpha: float, tables: str = "Tables 1 and A1") -> Column:
    """Return a FedHPro column with label skew drawn from a Dirichlet distribution."""
    about = f"{TITLES[data]}, NID1 {alpha}, {_model(data)}, 10 clients"
    return Column(f"{data}_nid1_{alpha}", tables, about, PICTURES[data] | dirichlet(alpha), DATA_NOTES.get(data, ()))


def nid2(data: str) -> Column:
    """Return a FedHPro column in which six clients have one class each and the seventh has all classes."""
    about = f"{TITLES[data]}, NID2, {_model(data)}: six clients of one class, one of all"
    settings = PICTURES[data] | {"clients": 7, "partition": "nid2:0.5"}
    return Column(f"{data}_nid2", "Tables 1 and A1", about, settings, (*DATA_NOTES.get(data, ()), NID2_HALF))


def long_tail(data: str, imbalance: int, tables: str = "Tables 1 and A2") -> Column:
    """Return a FedHPro column whose largest class has ``imbalance`` times the samples of its smallest."""
    about = f"{TITLES[data]}-LT, imbalance {imbalance}, NID1 0.5, {_model(data)}, 10 clients"
    settings = PICTURES[data] | dirichlet(0.5) | {"imbalance": float(imbalance)}
    return Column(f"{data}_lt{imbalance}", tables, about, settings)


def table_a5(name: str, about: str, **settings: str | int | float) -> Column:
    """Return a column of FedHPro's Table A5, which varies the number of clients and of local epochs."""
    about = f"Tiny-ImageNet, NID1 0.5, MobileNetV2, {about}"
    return Column(f"tiny_imagenet_{name}", "Table A5", about, PICTURES["tiny_imagenet"] | dirichlet(0.5) | settings)


def width(data: str, title: str, features: int) -> Column:
    """Return a column of FedHPro's Table A6, which varies the number of features."""
    about = f"{title} with {features} features; the preset with 512 is {data}.toml"
    settings = PICTURES[data] | {"feature-dim": features}
    return Column(f"{data}_d{features}", "Table A6", about, settings, DATA_NOTES.get(data, ()))


def several_architectures(size: int, models: str) -> Column:
    """Return a column of FedHPro's Table A9, in which clients have different architectures."""
    settings = PICTURES["cifar100"] | dirichlet(0.5) | {"models": models, "share": "head", "split": "merged"}
    return Column(
        f"cifar100_htfe{size}", "Table A9", f"CIFAR-100, NID1 0.5, HtFE{size}, 10 clients", settings, (TABLE_A9,)
    )


def ag_news(clients: int, skewed: int, partition: str) -> Column:
    """Return a column of FedHPro's Table A10 on AG News."""
    settings: Settings = {"clients": clients, "data": "ag_news", "partition": partition, "models": "textcnn"}
    settings |= {"feature-dim": 32, "optimizer": "adam", "momentum": 0.0}
    about = f"AG News, TextCNN, {clients} clients, {skewed} of them with two classes"
    return Column(f"ag_news_k{clients}", "Table A10", about, settings)


def sun397(alpha: float) -> Column:
    """Return a column of FedHPro's Table A10 on SUN397."""
    settings: Settings = {"clients": 100, "data": "sun397", **dirichlet(alpha), "models": "resnet10"}
    settings |= {"fraction": 0.2, "split": "merged"}
    about = f"SUN397, NID1 {alpha}, 100 clients, a fifth of them in each round"
    return Column(f"sun397_nid1_{alpha}", "Table A10", about, settings, (SUN_OPEN,))


FEDHPRO = Paper(
    folder="fedhpro",
    title="FedHPro (arXiv:2605.13475)",
    base=FEDHPRO_BASE,
    advice=(),
    options="strategy='fedhpro' hyper.form='paper'",
    columns=(
        nid1("cifar10", 0.2),
        nid1("cifar10", 0.5),
        nid2("cifar10"),
        nid1("cifar100", 0.2),
        nid1("cifar100", 0.5),
        nid2("cifar100"),
        nid1("tiny_imagenet", 0.2),
        nid1("tiny_imagenet", 0.5, "Tables 1 and A1, and A5 with K = 10 and E = 10"),
        nid2("tiny_imagenet"),
        nid1("ham10000", 0.2),
        nid1("ham10000", 0.5),
        nid2("ham10000"),
        long_tail("cifar10", 10),
        long_tail("cifar10", 50, "Tables 1, 6 and A2"),
        long_tail("cifar10", 100),
        long_tail("cifar100", 10),
        long_tail("cifar100", 50),
        long_tail("cifar100", 100),
        long_tail("tiny_imagenet", 10),
        long_tail("tiny_imagenet", 50),
        long_tail("tiny_imagenet", 100),
        Column(
            "digits",
            "Tables 2 to 6, A3, A4, A7 and A8",
            "Digits (MNIST, USPS, SVHN, SYN), one domain per client, ResNet-10, 20 clients",
            PICTURES["digits"],
        ),
        Column(
            "office_caltech",
            "Tables 2, 5, 6, A3, A4, A7 and A8",
            "Office-Caltech, one domain per client, ResNet-10, 10 clients",
            PICTURES["office_caltech"],
            (OFFICE_OPEN,),
        ),
        table_a5("k20", "20 clients", clients=20),
        table_a5("k30", "30 clients", clients=30),
        table_a5("k50", "50 clients, a fifth of them in each round", clients=50, fraction=0.2),
        table_a5("k100", "100 clients, a fifth of them in each round", clients=100, fraction=0.2),
        table_a5("e1", "10 clients, 1 local epoch", epochs=1),
        table_a5("e5", "10 clients, 5 local epochs", epochs=5),
        table_a5("e15", "10 clients, 15 local epochs", epochs=15),
        table_a5("e20", "10 clients, 20 local epochs", epochs=20),
        width("digits", "Digits", 64),
        width("digits", "Digits", 256),
        width("digits", "Digits", 1024),
        width("office_caltech", "Office-Caltech", 64),
        width("office_caltech", "Office-Caltech", 256),
        width("office_caltech", "Office-Caltech", 1024),
        several_architectures(2, "htfe2"),
        several_architectures(3, "htfe3"),
        several_architectures(5, "htfe5_fedhpro"),
        several_architectures(8, "htfe8_fedhpro"),
        ag_news(10, 5, "pairs"),
        ag_news(50, 40, "pairs:10"),
        sun397(0.2),
        sun397(0.5),
    ),
)


def files() -> dict[str, str]:
    """Return the text of every generated preset by its path below ``conf/``."""
    return {f"{paper.folder}/{c.name}.toml": text(paper, c) for paper in (FEDSAF, FEDHPRO) for c in paper.columns}


def text(paper: Paper, column: Column) -> str:
    """Return a preset: a comment that says where it comes from, then its settings."""
    command = f'isoproto run -c conf/{paper.folder}/{column.name}.toml -c "{paper.options}"'
    first = f"{paper.title}, {column.tables}: {column.about}."
    comment = [line for paragraph in (first, *column.notes) for line in textwrap.wrap(paragraph, 118)]
    settings = paper.base | column.settings
    if unknown := settings.keys() - set(ORDER):
        raise ValueError(f"conf/{paper.folder}/{column.name}.toml: unknown settings {sorted(unknown)}")
    lines = [f"# {line}" for line in (*comment, *paper.advice, command)]
    return "\n".join([*lines, *(f"{key} = {literal(settings[key])}" for key in ORDER if key in settings)]) + "\n"


def literal(value: str | int | float) -> str:
    """Return a value as TOML, decimals without an exponent.

    Examples:
        >>> literal("sgd"), literal(20), literal(0.00001), literal(1.0)
        ('"sgd"', '20', '0.00001', '1.0')
    """
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int):
        return str(value)
    digits = f"{value:.12f}".rstrip("0")
    return f"{digits}0" if digits.endswith(".") else digits


def main() -> None:
    """Write all files."""
    for name, content in files().items():
        (FOLDER / name).write_text(content, "utf-8")


if __name__ == "__main__":
    main()
