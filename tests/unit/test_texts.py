"""Reading texts: files, vocabulary, well-known sets, and what is said of bad ones."""

import gzip
import json
import logging
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from isoproto.data import INFOS, TextDataset, folders, load_dataset, named, split_clients, tokens
from isoproto.data.excerpts import excerpts
from isoproto.data.folders import cache_folder
from isoproto.data.shakespeare import ALPHABET
from isoproto.errors import DataError
from tests.fakes import command_line

KNOWN = [(name, known) for name, info in INFOS.items() for known in info.files if ".jsonl" in known.name]
ROW = {"text": "A cat", "label": 0, "split": "train", "domain": "books", "speaker": "Hamlet"}


@pytest.fixture(autouse=True)
def _afresh(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "home"))
    load_dataset.cache_clear()
    folders.warn_once.cache_clear()


def write(path, rows):
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def load(path, kind="csv"):
    load_dataset.cache_clear()
    return load_dataset(f"{kind}:{path}")


def words(dataset, name):
    """Return the words of each text, read back from the vocabulary in the cache."""
    (path,) = cache_folder().glob(f"{name}-*.json")
    vocabulary = {i: word for word, i in json.loads(path.read_text())["model"]["vocab"].items()}
    return [[vocabulary[i] for i in row if i] for row in dataset.x.tolist()]


# Your own files


TABLE = 'text,label,user,split\n"Cats, cats!",pet,ann,train\nNo dog no,wild,bob,train\nCats no dog,pet,ann,test\n'


def test_a_table_is_read_word_for_word(tmp_path):
    (tmp_path / "pets.csv").write_text(TABLE)
    found = load(tmp_path / "pets.csv")
    assert isinstance(found, TextDataset)
    assert words(found, "pets") == [["cats", "[UNK]", "cats", "[UNK]"], ["no", "[UNK]", "no"], ["cats", "no", "[UNK]"]]
    assert (found.classes, found.y.tolist()) == (("pet", "wild"), [0, 1, 0])
    assert (found.domains, found.domain.tolist()) == (("ann", "bob"), [0, 1, 0])
    assert found.test.tolist() == [False, False, True]
    assert (found.vocabulary, found.x.dtype, found.source) == (4, torch.int32, str(tmp_path / "pets.csv"))


@pytest.mark.parametrize("name", ["pets.jsonl", "pets.jsonl.gz"])
def test_objects_give_the_same_as_a_table(name, tmp_path):
    (tmp_path / "pets.csv").write_text(TABLE)
    header, *rows = [["text", "label", "user", "split"], ["Cats, cats!", "pet", "ann", "train"],
                     ["No dog no", "wild", "bob", "train"], ["Cats no dog", "pet", "ann", "test"]]  # fmt: skip
    write(tmp_path / name, [dict(zip(header, row, strict=True)) for row in rows])
    one, other = load(tmp_path / "pets.csv"), load(tmp_path / name, "jsonl")
    assert torch.equal(one.x, other.x)
    assert (one.y.tolist(), one.classes, one.domains) == (other.y.tolist(), other.classes, other.domains)


def test_a_mark_at_the_start_of_a_file_is_no_part_of_it(tmp_path):
    (tmp_path / "pets.csv").write_bytes(b"\xef\xbb\xbf" + TABLE.encode())
    assert load(tmp_path / "pets.csv").y.tolist() == [0, 1, 0]


def test_the_vocabulary_is_made_of_training_texts_alone(tmp_path):
    rows = [("a a b", "train"), ("c c c c", "test")]
    write(tmp_path / "pets.jsonl", [{"text": text, "label": 0, "split": split} for text, split in rows])
    assert words(load(tmp_path / "pets.jsonl", "jsonl"), "pets") == [["a", "a", "[UNK]"], ["[UNK]"] * 4]


def test_without_a_training_part_it_is_made_of_all(tmp_path):
    write(tmp_path / "pets.jsonl", [{"text": "c c", "label": 0, "split": "test"}])
    assert words(load(tmp_path / "pets.jsonl", "jsonl"), "pets") == [["c", "c"]]


