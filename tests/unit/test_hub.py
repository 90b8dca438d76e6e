"""Any set of Hugging Face by its id; the library and the network are stood in for by what they would give."""

import sys
from types import ModuleType

import pytest

from isoproto.cli import main as cli
from isoproto.data import load_dataset
from isoproto.data.hub import fetch_hub, hub_place
from isoproto.errors import DataError
from tests.unit.test_named_data import write_picture


class Value:
    def __init__(self, dtype):
        self.dtype = dtype


class ClassLabel:
    def __init__(self, *names):
        self.names = list(names)


class Image:
    def __init__(self, decode=True):
        self.decode = decode


class Part:
    """A split: columns, and rows of them."""

    def __init__(self, features, **columns):
        self.features, self.columns = features, columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column):
        return self.columns[column]

    def __iter__(self):
        return (dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True))

    def cast_column(self, column, kind):
        assert isinstance(self.features[column], Image)
        assert not kind.decode
        return self


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A library `datasets` with a set of pictures and one of texts."""
    pictures = []
    for i in range(3):
        write_picture(tmp_path / f"{i}.png", 10 * i, 8)
        pictures.append({"bytes": (tmp_path / f"{i}.png").read_bytes(), "path": None})
    kinds = {"id": Value("int64"), "img": Image(), "animal": ClassLabel("dog", "cat")}
    pets = {
        "validation": Part(kinds, id=[9], img=pictures[2:], animal=[1]),
        "train": Part(kinds, id=[7, 8], img=pictures[:2], animal=[1, 0]),
    }
    kinds = {"title": Value("string"), "body": Value("large_string"), "label": Value("int64"), "shop": Value("string")}
    reviews = {"all": Part(kinds, title=["A", "B"], body=["cat", "dog"], label=[1, 0], shop=["x", "y"])}
    odd = {"train": Part({"x": Value("float32")}, x=[1.0])}
    known = {("us/pets",): pets, ("us/reviews", "raw"): reviews, ("us/odd",): odd}
    module = ModuleType("datasets")
    module.load_dataset, module.Image = lambda *path: known[path], Image
    monkeypatch.setitem(sys.modules, "datasets", module)
    return tmp_path


def test_columns_of_pictures_are_told_by_what_they_hold(hub):
    with pytest.raises(
        DataError, match=r"found neither .*hf-us-pets.npz nor .*`isoproto data 'hf:us/pets' --download`"
    ):
        load_dataset("hf:us/pets", str(hub))
    fetch_hub("us/pets", hub)
    found = load_dataset("hf:us/pets", str(hub))
    assert (found.classes, found.y.tolist(), found.test.tolist()) == (("dog", "cat"), [1, 0, 1], [False, False, True])
    assert found.x.shape == (3, 3, 8, 8)


def test_columns_of_texts_may_be_named(hub):
    name = "us/reviews,config=raw,text=body,domain=shop"
    fetch_hub(name, hub)
    found = load_dataset(f"hf:{name}", str(hub))
    assert (found.classes, found.domains, found.y.tolist()) == (("0", "1"), ("x", "y"), [1, 0])
    assert found.x.shape == (2, 1)  # the title is not read
    assert not found.test.any()
    fetch_hub("us/reviews,config=raw", hub)
    assert load_dataset("hf:us/reviews,config=raw", str(hub)).x.shape == (2, 3)


def test_a_set_without_such_columns_is_refused_with_those_it_has(hub):
    with pytest.raises(DataError, match=r"us/odd of Hugging Face has no column 'label'; it has x \(float32\)"):
        fetch_hub("us/odd", hub)
    with pytest.raises(DataError, match=r"no column 'kind'; it has id \(int64\), img \(pictures\), animal \(classes\)"):
        fetch_hub("us/pets,label=kind", hub)
    with pytest.raises(DataError, match=r"us/odd of Hugging Face has no pictures or words; it has x"):
        fetch_hub("us/odd,label=x", hub)


def test_the_command_fetches_and_describes_a_set(hub, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["isoproto", "data", "hf:us/pets", "--data-dir", str(hub), "--download"])
    with pytest.raises(SystemExit) as ended:
        sys.exit(cli.main())
    out = capsys.readouterr().out
    assert not ended.value.code
    assert f"looked for, in this order: {hub}/hf-us-pets.npz, {hub}/hf-us-pets.jsonl.gz" in out
    assert "pictures: 3, 8x8 colour" in out


@pytest.mark.parametrize("argument", ["", ",label=x", "us/pets,colour=red", "us/pets,label", "us/pets,text=a,text=b"])
def test_an_argument_that_says_something_else_is_refused(argument):
    with pytest.raises(DataError, match=r"must be hf:ID and then any of ,config=\.\.\."):
        hub_place(argument)
