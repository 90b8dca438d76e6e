"""A table of facts about data sets, which ``isoproto data`` and error texts use before a set is read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file of a data set that people keep in ``data-dir``.

    Attributes:
        name: Name of the file.
        samples: Number of samples in the file. If a file of this name has another number, it is somebody's own and the
            caveats do not concern it. 0: any number.
        caveats: How the file differs from the published set, a sentence each.
    """

    name: str
    samples: int = 0
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Torchvision:
    """Where torchvision has a set.

    Attributes:
        cls: Class in ``torchvision.datasets``.
        files: Patterns of its files under ``root``; all must be there.
        part: Argument of the class that chooses the training or test part: ``train`` (true or false), ``split``
            (``train`` or ``test``), or empty if the set has no parts.
    """

    cls: str
    files: tuple[str, ...]
    part: str = "train"


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """Where Hugging Face has a set, by the id that flwr-datasets uses too.

    Attributes:
        path: Id of the set.
        config: One of the set's configurations, or empty.
        picture: Column of pictures.
        label: Column of classes: numbers with names, or plain names.
        domain: Column of domains: numbers with names, or plain names; empty if the set has no domains.
        train: Splits that make the training part.
        test: Splits that make the test part.
        text: Columns of words, for a set of texts; they are joined.
    """

    path: str
    config: str = ""
    picture: str = "image"
    label: str = "label"
    domain: str = ""
    train: tuple[str, ...] = ("train",)
    test: tuple[str, ...] = ("test",)
    text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """What a data set is, and how to get it.

    Attributes:
        what: One line that says what the set is.
        licence: The terms under which the set may be used.
        how_to_get: What a user can do who does not have the set yet.
        files: Files in ``data-dir`` that can hold the set, in the order of preference.
        folders: Folders in ``data-dir`` that can hold the set; they are looked for after the files.
        parts: Names of the sets that this set is made of.
        caveats: What to know about the set, wherever a copy comes from.
        side: Rows and columns to which pictures of different sizes are resized; 0: all have one size.
        torchvision: Where torchvision has the set, if it does.
        hugging_face: Where Hugging Face has the set, if it does.
        hub: Whether the text behind the colon of its name is the id of a set at Hugging Face.
    """

    what: str
    licence: str
    how_to_get: str
    files: tuple[KnownFile, ...] = ()
    folders: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    side: int = 0
    torchvision: Torchvision | None = None
    hugging_face: HuggingFace | None = None
    hub: bool = False


_DOWNLOAD = "`isoproto data {name} --download` fetches it"