def test_frequent_words_come_first_and_equal_ones_in_order(tmp_path):
    write(tmp_path / "pets.jsonl", [{"text": "b a c c c b a", "label": 0}])
    assert load(tmp_path / "pets.jsonl", "jsonl").x.tolist() == [[4, 3, 2, 2, 2, 4, 3]]


def test_long_texts_are_cut_and_short_ones_end_in_zeros(tmp_path):
    write(tmp_path / "pets.jsonl", [{"text": "a " * 300, "label": 0}, {"text": "a", "label": 0}])
    found = load(tmp_path / "pets.jsonl", "jsonl")
    assert found.x.shape == (2, 200)
    assert (found.x != 0).sum(1).tolist() == [200, 1]


@pytest.mark.parametrize(("kept", "width"), [(250, 250), (3, 3), (1000, 300)])
def test_how_much_of_a_text_is_kept_can_be_said(tmp_path, kept, width):
    """The vocabulary is that of whole texts, whatever is kept."""
    write(tmp_path / "pets.jsonl", [{"text": "a " * 299 + "b", "label": 0}, {"text": "b", "label": 0}])
    found = load_dataset(f"jsonl:pets.jsonl@{kept}", str(tmp_path))
    assert (found.x.shape, found.vocabulary) == ((2, width), 4)
    assert found.x[:, 0].tolist() == [2, 3]


def test_rows_name_their_domains_alike(tmp_path):
    rows = [{"text": "a", "label": 0, "user": "ann"}, {"text": "b", "label": 0, "user": "bob", "domain": "x"}]
    write(tmp_path / "pets.jsonl", rows)
    with pytest.raises(DataError, match=r"line 2: all rows .*; got domain, and user in the first row"):
        load(tmp_path / "pets.jsonl", "jsonl")
    write(tmp_path / "pets.jsonl", [*rows[:1], {"text": "b", "label": 0}])
    with pytest.raises(DataError, match=r"line 2: all rows .*; got none, and user in the first row"):
        load(tmp_path / "pets.jsonl", "jsonl")


def test_numbers_are_classes_by_size_and_names_by_order(tmp_path):
    write(tmp_path / "pets.jsonl", [{"text": "a", "label": label} for label in (10, 9, 2)])
    assert load(tmp_path / "pets.jsonl", "jsonl").classes == ("2", "9", "10")
    write(tmp_path / "pets.jsonl", [{"text": "a", "label": label} for label in ("10", "9", "x")])
    assert load(tmp_path / "pets.jsonl", "jsonl").classes == ("10", "9", "x")


def test_blanks_around_a_name_and_ways_to_write_it_make_no_class(tmp_path):
    (tmp_path / "pets.csv").write_text("text,label\na,pet\nb,pet \nc, pet\nd,caf\u00e9\ne,cafe\u0301\n")
    assert load(tmp_path / "pets.csv").classes == ("caf\u00e9", "pet")


def test_the_longest_name_of_a_list_of_classes_counts(tmp_path):
    (tmp_path / "pets.v2.csv").write_text(TABLE)
    (tmp_path / "pets.v2.classes.txt").write_text("wild\nfish\npet\n")
    assert load(tmp_path / "pets.v2.csv").classes == ("wild", "fish", "pet")


def test_a_long_cell_is_read(tmp_path):
    (tmp_path / "pets.csv").write_text(f"text,label\n{'miau ' * 30_000},pet\n")
    assert load(tmp_path / "pets.csv").classes == ("pet",)


