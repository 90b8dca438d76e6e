"""Well-known sets by name: where they are found, what is said about them, and what is wrong with bad files."""

import csv
import errno
import logging
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from isoproto.data import DATASETS, INFOS, folders, load_dataset, named
from isoproto.data.digits import DOMAINS
from isoproto.data.folders import cache_folder, cached_array
from isoproto.data.hugging_face import fetch_hugging_face
from isoproto.data.info import HuggingFace
from isoproto.errors import DataError

KNOWN = [
    (name, known)
    for name, info in INFOS.items()
    for known in info.files
    if known.caveats and known.name.endswith(".npz")
]


@pytest.fixture(autouse=True)
def _afresh(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "home"))
    load_dataset.cache_clear()
    folders.warn_once.cache_clear()


def write_arrays(path, samples=20, classes=10, side=1, channels=1, value=0):
    """A file of arrays, all but two samples for training; all pictures of one shade."""
    x = np.full((samples, side, side, channels), value, np.uint8)
    y = np.arange(samples) % classes
    names = np.array([str(label) for label in range(classes)])
    np.savez(path, train_x=x[:-2], train_y=y[:-2], test_x=x[-2:], test_y=y[-2:], classes=names)


def write_picture(path, shade=0, side=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (shade, shade, shade)).save(path)


def shades(dataset):
    return dataset.x[:, 0, 0, 0].tolist()


def test_every_line_of_the_table_has_a_set():
    assert INFOS.keys() <= DATASETS.keys()


@pytest.mark.parametrize(("name", "known"), KNOWN, ids=lambda value: getattr(value, "name", value))
def test_what_a_known_file_differs_in_is_kept_and_logged_once(name, known, tmp_path, caplog):
    write_arrays(tmp_path / known.name, known.samples)
    for _ in range(2):
        load_dataset.cache_clear()
        notes = load_dataset(name, str(tmp_path)).notes
    assert notes == tuple(f"{name} from {known.name}: {caveat}" for caveat in known.caveats)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == list(notes)


@pytest.mark.parametrize(("name", "known"), KNOWN, ids=lambda value: getattr(value, "name", value))
def test_a_file_of_that_name_with_other_samples_is_somebodys_own(name, known, tmp_path):
    write_arrays(tmp_path / known.name, known.samples - 1)
    assert load_dataset(name, str(tmp_path)).notes == ()


def test_our_own_name_comes_before_others(tmp_path):
    write_arrays(tmp_path / "pacs64.npz", value=1)
    write_arrays(tmp_path / "pacs.npz", value=2)
    assert shades(load_dataset("pacs", str(tmp_path)))[0] == 2


def test_a_file_comes_before_a_folder(tmp_path):
    write_arrays(tmp_path / "pacs64.npz", value=1)
    write_picture(tmp_path / "pacs" / "photo" / "dog" / "a.png", 2)
    assert shades(load_dataset("pacs", str(tmp_path)))[0] == 1


@pytest.mark.parametrize("name", ["pacs", "office_caltech"])
def test_a_folder_of_domains_is_brought_to_one_size_and_has_no_test_part(name, tmp_path):
    write_picture(tmp_path / name / "photo" / "dog" / "a.png", 10, side=4)
    write_picture(tmp_path / name / "sketch" / "cat" / "a.png", 20, side=9)
    found = load_dataset(name, str(tmp_path))
    assert found.x.shape == (2, 3, 64, 64)
    assert (found.domains, found.classes, shades(found)) == (("photo", "sketch"), ("cat", "dog"), [10, 20])
    assert found.notes == (f"{tmp_path / name} has no official test part: only `split = 'merged'` can be used",)


def test_an_empty_class_folder_is_named(tmp_path):
    write_picture(tmp_path / "pacs" / "photo" / "dog" / "a.png")
    (tmp_path / "pacs" / "photo" / "cat").mkdir()
    with pytest.raises(DataError, match=f"{tmp_path}/pacs/photo/cat: no picture in this folder"):
        load_dataset("pacs", str(tmp_path))


