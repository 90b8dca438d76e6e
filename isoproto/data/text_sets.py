"""Well-known sets of texts by name: finding one on this machine and reading it."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

from isoproto.data.base import TextDataset
from isoproto.data.folders import split_number
from isoproto.data.info import INFOS
from isoproto.data.named import looked_for, missing
from isoproto.data.rows import Texts, read_texts
from isoproto.data.shakespeare import windows
from isoproto.data.sources import notes_on, with_notes
from isoproto.data.text import text_dataset
from isoproto.errors import DataError

CLASSES: dict[str, tuple[str, ...]] = {
    "ag_news": ("World", "Sports", "Business", "Sci/Tech"),
    "amazon": ("negative", "positive"),
    "dbpedia14": (
        *("Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation"),
        *("Building", "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork"),
    ),
}


def load_text_set(argument: str, folder: Path, *, name: str) -> TextDataset:
    """Read a set of texts from the first of its files that exists; nothing is downloaded.

    Labels in the file are numbers, in the order of ``CLASSES``.

    Args:
        argument: Domains to take, separated by commas; all if empty. Optionally ``@`` and the number of tokens kept of
            a text follow.
        folder: See ``data_folder``.
        name: Key of ``CLASSES``.

    Raises:
        DataError: If the set is not found, cannot be read, or has no such domain.
    """
    return _load(name, folder, lambda path: _labelled(name, argument, path))


def load_shakespeare(argument: str, folder: Path) -> TextDataset:
    """Read speeches by role, for predicting the next character; see ``windows``.

    Args:
        argument: Characters from the start of one window to the start of the next, by default 81.
        folder: See ``data_folder``.

    Raises:
        DataError: If the set is not found or cannot be read, or the argument is not a whole number above 0.
    """
    if argument and not (argument.isdecimal() and int(argument)):
        raise DataError(f"data 'shakespeare:{argument}': the step between windows must be a whole number > 0")
    steps = {"stride": int(argument)} if argument else {}
    return _load("shakespeare", folder, lambda path: windows(read_texts(path, "jsonl", label="speaker"), **steps))


def _load(name: str, folder: Path, read: Callable[[Path], TextDataset]) -> TextDataset:
    for known in INFOS[name].files:
        path = folder / known.name
        if path.is_file():
            return with_notes(read(path), notes_on(name, known, path, _count))
    raise missing(name, looked_for(name, folder))


def _count(path: Path) -> int:
    """Return the number of lines of a file; 0 if it cannot be read, which reading it will report."""
    try:
        with gzip.open(path) as file:
            return sum(1 for _ in file)
    except (OSError, EOFError, zlib.error):
        return 0


def _labelled(name: str, argument: str, path: Path) -> TextDataset:
    rows = read_texts(path, "jsonl", ignore=("extra",))
    classes = CLASSES[name]
    domains, length = split_number(argument)
    if domains:
        rows = _only(rows, [domain.strip() for domain in domains.split(",")], name)
    return text_dataset(name, rows, classes, tuple(map(str, range(len(classes)))), length)


def _only(rows: Texts, domains: list[str], name: str) -> Texts:
    """Return the rows that belong to the given domains."""
    if unknown := [domain for domain in domains if domain not in rows.groups]:
        have = ", ".join(sorted(set(rows.groups))) or "none"
        raise DataError(f"data '{name}:{','.join(domains)}': {rows.path} has no domain {unknown[0]!r}; it has {have}")
    chosen = [i for i, group in enumerate(rows.groups) if group in domains]
    return Texts(
        rows.path,
        lines=[rows.lines[i] for i in chosen],
        texts=[rows.texts[i] for i in chosen],
        labels=[rows.labels[i] for i in chosen],
        test=[rows.test[i] for i in chosen],
        groups=[rows.groups[i] for i in chosen],
    )