def test_a_list_of_classes_fixes_them_also_those_that_a_file_lacks(tmp_path):
    (tmp_path / "pets.csv").write_text(TABLE)
    (tmp_path / "pets.classes.txt").write_text("wild\nfish\npet\n")
    found = load(tmp_path / "pets.csv")
    assert (found.classes, found.y.tolist()) == (("wild", "fish", "pet"), [2, 0, 2])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("text,label\ncat,pet\n\nc\xe4t,pet\n".encode("latin-1"), r"line 4: not UTF-8 \(byte 0xe4 at place 2\)"),
        (b"text,label\ncat,pet\ndog\n", r"line 3: has 1 cells, and the first row names 2 columns"),
        (b"txt,label\ncat,pet\n", r"line 2: column 'text' is missing, got 'txt', 'label'"),
        (b"text,class\ncat,pet\n", r"line 2: column 'label' is missing, got 'text', 'class'"),
        (b'text,label\n"cat\nand dog",pet\n" ",pet\n', r"line 4: the text is empty"),
        (b"text,label\ncat,\n", r"line 2: 'label' must be a name or a whole number, got ''"),
        (b"text,label,user\ncat,pet,ann\ndog,pet,\n", r"line 3: 'user' must be a name or a whole number, got ''"),
        (b"text,label,split\ncat,pet,val\n", r"line 2: 'split' must be 'train' or 'test', got 'val'"),
        (b'text,label\n"cat" and,pet\n', r"line 2: not CSV \("),
        (b"text,label,text\ncat,pet,dog\n", r"line 1: column 'text' is named twice; rename"),
        (b"text,label\n", r"pets.csv: holds no text; at least one row"),
        (b"", r"pets.csv: holds no text; at least one row"),
    ],
)
def test_a_bad_table_is_refused_with_its_line_and_leaves_nothing(content, complaint, tmp_path):
    (tmp_path / "pets.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"{tmp_path / 'pets.csv'}.*{complaint}|{complaint}"):
        load(tmp_path / "pets.csv")
    assert not cache_folder().exists()


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('{"text": "cat"', r"line 2: not JSON \("),
        ('["cat"]', r"line 2: must be an object like"),
        ('{"text": null, "label": 1}', r"line 2: column 'text' is missing, got 'text', 'label'"),
        ('{"text": 5, "label": 1}', r"line 2: 'text' must be text, got \[5\]"),
        ('{"text": "cat", "label": 1.5}', r"line 2: 'label' must be a name or a whole number, got 1.5"),
        (
            '{"text": "smile \\ud83d end", "label": 1}',
            r"line 2: 'text' holds half a character, '.ud83d' at place 7; cut",
        ),
        ('{"text": "cat", "label": "\\ud83d"}', r"line 2: 'label' holds half a character, '.ud83d' at place 1"),
        ("[" * 100_000, r"line 2: not JSON \("),
        (
            '{"text": "cat", "label": 1, "label": 2}',
            r"line 2: not JSON \(names must differ, got 'text', 'label', 'label'",
        ),
        (
            '{"text": "cat", "label": 1, "domain": "a"}',
            r"line 2: all rows must have the same of 'domain' or 'user', or none; got domain, and none in the",
        ),
        ('{"text": "cat", "label": true}', r"line 2: 'label' must be a name or a whole number, got True"),
    ],
)
def test_a_bad_object_is_refused_with_its_line_and_leaves_nothing(row, complaint, tmp_path):
    (tmp_path / "pets.jsonl").write_text(f'{{"text": "cat", "label": 1}}\n{row}\n')
    with pytest.raises(DataError, match=f"pets.jsonl, {complaint}"):
        load(tmp_path / "pets.jsonl", "jsonl")
    assert not cache_folder().exists()


def test_a_label_that_is_no_class_is_refused_with_its_line(tmp_path):
    (tmp_path / "pets.csv").write_text(TABLE)
    (tmp_path / "pets.classes.txt").write_text("pet\n")
    with pytest.raises(DataError, match=r"pets.csv, line 3: label 'wild' is none of the classes 'pet'"):
        load(tmp_path / "pets.csv")
    assert not cache_folder().exists()


@pytest.mark.parametrize("content", [b"pet\npet\n", b"", b"pet\n\nwild\n", b"p\xe4t\n"])
def test_a_bad_list_of_classes_is_refused(content, tmp_path):
    (tmp_path / "pets.csv").write_text(TABLE)
    (tmp_path / "pets.classes.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"pets.classes.txt(: must name each class once|, line 1: not UTF-8)"):
        load(tmp_path / "pets.csv")


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"plain" + b, lambda b: b[:20] + b"xx" + b[22:]]
)
def test_a_damaged_archive_is_refused(damage, tmp_path):
    write(tmp_path / "pets.jsonl.gz", [ROW] * 50)
    (tmp_path / "pets.jsonl.gz").write_bytes(damage((tmp_path / "pets.jsonl.gz").read_bytes()))
    with pytest.raises(DataError, match=r"pets.jsonl.gz: cannot be read \("):
        load(tmp_path / "pets.jsonl.gz", "jsonl")