def tiny_imagenet(root, annotations):
    for wnid, shade in (("n01", 10), ("n02", 20)):
        for i in range(2):
            write_picture(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", shade, side=64)
    for name in ("val_0", "val_1"):
        write_picture(root / "val" / "images" / f"{name}.JPEG", 30, side=64)
    write_picture(root / "test" / "images" / "test_0.JPEG", 40, side=64)
    (root / "val" / "val_annotations.txt").write_text(annotations, "latin-1")


@pytest.mark.parametrize("folder", ["tiny_imagenet", "tiny-imagenet-200"])
def test_tiny_imagenets_validation_pictures_have_the_classes_of_the_list(folder, tmp_path):
    tiny_imagenet(tmp_path / folder, "val_0.JPEG\tn02\t0\t0\t62\t62\nval_1.JPEG\tn01\t0\t0\t62\t62\n")
    found = load_dataset("tiny_imagenet", str(tmp_path))
    assert found.classes == ("n01", "n02")
    assert shades(found) == [10, 10, 20, 20, 30, 30]
    assert found.y.tolist() == [0, 0, 1, 1, 1, 0]
    assert found.test.tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("val_9.JPEG\tn01", r"line 1: wanted a picture in .*val/images, a tab and a class .*got 'val_9\.JPEG"),
        ("val_0.JPEG\tn03", r"line 1: wanted .* a class in .*train, got 'val_0\.JPEG"),
        ("val_0.JPEG\tn01\nval_1.JP", r"line 2: wanted .*got 'val_1\.JP"),
        ("val_0.JPEG\tn01\nval_1.JPEG", r"line 2: wanted .*got 'val_1\.JPEG"),
        ("../../train/n01/images/n01_0.JPEG\tn01", r"line 1: wanted .*got '\.\./"),
        ("val_0.JPEG\tn01\t\xe4", r"line 1: not UTF-8 \(byte 0xe4 at place 16\)"),
        (
            "val_0.JPEG\tn01\t0\t0\t62\t62",
            r"val_annotations\.txt: does not name 1 of the pictures in .*, as val_1\.JPEG",
        ),
    ],
)
def test_a_list_of_tiny_imagenet_that_does_not_fit_is_refused(line, text, tmp_path):
    tiny_imagenet(tmp_path / "tiny_imagenet", line + "\n")
    with pytest.raises(DataError, match=rf"val_annotations\.txt(, |: ).*{text}|{text}"):
        load_dataset("tiny_imagenet", str(tmp_path))


def test_a_class_of_tiny_imagenet_without_pictures_is_refused(tmp_path):
    tiny_imagenet(tmp_path / "tiny_imagenet", "val_0.JPEG\tn01\nval_1.JPEG\tn01\n")
    for path in (tmp_path / "tiny_imagenet" / "train" / "n02" / "images").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=rf"{tmp_path}/tiny_imagenet/train/n02: no picture in this folder"):
        load_dataset("tiny_imagenet", str(tmp_path))


def domainnet(root):
    write_picture(root / "clipart" / "dog" / "a.jpg", 10)
    write_picture(root / "clipart" / "cat" / "b.jpg", 20)
    write_picture(root / "sketch" / "dog" / "c.jpg", 30)
    (root / "clipart_train.txt").write_text("clipart/dog/a.jpg 1\n")
    (root / "clipart_test.txt").write_text("clipart/cat/b.jpg 0\n")
    (root / "sketch_train.txt").write_text("sketch/dog/c.jpg 1\n")
    write_picture(root / "sketch" / "cat" / "d.jpg", 40)
    (root / "sketch_test.txt").write_text("sketch/cat/d.jpg 0\n")


def test_domainnets_lists_say_what_is_for_testing(tmp_path):
    domainnet(tmp_path / "domainnet")
    found = load_dataset("domainnet", str(tmp_path))
    assert (found.classes, found.domains) == (("cat", "dog"), ("clipart", "sketch"))
    assert shades(found) == [10, 30, 20, 40]
    assert (found.y.tolist(), found.domain.tolist()) == ([1, 1, 0, 0], [0, 1, 0, 1])
    assert found.test.tolist() == [False, False, True, True]


