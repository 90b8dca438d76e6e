"""``isoproto data`` as it is typed, and its exit statuses."""

import re

import numpy as np
import pytest
from PIL import Image

import server_app.app
from isoproto.cli import main as cli
from isoproto.data import DATASETS, INFOS, folders, load_dataset, named, sources
from isoproto.data.contact_sheet import contact_sheet
from isoproto.data.npz import load_npz
from tests.fakes import command_line


@pytest.fixture
def isoproto(tmp_path, monkeypatch, capsys):
    """Return a function that types a command and returns its exit status, output and error output."""
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    load_dataset.cache_clear()
    return command_line(monkeypatch, capsys)


def write_pets(path):
    """Four grey pictures of two classes and two domains, each of a shade of its own."""
    x = np.repeat(np.array([10, 20, 30, 40], np.uint8), 36).reshape(4, 6, 6)
    np.savez(
        path,
        train_x=x[:3],
        train_y=np.array([0, 1, 0]),
        train_domain=np.array([0, 0, 1]),
        test_x=x[3:],
        test_y=np.array([1]),
        test_domain=np.array([1]),
        classes=np.array(["cat", "dog"]),
        domains=np.array(["photo", "sketch"]),
    )


def test_all_names_are_listed(isoproto):
    status, out, _ = isoproto("data")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if line.strip()][2:] == list(INFOS)


def test_a_set_is_described_counted_and_drawn(isoproto, tmp_path):
    write_pets(tmp_path / "pacs.npz")
    sheet = tmp_path / "new" / "pets.png"
    status, out, _ = isoproto("data", "pacs", "--data-dir", str(tmp_path), "--sheet", str(sheet))
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["cat", "1", "0", "1", "0"] in lines
    assert ["dog", "1", "0", "0", "1"] in lines
    assert ["all", "2", "0", "1", "1"] in lines
    assert f"found: {tmp_path / 'pacs.npz'}\n" in out
    assert "pictures: 4, 6x6 grey\n" in out
    assert out.endswith(f"samples: {sheet}\n")
    with Image.open(sheet) as image:
        assert {10, 20, 30, 40} <= {shade for _, shade in image.convert("L").getcolors()}


def test_what_to_know_of_a_copy_is_said_once(isoproto, tmp_path, monkeypatch, caplog):
    """On the screen; the log, which goes there too, leaves it out."""
    write_pets(tmp_path / "pacs64.npz")
    monkeypatch.setattr(sources, "notes_on", lambda *_: ("pacs: half of it",))
    status, out, _ = isoproto("data", "pacs", "--data-dir", str(tmp_path))
    assert (status, out.count("pacs: half of it"), caplog.text.count("half of it")) == (0, 1, 0)
    load_dataset.cache_clear()
    folders.warn_once.cache_clear()
    load_dataset("pacs", str(tmp_path))
    assert caplog.text.count("half of it") == 1


def test_a_set_that_is_not_there_says_where_it_was_looked_for_and_how_to_get_it(isoproto, tmp_path):
    status, out, err = isoproto("data", "pacs", "--data-dir", str(tmp_path))
    assert status == 1
    assert (
        f"looked for, in this order: {tmp_path / 'pacs.npz'}, {tmp_path / 'pacs64.npz'}, {tmp_path / 'pacs'}/\n" in out
    )
    assert "licence: " in out
    assert "error: data 'pacs': found none of" in err
    assert "`isoproto data pacs --download` fetches it" in err


def test_a_set_without_a_row_is_described_by_its_loader(isoproto, tmp_path, monkeypatch):
    """A new data set is one file and one line in ``DATASETS``; ``INFOS`` may say more of it."""

    def load_pets(argument, folder):
        """Read the pets of our street.

        Nobody else has them.
        """
        return load_npz("street.npz", folder)

    monkeypatch.setitem(DATASETS, "pets", load_pets)
    write_pets(tmp_path / "street.npz")
    status, out, _ = isoproto("data", "pets", "--data-dir", str(tmp_path))
    assert status == 0
    assert out.startswith("pets: Read the pets of our street.\nlicence: not stated\nhow to get it: not stated")
    assert f"found: {tmp_path / 'street.npz'}\npictures: 4, 6x6 grey\n" in out
    assert ["pets", "Read the pets of our street."] in [
        re.split("  +", line.strip()) for line in isoproto("data")[1].splitlines()
    ]
    status, _, err = isoproto("data", "pets", "--data-dir", str(tmp_path), "--download")
    assert (status, "data 'pets' cannot be fetched" in err) == (1, True)