INFOS: dict[str, DatasetInfo] = {
    "digits4": DatasetInfo(
        what="digits of four domains (scan, pen, print, scene), 4,800 + 1,600, 32x32 grey",
        licence="CC BY 4.0 (UCI optdigits and pendigits, changed) and CC0",
        how_to_get="comes with the package",
    ),
    "npz": DatasetInfo(
        what="npz:FILE, your own pictures as one file of arrays or of encoded pictures",
        licence="your own",
        how_to_get="write it with numpy.savez as docs/data.md says",
    ),
    "module": DatasetInfo(
        what="module:NAME:FUNCTION or module:FILE.py:FUNCTION, what your own function returns",
        licence="your own",
        how_to_get="write a function as docs/edge.md says",
    ),
    "hf": DatasetInfo(
        what="hf:ID, any set of pictures or texts of Hugging Face, with names of columns where they are not clear",
        licence="see its card at Hugging Face",
        how_to_get="`isoproto data hf:ID --download` fetches it",
        hub=True,
    ),
    "imagefolder": DatasetInfo(
        what="imagefolder:FOLDER, your own pictures as [train|test/][domain/]class/name.png",
        licence="your own",
        how_to_get="lay picture files out as docs/data.md says",
    ),
    "cifar10": DatasetInfo(
        what="CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 objects of 10 classes, 32x32 colour",
        licence="none stated; the author asks for a citation; used for research",
        how_to_get=_DOWNLOAD,
        files=(
            KnownFile(
                "cifar10.npz",
                59_000,
                (
                    "900 of the 1,000 test pictures of each class",
                    "JPEG re-compressed (quality 75): accuracies may be a little lower than on the original",
                ),
            ),
        ),
        torchvision=Torchvision("CIFAR10", ("cifar-10-batches-py/*",)),
        hugging_face=HuggingFace("uoft-cs/cifar10", picture="img"),
    ),
    "cifar100": DatasetInfo(
        what="CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 objects of 100 classes, 32x32 colour",
        licence="none stated; the author asks for a citation; used for research",
        how_to_get=_DOWNLOAD + "; a stand-in with 100 classes is `tiny_imagenet` from a file tiny_imagenet100.npz",
        files=(KnownFile("cifar100.npz"),),
        torchvision=Torchvision("CIFAR100", ("cifar-100-python/*",)),
        hugging_face=HuggingFace("uoft-cs/cifar100", picture="img", label="fine_label"),
    ),
    "tiny_imagenet": DatasetInfo(
        what="Tiny-ImageNet (Stanford CS231n, from ILSVRC): 100,000 + 10,000 objects of 200 classes, 64x64 colour",
        licence="ImageNet's terms: non-commercial research and education",
        how_to_get=_DOWNLOAD + "; or unpack the original tiny-imagenet-200.zip (from CS231n's page) in `data-dir`",
        files=(
            KnownFile("tiny_imagenet.npz"),
            KnownFile(
                "tiny_imagenet100.npz",
                25_000,
                ("100 of 200 classes, 200 of 500 training pictures a class: not comparable with results on all of it",),
            ),
        ),
        folders=("tiny_imagenet", "tiny-imagenet-200"),
        side=64,
        hugging_face=HuggingFace("zh-plus/tiny-imagenet", test=("valid",)),
    ),
    "pacs": DatasetInfo(
        what="PACS (Li et al., ICCV 2017): 9,991 objects of 7 classes in 4 domains (photo, art, ...), 64x64",
        licence="none stated; academic use, the authors ask for a citation",
        how_to_get=_DOWNLOAD + "; or unpack the authors' folders as `data-dir`/pacs/DOMAIN/CLASS/",
        files=(
            KnownFile("pacs.npz"),
            KnownFile(
                "pacs64.npz",
                9_991,
                ("64x64 instead of 227x227, and a split of its own: not comparable with published results",),
            ),
        ),
        folders=("pacs",),
        side=64,
        hugging_face=HuggingFace("flwrlabs/pacs", domain="domain", test=()),
    ),
    "domainnet": DatasetInfo(
        what="DomainNet (Peng et al., ICCV 2019): 586,575 objects of 345 classes in 6 domains; 64x64 by default",
        licence="the authors' fair-use notice: non-commercial research and education",
        how_to_get=_DOWNLOAD
        + "; or unpack the authors' six archives and their lists as `data-dir`/domainnet/, so that "
        "there are clipart/, clipart_train.txt, clipart_test.txt and so on",
        files=(KnownFile("domainnet.npz"),),
        folders=("domainnet",),
        side=64,
        hugging_face=HuggingFace("wltjr1007/DomainNet", label="category", domain="domain"),
    ),
    "office_caltech": DatasetInfo(
        what="Office-Caltech-10 (Gong et al., CVPR 2012): 2,533 objects of 10 classes in 4 domains, 64x64",
        licence="none stated; research use, the authors ask for a citation",
        how_to_get="unpack the folders of Office-Caltech-10 as `data-dir`/office_caltech/DOMAIN/CLASS/",
        files=(
            KnownFile("office_caltech.npz"),
            KnownFile(
                "office_caltech10_64.npz",
                2_533,
                (
                    "squashed to 64x64, and a split of its own: not comparable with published results",
                    "dslr and webcam have 48 and 88 test pictures, of the same objects: report means over seeds",
                ),
            ),
        ),
        folders=("office_caltech",),
        side=64,
    ),
    "digits": DatasetInfo(
        what="digits of four domains (MNIST, USPS, SVHN, SYN), brought to 32x32 colour",
        licence="those of its parts: see mnist, usps, svhn and syn",
        how_to_get="get mnist, usps, svhn and syn, as `isoproto data` says for each; digits_mnistm_like.npz may stand "
        "in for SVHN, and digits_syn_like.npz for SYN",
        parts=("mnist", "usps", "svhn", "syn"),
    ),
    "syn": DatasetInfo(
        what="SYN, Synthetic Digits (Ganin and Lempitsky 2015): rendered digits, brought to 32x32 colour",
        licence="none stated; research use",
        how_to_get="it is in the Digit-Five archives; put it into `data-dir` as syn.npz or as syn/train/CLASS/ and "
        "syn/test/CLASS/",
        files=(KnownFile("syn.npz"),),
        folders=("syn",),
        side=32,
    ),
    "mnist": DatasetInfo(
        what="MNIST (LeCun, Cortes, Burges): 60,000 + 10,000 handwritten digits, 28x28 grey",
        licence="CC BY-SA 3.0, as usually stated",
        how_to_get=_DOWNLOAD,
        files=(
            KnownFile("mnist.npz"),
            KnownFile(
                "digits_mnist.npz",
                70_000,
                ("a split of its own: writers are on both sides, accuracies come out slightly higher than usual",),
            ),
        ),
        torchvision=Torchvision("MNIST", ("MNIST/raw/*-ubyte",)),
        hugging_face=HuggingFace("ylecun/mnist"),
    ),
    "fashionmnist": DatasetInfo(
        what="Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 pieces of clothing of 10 kinds, 28x28 grey",
        licence="MIT",
        how_to_get=_DOWNLOAD,
        files=(KnownFile("fashionmnist.npz"),),
        torchvision=Torchvision("FashionMNIST", ("FashionMNIST/raw/*-ubyte",)),
        hugging_face=HuggingFace("zalando-datasets/fashion_mnist"),
    ),
    "femnist": DatasetInfo(
        what="FEMNIST (LEAF, Caldas et al. 2018): some 814,000 handwritten digits and letters of 62 classes, 28x28; "
        "a domain a writer, for partition = 'user'",
        licence="BSD-2-Clause (LEAF); made of NIST Special Database 19",
        how_to_get=_DOWNLOAD + ", as hf:flwrlabs/femnist,label=character,domain=writer_id would",
        files=(KnownFile("femnist.npz"),),
        hugging_face=HuggingFace("flwrlabs/femnist", label="character", domain="writer_id", test=()),
    ),
    "usps": DatasetInfo(
        what="USPS (Le Cun et al. 1990): 7,291 + 2,007 handwritten digits, 16x16 grey",
        licence="none stated; made available by AT&T research labs",
        how_to_get=_DOWNLOAD,
        files=(KnownFile("usps.npz"), KnownFile("digits_usps.npz")),
        torchvision=Torchvision("USPS", ("usps.bz2", "usps.t.bz2")),
        hugging_face=HuggingFace("flwrlabs/usps"),
    ),
    "svhn": DatasetInfo(
        what="SVHN, cropped (Netzer et al. 2011): 73,257 + 26,032 house-number digits, 32x32 colour",
        licence="non-commercial use",
        how_to_get=_DOWNLOAD + " (needs scipy to be read)",
        files=(KnownFile("svhn.npz"),),
        torchvision=Torchvision("SVHN", ("train_32x32.mat", "test_32x32.mat"), part="split"),
        hugging_face=HuggingFace("ufldl-stanford/svhn", config="cropped_digits"),
    ),
    "ham10000": DatasetInfo(
        what="HAM10000 (Tschandl et al. 2018): 10,015 dermatoscopic pictures of 7 kinds of lesion; 64x64 by default",
        licence="CC BY-NC 4.0",
        how_to_get=_DOWNLOAD + "; or unpack the pictures of Harvard Dataverse doi:10.7910/DVN/DBW86T and "
        "HAM10000_metadata.csv in `data-dir`/ham10000/",
        files=(
            KnownFile(
                "ham10000.npz",
                13_354,
                ("13,354 pictures, as in marmal88/skin_cancer of Hugging Face, of 10,015: some occur more than once",),
            ),
            KnownFile(
                "ham10000_8x8_gray.npz",
                10_015,
                (
                    "8x8 grey instead of 600x450 colour: useless for comparing accuracies",
                    "always answering the largest class is right in 67 % of all cases: report balanced accuracy",
                ),
            ),
        ),
        folders=("ham10000",),
        side=64,
        hugging_face=HuggingFace("marmal88/skin_cancer", label="dx", train=("train", "validation")),
    ),
    "sun397": DatasetInfo(
        what="SUN397 (Xiao et al., CVPR 2010): 108,754 scenes of 397 classes; 64x64 by default",
        licence="research use; the pictures belong to their authors",
        how_to_get=_DOWNLOAD,
        files=(KnownFile("sun397.npz"),),
        side=64,
        torchvision=Torchvision("SUN397", ("SUN397/ClassName.txt",), part=""),
    ),
    "csv": DatasetInfo(
        what="csv:FILE, your own texts as a table with the columns text, label[, domain or user][, split]",
        licence="your own",
        how_to_get="write it as docs/data.md says",
    ),
    "jsonl": DatasetInfo(
        what="jsonl:FILE, your own texts as an object a line, with the same names",
        licence="your own",
        how_to_get="write it as docs/data.md says",
    ),
    "ag_news": DatasetInfo(
        what="AG News (Zhang et al., NIPS 2015): 120,000 + 7,600 news of 4 topics",
        licence="research and other non-commercial use",
        how_to_get=_DOWNLOAD,
        files=(
            KnownFile(
                "ag_news.jsonl.gz",
                16_371,
                ("6,600 + 1,000 texts, all of the official test file, of 120,000 + 7,600: not comparable",),
            ),
        ),
        hugging_face=HuggingFace("fancyzhx/ag_news", text=("text",)),
    ),
    "amazon": DatasetInfo(
        what="reviews of 14 kinds of product and 2 of films, positive or negative; amazon:DOMAIN,DOMAIN takes some",
        licence="research use",
        how_to_get="put fdu_mtl_reviews.jsonl.gz, made of FDU-MTL (Liu et al., ACL 2017), into `data-dir`: rows of "
        "`text`, `label` (0 negative, 1 positive), `domain`, `split`",
        files=(
            KnownFile("amazon.jsonl.gz"),
            KnownFile(
                "fdu_mtl_reviews.jsonl.gz",
                31_779,
                (
                    "FDU-MTL stands in for Amazon Review: texts instead of 5,000 counts, another split",
                    "the domains imdb and MR are films; FedSAF has amazon:books,dvd,electronics,kitchen_housewares",
                ),
            ),
        ),
    ),
    "dbpedia14": DatasetInfo(
        what="DBpedia-14 (Zhang et al., NIPS 2015): 560,000 + 70,000 summaries of 14 kinds of things",
        licence="CC BY-SA 3.0 and GFDL",
        how_to_get=_DOWNLOAD,
        files=(
            KnownFile("dbpedia14.jsonl.gz"),
            KnownFile(
                "dbpedia14_small.jsonl.gz",
                14_000,
                ("11,200 + 2,800 texts of 560,000 + 70,000, without letters that are not ASCII: not comparable",),
            ),
        ),
        hugging_face=HuggingFace("fancyzhx/dbpedia_14", text=("title", "content")),
    ),
    "shakespeare": DatasetInfo(
        what="the next of 80 characters in a role's speeches (LEAF, Caldas et al. 2018); a domain a role; "
        "shakespeare:STEP sets the characters between windows",
        licence="public domain",
        how_to_get="put speeches as shakespeare.jsonl.gz into `data-dir`: rows of `speaker`, `split`, `text`. LEAF's "
        "data/shakespeare/preprocess.sh with --raw makes them of Project Gutenberg's Shakespeare: a role is a user of "
        "its all_data.json, and its text is `raw`; flwrlabs/shakespeare of Hugging Face has windows, not speeches",
        files=(
            KnownFile("shakespeare.jsonl.gz"),
            KnownFile(
                "shakespeare_roles.jsonl.gz",
                7_097,
                (
                    "Tiny Shakespeare instead of LEAF's file: only some of the plays, so not comparable",
                    "a name that occurs in two plays is one role",
                ),
            ),
        ),
    ),
}
"""What ``isoproto data`` and error texts say of a data set. A set in ``DATASETS`` may do without a row here."""

_NO_ROW = DatasetInfo(
    what="a data set that the table of data sets says nothing about",
    licence="not stated",
    how_to_get="not stated; see the function that reads it",
)


def info_of(name: str) -> DatasetInfo:
    """Return the row of a data set in ``INFOS``; if it has none, a row that says so.

    Args:
        name: The data set's name; a colon and what follows it do not matter.

    Example:
        >>> info_of("npz:pets.npz").licence, info_of("somebodys").licence
        ('your own', 'not stated')
    """
    return INFOS.get(name.partition(":")[0], _NO_ROW)