@pytest.mark.parametrize("name", ["clipart_train.txt", "sketch_test.txt"])
def test_a_domain_of_domainnet_without_one_of_its_lists_is_refused(name, tmp_path):
    domainnet(tmp_path / "domainnet")
    (tmp_path / "domainnet" / name).write_text("")
    with pytest.raises(DataError, match=rf"{tmp_path}/domainnet/{name}: names no picture; get the list again"):
        load_dataset("domainnet", str(tmp_path))
    (tmp_path / "domainnet" / name).unlink()
    with pytest.raises(DataError, match=rf"domainnet/{name.split('_')[0]}: its list {name} is missing in {tmp_path}"):
        load_dataset("domainnet", str(tmp_path))


def test_a_list_of_domainnet_that_is_not_utf8_is_refused(tmp_path):
    domainnet(tmp_path / "domainnet")
    (tmp_path / "domainnet" / "clipart_test.txt").write_bytes(b"clipart/c\xe4t/b.jpg 0\n")
    with pytest.raises(DataError, match=r"clipart_test\.txt, line 1: not UTF-8 \(byte 0xe4 at place 10\)"):
        load_dataset("domainnet", str(tmp_path))


def test_a_picture_that_a_list_names_may_be_a_link_but_not_to_nothing(tmp_path):
    domainnet(tmp_path / "domainnet")
    picture = tmp_path / "domainnet" / "clipart" / "cat" / "b.jpg"
    picture.unlink()
    picture.symlink_to("gone.jpg")
    with pytest.raises(DataError, match=rf"{picture}: a link to gone\.jpg, where nothing can be read"):
        load_dataset("domainnet", str(tmp_path))


@pytest.mark.parametrize("line", ["clipart/dog/absent.jpg 1", "a.jpg 1", "nonsense", "/clipart/dog 1", "../x/y 1", ""])
def test_a_line_of_domainnet_that_does_not_fit_is_named(line, tmp_path):
    domainnet(tmp_path / "domainnet")
    (tmp_path / "domainnet" / "clipart_test.txt").write_text(f"clipart/cat/b.jpg 0\n{line}\n")
    with pytest.raises(DataError, match=r"clipart_test\.txt, line 2: wanted DOMAIN/CLASS/NAME NUMBER"):
        load_dataset("domainnet", str(tmp_path))


