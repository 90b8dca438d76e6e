"""The data sets ``csv:FILE`` and ``jsonl:FILE``: a user's labelled texts."""

from pathlib import Path

import torch

from isoproto.data.base import TextDataset
from isoproto.data.folders import find, split_number
from isoproto.data.names import clean, in_order
from isoproto.data.rows import Texts, read_texts, text_lines
from isoproto.data.tokens import LENGTH, tokenise
from isoproto.errors import DataError


def load_texts(argument: str, folder: Path, *, kind: str) -> TextDataset:
    """Read a file of texts with the columns ``text`` and ``label``; optionally ``domain`` or ``user``, and ``split``.

    ``split`` is ``train`` or ``test``; without it all rows are for training. The classes are the sorted labels, and
    numbers are sorted by size. A file in the same folder can fix the list of classes, one name per line:
    ``reviews.classes.txt`` for ``reviews.csv``.

    Args:
        argument: Path of the file, relative to ``folder`` and with ``~`` allowed. The file is gzipped if its name ends
            in ``.gz``. Optionally ``@`` and the number of tokens kept of a text follow.
        folder: See ``data_folder``.
        kind: ``csv`` or ``jsonl``.

    Raises:
        DataError: If the file is missing or something in it cannot be used; the error names the line.
    """
    where, length = split_number(argument)
    path = find(kind, where, folder)
    rows = read_texts(path, kind)
    return text_dataset(path.name.partition(".")[0], rows, _classes(path, rows), length=length)


def text_dataset(
    name: str,
    rows: Texts,
    classes: tuple[str, ...],
    labels: tuple[str, ...] | None = None,
    length: int | None = None,
) -> TextDataset:
    """Make a data set of rows of text; domains are numbered in the order of their names.

    Args:
        name: Name of the set, for the file names in the cache.
        rows: The rows.
        classes: Names of the classes.
        labels: The label that the file has for each class; by default the names of the classes.
        length: Number of tokens kept of a text; by default 200.

    Raises:
        DataError: If a row has another label.
    """
    numbers = rows.numbers(labels or classes)
    x, words = tokenise(name, rows.texts, rows.test, length or LENGTH)
    domains = in_order(rows.groups)
    place = {domain: i for i, domain in enumerate(domains)}
    return TextDataset(
        x=x,
        y=torch.tensor(numbers),
        test=torch.tensor(rows.test),
        classes=classes,
        domain=torch.tensor([place[group] for group in rows.groups]) if domains else None,
        domains=domains,
        source=str(rows.path),
        words=words,
    )


def _classes(path: Path, rows: Texts) -> tuple[str, ...]:
    listed = _list_beside(path)
    if listed is not None:
        names = [clean(line, listed) for line in text_lines(listed)]
        if len(set(names)) < len(names) or "" in names or not names:
            raise DataError(f"{listed}: must name each class once, a line each and none empty, got {names!r:.200}")
        return tuple(names)
    return in_order(rows.labels)


def _list_beside(path: Path) -> Path | None:
    """Return the list of classes beside a file, under the longest part of the file's name that has one."""
    parts = path.name.split(".")
    names = (path.with_name(f"{'.'.join(parts[:end])}.classes.txt") for end in range(len(parts), 0, -1))
    return next((name for name in names if name.is_file()), None)