def test_your_own_file_is_shown_too(isoproto, tmp_path):
    write_pets(tmp_path / "pets.npz")
    status, out, _ = isoproto("data", "npz:pets.npz", "--data-dir", str(tmp_path))
    assert (status, "looked for" in out) == (0, False)
    assert f"samples: {tmp_path / 'home' / 'cache' / 'npz.png'}" in out


def test_a_path_may_start_from_where_the_command_is_typed(isoproto, tmp_path, monkeypatch):
    write_pets(tmp_path / "pets.npz")
    monkeypatch.chdir(tmp_path)
    status, out, _ = isoproto("data", "npz:pets.npz")
    assert (status, f"found: {tmp_path / 'pets.npz'}" in out) == (0, True)


@pytest.mark.parametrize(
    ("data", "meant"),
    [
        ("npz:pets", "npz:HERE/pets"),
        ("imagefolder:pets@64", "imagefolder:HERE/pets@64"),
        ("csv:pets@9", "csv:HERE/pets@9"),
        ("module:own.py:pets", "module:HERE/own.py:pets"),
        ("module:pets:own", "module:pets:own"),  # a module, whatever lies here
        ("csv:elsewhere.csv", "csv:elsewhere.csv"),
        ("amazon:pets", "amazon:pets"),  # no path, whatever lies here
    ],
)
def test_a_run_takes_paths_from_where_it_is_typed(isoproto, tmp_path, monkeypatch, data, meant):
    (tmp_path / "pets").mkdir()
    (tmp_path / "own.py").write_text("")
    monkeypatch.chdir(tmp_path)
    runs = []
    monkeypatch.setattr(cli, "_try_clients", lambda values, clients: None)  # the data are not there
    monkeypatch.setattr(server_app.app, "run_federation", lambda grid, values: runs.append(values["data"]))
    assert isoproto("run", "-c", f"data='{data}'")[0] == 0
    assert runs == [meant.replace("HERE", str(tmp_path))]


def test_a_name_that_nobody_has_is_refused(isoproto):
    status, _, err = isoproto("data", "pasc")
    assert status == 1
    assert "unknown data 'pasc'" in err


def test_a_set_is_fetched_on_request_and_only_if_it_is_not_there(isoproto, tmp_path, monkeypatch):
    fetched = []

    def fetch(name, folder):
        fetched.append(name)
        write_pets(folder / f"{name}.npz")

    monkeypatch.setattr(named, "fetch", fetch)
    first, again = (isoproto("data", "pacs", "--download", "--data-dir", str(tmp_path)) for _ in range(2))
    assert (first[0], again[0], fetched) == (0, 0, ["pacs"])
    assert ["not fetched: something of it is in the folder already\n" in out for _, out, _ in (first, again)] == [
        False,
        True,
    ]


def test_a_set_of_parts_is_here_if_a_part_is(isoproto, tmp_path):
    write_pets(tmp_path / "usps.npz")
    status, _, err = isoproto("data", "digits", "--download", "--data-dir", str(tmp_path))
    assert (status, "found none of mnist as" in err, "cannot be fetched" in err) == (1, True, False)


def test_a_damaged_set_is_not_fetched_over(isoproto, tmp_path, monkeypatch):
    (tmp_path / "pacs.npz").write_bytes(b"half")
    monkeypatch.setattr(named, "fetch", lambda *_: pytest.fail("fetched"))
    status, _, err = isoproto("data", "pacs", "--download", "--data-dir", str(tmp_path))
    assert status == 1
    assert "not an npz file, or cut short" in err


def test_a_sheet_that_cannot_be_written_is_an_error(isoproto, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = isoproto("data", "digits4", "--sheet", str(tmp_path / "file" / "x.png"))
    assert status == 1
    assert "cannot write" in err


def test_a_sheet_has_a_row_for_some_of_many_classes(tmp_path):
    x = np.zeros((100, 32, 32), np.uint8)
    np.savez(tmp_path / "many.npz", train_x=x, train_y=np.arange(100), classes=np.arange(100).astype(str))
    many = load_dataset("npz:many.npz", str(tmp_path))
    few, all_ = (contact_sheet(many, classes=classes).height for classes in (10, 1000))
    assert (all_ - 18) == 10 * (few - 18)