def ham10000(root, columns=("image_id", "lesion_id", "dx"), lesions=40):
    rows = [(f"p{i}", f"lesion{i // 2}", ("nv", "mel")[i % 2]) for i in range(2 * lesions)]
    root.mkdir(parents=True)
    with (root / "HAM10000_metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    for i, (name, _, _) in enumerate(rows):
        write_picture(root / f"HAM10000_images_part_{1 + i % 2}" / f"{name}.jpg", side=8)
    return rows


def test_no_lesion_of_ham10000_is_on_both_sides(tmp_path):
    ham10000(tmp_path / "ham10000")
    found = load_dataset("ham10000", str(tmp_path))
    assert (found.classes, found.x.shape) == (("mel", "nv"), (80, 3, 64, 64))
    assert found.y.tolist() == [1, 0] * 40
    assert torch.equal(found.test[::2], found.test[1::2])
    assert 4 <= found.test.sum() <= 32


def test_pictures_of_a_folder_are_brought_to_the_size_that_the_name_asks_for(tmp_path):
    """Each size has a cache entry of its own; what lies there as one file has its size."""
    ham10000(tmp_path / "ham10000")
    write_arrays(tmp_path / "ham10000_8x8_gray.npz", side=8)
    large, small, usual = (load_dataset(f"ham10000:@{side}", str(tmp_path)) for side in (224, 16, 64))
    assert (large.x.shape, small.x.shape) == ((80, 3, 224, 224), (80, 3, 16, 16))
    assert usual.x.shape == (20, 1, 8, 8)  # 64 is its own size, for which a file does too
    assert large.y.tolist() == small.y.tolist() == [1, 0] * 40


def test_a_file_of_a_certain_size_is_told_by_its_name_and_must_have_it(tmp_path):
    write_arrays(tmp_path / "pacs_16.npz", side=16, value=3)
    write_arrays(tmp_path / "pacs.npz", side=9, value=4)
    assert shades(load_dataset("pacs:@16", str(tmp_path)))[0] == 3
    write_arrays(tmp_path / "pacs_32.npz", side=16)
    with pytest.raises(DataError, match=r"'pacs:@32': .*pacs_32\.npz holds pictures of 16x16, wanted 32x32; "):
        load_dataset("pacs:@32", str(tmp_path))


def test_a_set_that_is_not_there_at_a_size_says_where_it_was_looked_for(tmp_path):
    write_arrays(tmp_path / "ham10000_8x8_gray.npz", side=8)
    looked = f"{tmp_path / 'ham10000_224.npz'}, {tmp_path / 'ham10000'}/"
    with pytest.raises(DataError, match=rf"'ham10000:@224': found none of {looked}\. `isoproto data ham10000:@224 -"):
        load_dataset("ham10000:@224", str(tmp_path))


@pytest.mark.parametrize("argument", ["224", "@", "@0", "@-4", "paper@224"])
def test_what_is_no_size_is_refused(argument, tmp_path):
    with pytest.raises(DataError, match=rf"'ham10000' takes @ and a side in pixels, such as @224, got '{argument}'"):
        load_dataset(f"ham10000:{argument}", str(tmp_path))


@pytest.mark.parametrize("name", ["cifar10", "digits", "femnist"])
def test_a_set_of_one_size_takes_no_other(name, tmp_path):
    with pytest.raises(DataError, match=rf"data '{name}' takes no argument, got '@64'"):
        load_dataset(f"{name}:@64", str(tmp_path))


def test_a_table_of_ham10000_that_does_not_fit_is_refused(tmp_path):
    ham10000(tmp_path / "a" / "ham10000", columns=("image_id", "lesion", "dx"))
    with pytest.raises(DataError, match=r"metadata\.csv, line 2: must have the columns image_id, lesion_id, dx"):
        load_dataset("ham10000", str(tmp_path / "a"))
    ham10000(tmp_path / "b" / "ham10000")
    (tmp_path / "b" / "ham10000" / "HAM10000_images_part_1" / "p2.jpg").unlink()
    with pytest.raises(DataError, match=r"metadata\.csv, line 4: there is no p2\.jpg under"):
        load_dataset("ham10000", str(tmp_path / "b"))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"image_id,lesion_id,dx\np0,l\xe4sion,nv\n", r", line 2: not UTF-8 \(byte 0xe4"),
        (b"image_id,lesion_id,dx\np0,lesion0,nv\np1,les", r", line 3: has 2 cells, and the first row names 3"),
        (b"image_id,lesion_id,dx\np0,lesion0,\n", r", line 2: must have .*none of them empty, got .*'dx': ''"),
        (b"image_id,lesion_id,dx\n", r"ham10000: lists no pictures; get the set again"),
    ],
)
def test_a_table_of_ham10000_that_is_not_whole_is_refused(content, text, tmp_path):
    ham10000(tmp_path / "ham10000")
    (tmp_path / "ham10000" / "HAM10000_metadata.csv").write_bytes(content)
    with pytest.raises(DataError, match=text):
        load_dataset("ham10000", str(tmp_path))


@pytest.mark.parametrize("name", ["tiny_imagenet", "domainnet", "ham10000"])
def test_without_its_list_a_folder_is_read_as_any_other(name, tmp_path):
    write_picture(tmp_path / name / "train" / "dog" / "a.png", 10)
    write_picture(tmp_path / name / "test" / "cat" / "a.png", 20)
    found = load_dataset(name, str(tmp_path))
    assert (found.y.tolist(), found.test.tolist()) == ([0, 1], [True, False])