# The cache


def test_ids_and_vocabulary_are_read_from_the_cache_and_made_anew_if_damaged(tmp_path, monkeypatch):
    (tmp_path / "pets.csv").write_text(TABLE)
    first = load(tmp_path / "pets.csv")
    ids = first.x.clone()  # the set's own lie in the file
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "_encode", lambda *_: pytest.fail("encoded again"))
        assert torch.equal(load(tmp_path / "pets.csv").x, ids)
    for path in (*cache_folder().glob("*.json"), *cache_folder().glob("*.npy")):
        path.write_bytes(path.read_bytes()[:40])
    again = load(tmp_path / "pets.csv")
    assert torch.equal(again.x, ids)
    assert again.vocabulary == first.vocabulary
    assert not list(cache_folder().glob("*.tmp"))


def test_another_text_or_part_is_another_entry(tmp_path):
    for content in (TABLE, TABLE.replace("bob,train", "bob,test"), TABLE.replace("dog", "fox")):
        (tmp_path / "pets.csv").write_text(content)
        load(tmp_path / "pets.csv")
    assert len(list(cache_folder().glob("pets-*.npy"))) == len(list(cache_folder().glob("pets-*.json"))) == 3


def test_where_nothing_can_be_kept_texts_are_still_read(tmp_path, caplog):
    (tmp_path / "pets.csv").write_text(TABLE)
    (tmp_path / "home").write_text("no folder")
    assert load(tmp_path / "pets.csv").y.tolist() == [0, 1, 0]
    assert "the vocabulary is not kept" in caplog.text


# Well-known sets


@pytest.mark.parametrize(("name", "known"), KNOWN, ids=lambda value: getattr(value, "name", value))
def test_a_known_file_is_read_and_what_it_differs_in_is_logged_once(name, known, tmp_path, caplog):
    rows = [{**ROW, "text": "To be " * (60 if name == "shakespeare" else 1), "split": "test" if i % 5 == 0 else "train"}
            for i in range(known.samples or 10)]  # fmt: skip
    write(tmp_path / known.name, rows)
    for _ in range(2):
        load_dataset.cache_clear()
        notes = load_dataset(name, str(tmp_path)).notes
    assert notes == tuple(f"{name} from {known.name}: {caveat}" for caveat in known.caveats)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == list(notes)
    write(tmp_path / known.name, rows[:-1])
    load_dataset.cache_clear()
    assert load_dataset(name, str(tmp_path)).notes == () or not known.samples


def test_titles_come_before_texts_and_extra_rows_are_left_out(tmp_path):
    rows = [{**ROW, "label": 3, "title": "a b", "text": "a b c c"}, {**ROW, "split": "extra"}, ROW]
    write(tmp_path / "ag_news.jsonl.gz", rows)
    found = load_dataset("ag_news", str(tmp_path))
    assert words(found, "ag_news") == [["a", "b", "a", "b", "c", "c"], ["a", "[UNK]"]]
    assert (found.y.tolist(), found.classes[3]) == ([3, 0], "Sci/Tech")


def test_domains_can_be_chosen_by_name(tmp_path):
    write(tmp_path / "amazon.jsonl.gz", [{**ROW, "domain": name} for name in ("dvd", "books", "baby")])
    found = load_dataset("amazon:books, dvd", str(tmp_path))
    assert (found.domains, found.domain.tolist()) == (("books", "dvd"), [1, 0])
    assert load_dataset("amazon:books,dvd@1", str(tmp_path)).x.shape == (2, 1)
    assert load_dataset("amazon:@1", str(tmp_path)).x.shape == (3, 1)
    with pytest.raises(DataError, match=r"has no domain 'toys'; it has baby, books, dvd"):
        load_dataset("amazon:toys", str(tmp_path))


def test_a_label_of_a_well_known_set_is_checked(tmp_path):
    write(tmp_path / "ag_news.jsonl.gz", [ROW, {**ROW, "label": 4}])
    with pytest.raises(
        DataError, match=r"ag_news.jsonl.gz, line 2: label '4' is none of the classes '0', '1', '2', '3'"
    ):
        load_dataset("ag_news", str(tmp_path))