def digits(folder):
    for value, file in enumerate(["mnist", "usps", "digits_mnistm_like", "digits_syn_like"]):
        channels = 1 if value < 2 else 3
        write_arrays(
            folder / f"{file}.npz", samples=20 + value, side=16 + 16 * (value == 3), channels=channels, value=value
        )


def test_digits_are_four_domains_of_one_size(tmp_path):
    digits(tmp_path)
    found = load_dataset("digits", str(tmp_path))
    assert found.x.shape == (20 + 21 + 22 + 23, 3, 32, 32)
    assert found.domains == DOMAINS == ("mnist", "usps", "svhn", "syn")
    assert torch.equal(found.x[:, 2, 31, 31].long(), found.domain)  # the shade that each was written in
    assert torch.bincount(found.domain).tolist() == [20, 21, 22, 23]
    assert torch.bincount(found.domain[found.test]).tolist() == [2, 2, 2, 2]
    assert [note.split(":")[0] for note in found.notes] == [
        "svhn of digits is replaced by digits_mnistm_like.npz",
        "syn of digits is replaced by digits_syn_like.npz",
    ]


def test_a_domain_of_digits_itself_comes_before_what_stands_in_for_it(tmp_path):
    digits(tmp_path)
    write_arrays(tmp_path / "svhn.npz", side=32, channels=3, value=200)
    found = load_dataset("digits", str(tmp_path))
    assert (found.x[found.domain == 2] == 200).all()
    assert len(found.notes) == 1


def test_a_changed_domain_of_digits_is_read_anew(tmp_path):
    digits(tmp_path)
    load_dataset("digits", str(tmp_path))
    write_arrays(tmp_path / "mnist.npz", side=16, value=99)
    load_dataset.cache_clear()
    assert shades(load_dataset("digits", str(tmp_path)))[0] == 99


@pytest.mark.parametrize(
    ("absent", "text"),
    [
        ("usps.npz", r"data 'digits': found none of usps as .*usps\.npz, .*usps\.bz2.*`data-dir`"),
        ("digits_syn_like.npz", r"data 'digits': found none of syn as .*syn\.npz, .*syn/, .*digits_syn_like\.npz"),
    ],
)
def test_a_missing_domain_of_digits_is_named(absent, text, tmp_path):
    digits(tmp_path)
    (tmp_path / absent).unlink()
    with pytest.raises(DataError, match=text):
        load_dataset("digits", str(tmp_path))


def test_a_domain_of_digits_has_ten_classes(tmp_path):
    digits(tmp_path)
    write_arrays(tmp_path / "usps.npz", classes=9)
    with pytest.raises(DataError, match=r"usps\.npz: must have the ten digits as classes, got \('0', .*'8'\)"):
        load_dataset("digits", str(tmp_path))


def test_digits_take_no_argument():
    with pytest.raises(DataError, match="'digits' takes no argument, got 'x'"):
        load_dataset("digits:x")


def sun397(folder):
    root = folder / "SUN397"
    for name, shade in (("abbey", 10), ("zoo", 20)):
        write_picture(root / name[0] / name / "sun_a.jpg", shade)
    (root / "ClassName.txt").write_text("/a/abbey\n/z/zoo\n")


def test_torchvisions_picture_files_are_brought_to_one_size(tmp_path):
    sun397(tmp_path)
    found = load_dataset("sun397", str(tmp_path))
    assert (found.x.shape, shades(found), found.y.tolist()) == ((2, 3, 64, 64), [10, 20], [0, 1])
    assert found.classes == ("abbey", "zoo")


def test_torchvisions_picture_files_have_a_cache_entry_for_each_size(tmp_path):
    sun397(tmp_path)
    assert load_dataset("sun397:@16", str(tmp_path)).x.shape == (2, 3, 16, 16)
    assert load_dataset("sun397", str(tmp_path)).x.shape == (2, 3, 64, 64)


def test_a_listed_class_of_torchvisions_without_pictures_is_refused(tmp_path):
    sun397(tmp_path)
    (tmp_path / "SUN397" / "z" / "zoo" / "sun_a.jpg").unlink()
    with pytest.raises(DataError, match=rf"^{tmp_path}/SUN397/z/zoo: no picture in this folder, .*got nothing"):
        load_dataset("sun397", str(tmp_path))


def test_torchvisions_files_are_decoded_once(tmp_path, monkeypatch):
    sun397(tmp_path)
    first = load_dataset("sun397", str(tmp_path))
    monkeypatch.delattr(torchvision.datasets, "SUN397")
    load_dataset.cache_clear()
    assert torch.equal(load_dataset("sun397", str(tmp_path)).x, first.x)


def test_damaged_files_of_torchvision_are_named(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"half of it")
    with pytest.raises(
        DataError, match=f"{folder / 'data_batch_1'} and others .* read as torchvision.datasets.CIFAR10"
    ):
        load_dataset("cifar10", str(tmp_path))
    assert not list(cache_folder().glob("*.npy"))


def test_fetch_asks_torchvision_for_both_parts(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torchvision.datasets, "MNIST", lambda **how: asked.append(how))
    named.fetch("mnist", tmp_path)
    assert asked == [{"root": str(tmp_path), "download": True, "train": train} for train in (True, False)]


def test_what_nobody_has_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"'office_caltech' cannot be fetched: .*unpack the folders"):
        named.fetch("office_caltech", tmp_path)
    with pytest.raises(DataError, match=r"'pacs' cannot be fetched: flwrlabs/pacs .* pip install 'isoproto\[data\]'"):
        named.fetch("pacs", tmp_path)