def test_texts_of_hugging_face_become_a_file_of_ours(tmp_path, monkeypatch):
    module = ModuleType("datasets")
    parts = {
        "train": [{"title": "A", "content": " cat\n", "label": 9}],
        "test": [{"title": "B", "content": "dog", "label": 0}],
    }
    module.load_dataset = lambda *path: parts if path == ("fancyzhx/dbpedia_14",) else {}
    monkeypatch.setitem(sys.modules, "datasets", module)
    named.fetch("dbpedia14", tmp_path)
    found = load_dataset("dbpedia14", str(tmp_path))
    assert (found.y.tolist(), found.test.tolist(), found.x.shape) == ([9, 0], [False, True], (2, 2))
    assert b"A cat" in gzip.decompress((tmp_path / "dbpedia14.jsonl.gz").read_bytes())
    with pytest.raises(DataError, match=r"fancyzhx/ag_news of Hugging Face cannot be had .*'train'"):
        named.fetch("ag_news", tmp_path)
    assert not (tmp_path / "ag_news.jsonl.gz").exists()


# What is shown of them


@pytest.fixture
def isoproto(monkeypatch, capsys):
    return command_line(monkeypatch, capsys)


def test_a_set_of_texts_is_described_counted_and_read_back(isoproto, tmp_path):
    long = "A cat, a dog. " * 20
    write(tmp_path / "amazon.jsonl.gz", [{**ROW, "text": long}, {**ROW, "split": "test", "label": 1, "text": "A fox"}])
    status, out, _ = isoproto("data", "amazon", "--data-dir", str(tmp_path))
    lines = [line.strip() for line in out.splitlines()]
    assert status == 0
    assert "texts: 2, up to 120 tokens of a vocabulary of 7" in lines
    assert ["negative", "1", "0"] in [line.split() for line in lines]
    assert f"negative   books    {'a cat , a dog . ' * 6} ..." in lines
    assert "positive   books    a [UNK]" in lines


def test_a_text_without_domains_is_listed_with_its_class_alone(isoproto, tmp_path):
    (tmp_path / "pets.csv").write_text("text,label\ncat cat,pet\nfox fox,wild\n")
    _, out, _ = isoproto("data", "csv:pets.csv", "--data-dir", str(tmp_path))
    assert [line.strip() for line in out.splitlines()][-3:-1] == ["pet     cat cat", "wild    fox fox"]


@pytest.mark.parametrize(
    ("labels", "counted"),
    [
        (2, ["domain", "train", "test", "train", "test"]),  # a row for each domain
        (9, ["class", "train", "test"]),  # domains added up
    ],
)
def test_many_domains_are_counted_where_there_is_room(isoproto, tmp_path, labels, counted):
    rows = [{**ROW, "domain": f"d{n}", "label": str(n % labels)} for n in range(9)]
    write(tmp_path / "many.jsonl", rows)
    _, out, _ = isoproto("data", "jsonl:many.jsonl", "--data-dir", str(tmp_path))
    lines = [line.split() for line in out.splitlines()]
    assert counted in lines
    assert (["d8", "1", "0", "0", "0"] in lines) == (labels == 2)
    assert (["8", "1", "0"] in lines) == (["9", "domains", "9", "domains"] in lines) == (labels == 9)


def test_characters_are_read_back_one_by_one(tmp_path):
    write(tmp_path / "shakespeare.jsonl.gz", [speech("A", "éo be\n" * 30)])
    shown = excerpts(load_dataset("shakespeare:6", str(tmp_path)), classes=80, samples=1)
    assert shown == [("space", "A", "\N{REPLACEMENT CHARACTER}o be\\n" * 13 + "\N{REPLACEMENT CHARACTER}o")]


def test_samples_are_the_same_ones_each_time_and_so_many_of_each_class(tmp_path):
    rows = "".join(f"{word} {word},{label}\n" for label in "ab" for word in "uvwxyz")
    found = load_dataset(f"csv:{table(tmp_path, rows)}")
    assert excerpts(found) == excerpts(found)
    assert [label for label, _, _ in excerpts(found, samples=2)] == ["a", "a", "b", "b"]
    assert len({text for label, _, text in excerpts(found, samples=6) if label == "a"}) == 6