class Part:
    """As much of a split of Hugging Face as we use."""

    def __init__(self, columns, features):
        self.columns, self.features = columns, features

    def __getitem__(self, column):
        return self.columns[column]

    def __len__(self):
        return len(self.columns["label"])

    def cast_column(self, column, feature):
        assert (column, feature) == ("image", "Image(decode=False)")
        return self


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A library `datasets` with one set of two splits, of which one picture is large."""
    files = []
    for i, side in enumerate((4, 4, 9)):
        write_picture(tmp_path / f"{i}.png", 10 * i, side)
        files.append({"bytes": (tmp_path / f"{i}.png").read_bytes(), "path": None})
    features = {"label": SimpleNamespace(names=["cat", "dog"]), "domain": SimpleNamespace()}
    train = Part({"image": files[:2], "label": [1, 0], "domain": ["sketch", "photo"]}, features)
    test = Part({"image": files[2:], "label": [1], "domain": ["photo"]}, features)
    module = ModuleType("datasets")
    module.load_dataset = lambda *path: {"train": train, "test": test} if path == ("us/pets",) else {}
    module.Image = lambda decode: f"Image({decode=})"
    monkeypatch.setitem(sys.modules, "datasets", module)


@pytest.mark.usefixtures("hub")
def test_a_set_of_hugging_face_becomes_a_file_of_ours(tmp_path):
    fetch_hugging_face(HuggingFace("us/pets", domain="domain"), tmp_path / "pets.npz", side=4)
    found = load_dataset("npz:pets.npz", str(tmp_path))
    assert (found.classes, found.domains) == (("cat", "dog"), ("photo", "sketch"))
    assert (found.x.shape, shades(found)) == ((3, 3, 4, 4), [0, 10, 20])
    assert (found.y.tolist(), found.domain.tolist()) == ([1, 0, 1], [1, 0, 0])
    assert found.test.tolist() == [False, False, True]


@pytest.mark.usefixtures("hub")
def test_a_size_is_fetched_into_a_file_of_its_own(tmp_path, monkeypatch):
    parts = sys.modules["datasets"].load_dataset("us/pets")
    part = {"train": parts["train"], "validation": parts["train"], "test": parts["test"]}
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", lambda *path: part)
    for columns in (parts["train"].columns, parts["test"].columns):
        columns["dx"] = columns["label"]
        parts["train"].features["dx"] = parts["train"].features["label"]
    named.fetch("ham10000:@5", tmp_path)
    assert named.is_here("ham10000:@5", tmp_path)
    assert not named.is_here("ham10000", tmp_path)
    assert load_dataset("ham10000:@5", str(tmp_path)).x.shape == (5, 3, 5, 5)


@pytest.mark.usefixtures("hub")
def test_writers_of_femnist_are_users(tmp_path, monkeypatch):
    parts = {"train": sys.modules["datasets"].load_dataset("us/pets")["train"]}
    part = parts["train"]
    part.columns |= {"character": part.columns.pop("label"), "writer_id": part.columns.pop("domain")}
    part.features |= {"character": part.features["label"], "writer_id": SimpleNamespace()}
    monkeypatch.setattr(Part, "__len__", lambda self: len(self.columns["image"]))
    monkeypatch.setattr(
        sys.modules["datasets"], "load_dataset", lambda *path: parts if path == ("flwrlabs/femnist",) else {}
    )
    named.fetch("femnist", tmp_path)
    found = load_dataset("femnist", str(tmp_path))
    assert (found.domains, found.classes, found.y.tolist()) == (("photo", "sketch"), ("cat", "dog"), [1, 0])


@pytest.mark.usefixtures("hub")
def test_a_set_of_hugging_face_that_cannot_be_had_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"us/cats of Hugging Face cannot be had .*'train'"):
        fetch_hugging_face(HuggingFace("us/cats"), tmp_path / "pets.npz")
    assert not list(tmp_path.glob("pets*"))


def test_arrays_are_mapped_from_the_cache(tmp_path):
    write_arrays(tmp_path / "mnist.npz", value=7)
    load_dataset("mnist", str(tmp_path))
    (entry,) = cache_folder().glob("*.npy")
    np.save(entry, np.load(entry) + 1)
    load_dataset.cache_clear()
    assert shades(load_dataset("mnist", str(tmp_path)))[0] == 8


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.99])
def test_a_file_cut_short_leaves_nothing_in_the_cache(keep, tmp_path):
    write_arrays(tmp_path / "mnist.npz", samples=500, side=8)
    content = (tmp_path / "mnist.npz").read_bytes()
    (tmp_path / "mnist.npz").write_bytes(content[: int(keep * len(content))])
    with pytest.raises(DataError, match=r"mnist\.npz: not an npz file, or cut short"):
        load_dataset("mnist", str(tmp_path))
    assert not list(cache_folder().glob("*.npy"))


def test_a_changed_byte_inside_a_file_is_found(tmp_path):
    write_arrays(tmp_path / "mnist.npz", samples=500, side=8, value=5)
    content = bytearray((tmp_path / "mnist.npz").read_bytes())
    content[5000] ^= 255
    (tmp_path / "mnist.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"mnist\.npz: array `train_x` cannot be read .*CRC"):
        load_dataset("mnist", str(tmp_path))
    assert not list(cache_folder().glob("*.npy"))


def test_what_a_killed_writer_left_is_cleared_away():
    cache_folder().mkdir(parents=True)
    for name in ("a.123.tmp", "b.123.tmp"):
        (cache_folder() / name).write_bytes(b"half")
    cached_array("a", lambda: np.zeros(3))
    assert sorted(path.name for path in cache_folder().iterdir()) == ["a.lock", "a.npy", "b.123.tmp"]


def test_of_several_workers_one_decodes_and_all_read():
    calls, together = [], threading.Barrier(4)

    def make():
        calls.append(1)
        time.sleep(0.05)
        return np.arange(1000)

    def work(_):
        together.wait()
        return int(cached_array("race", make)[-1])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [999] * 4
    assert calls == [1]


def test_where_there_are_no_locks_entries_are_still_made_whole(monkeypatch):
    def refuse(*_args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert cached_array("a", lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert isinstance(cached_array("a", list), np.memmap)


def test_what_cannot_be_made_leaves_nothing():
    def fail():
        raise DataError("half a picture")

    with pytest.raises(DataError, match="half a picture"):
        cached_array("a", fail)
    assert [path.name for path in cache_folder().iterdir()] == ["a.lock"]