def test_a_sheet_of_texts_is_refused(isoproto, tmp_path):
    write(tmp_path / "amazon.jsonl.gz", [ROW])
    status, _, err = isoproto("data", "amazon", "--data-dir", str(tmp_path), "--sheet", str(tmp_path / "x.png"))
    assert status == 1
    assert "data 'amazon' is text, of which samples are printed; leave out --sheet" in err


def table(folder, rows):
    """Write rows below the names of the columns, and return the path."""
    path = folder / "table.csv"
    path.write_text(f"text,label\n{rows}")
    return path


# Shakespeare


def speech(speaker, text, split="train"):
    return {"speaker": speaker, "split": split, "text": text}


def test_windows_of_a_role_and_the_character_that_follows(tmp_path):
    text = "".join(np.random.default_rng(0).choice(list(ALPHABET[1:]), 199))
    rows = [speech("B", text[:99]), speech("B", text[99:]), speech("B", "x" * 81, "test"), speech("A", "too short")]
    write(tmp_path / "shakespeare.jsonl.gz", rows)
    found = load_dataset("shakespeare", str(tmp_path))
    whole = f"{text[:99]}\n{text[99:]}"
    read = ["".join(ALPHABET[i - 2] for i in row) for row in found.x.tolist()]
    assert read == [whole[:80], whole[81:161], "x" * 80]
    assert [ALPHABET[y] for y in found.y] == [whole[80], whole[161], "x"]
    assert (found.test.tolist(), found.domains, found.vocabulary) == ([False, False, True], ("B",), 82)
    assert len(found.classes) == len(set(found.classes)) == 80
    assert len(load_dataset("shakespeare:10", str(tmp_path)).x) == 12 + 1


def test_characters_outside_the_alphabet_are_unknown_and_never_asked_for(tmp_path):
    write(tmp_path / "shakespeare.jsonl.gz", [speech("A", "é" + "a" * 79 + "€" + "b" * 160 + "ü" * 3)])
    found = load_dataset("shakespeare:1", str(tmp_path))
    assert (found.x[0] == 2 + ALPHABET.index("a")).sum() == 79
    assert (found.x == 1).any(1).sum() == 80
    assert found.y.unique().tolist() == [ALPHABET.index("b")]


@pytest.mark.parametrize("step", ["0", "x", "-3"])
def test_a_step_that_is_none_is_refused(step, tmp_path):
    with pytest.raises(DataError, match=rf"shakespeare:{step}': the step between windows must be a whole number > 0"):
        load_dataset(f"shakespeare:{step}", str(tmp_path))


def test_half_a_character_of_a_speech_is_refused(tmp_path):
    write(tmp_path / "shakespeare.jsonl.gz", [speech("A", "a" * 200), speech("A", "b\ud83d")])
    with pytest.raises(DataError, match=r"shakespeare.jsonl.gz, line 2: 'text' holds half a character"):
        load_dataset("shakespeare", str(tmp_path))


def test_speeches_too_short_for_windows_are_refused(tmp_path):
    write(tmp_path / "shakespeare.jsonl.gz", [speech("A", "To be")])
    with pytest.raises(DataError, match="no role speaks the 162 characters that make 2 training windows"):
        load_dataset("shakespeare", str(tmp_path))


def test_a_client_is_a_role_from_small_to_large(tmp_path):
    rows = [speech(role, "a" * length) for role, length in (("A", 900), ("B", 200), ("C", 400))]
    write(tmp_path / "shakespeare.jsonl.gz", rows)
    found = load_dataset("shakespeare", str(tmp_path))
    shares = split_clients(found, partition="user", clients=3, seed=0)
    assert [found.domains[int(found.domain[share.train[0]])] for share in shares] == ["B", "C", "A"]
    assert [len(share.train) + len(share.test) for share in shares] == [2, 4, 11]
    with pytest.raises(DataError, match="'user' cannot make 4 clients of 3 domains"):
        split_clients(found, partition="user", clients=4, seed=0)
