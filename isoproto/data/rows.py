"""Read labelled texts from JSON lines or a CSV table; every error names the file and the line."""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isoproto.data.names import clean
from isoproto.errors import DataError

Row = tuple[int, Mapping[str, Any]]
_LONGEST_CELL = 2**31 - 1  # the csv module takes no more than 131,072 characters by default
_PACKED = (OSError, EOFError, zlib.error)  # gzip raises these for a file that is damaged or cut short


@dataclass(frozen=True, slots=True)
class Texts:
    """The ``N`` rows of a file, as one list for each column.

    Attributes:
        path: The file.
        lines: Number of the line on which each row ends, from 1.
        texts: The text of each row, never blank.
        labels: Name or number of each row's class, as text.
        test: Whether each row belongs to the official test part.
        groups: Domain or user of each row; empty if the file has no such column.
    """

    path: Path
    lines: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    test: list[bool] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def numbers(self, classes: Sequence[str]) -> list[int]:
        """Return the position of each row's label among ``classes``.

        Raises:
            DataError: If a label is not among them.
        """
        number = {name: i for i, name in enumerate(classes)}
        for line, label in zip(self.lines, self.labels, strict=True):
            if label not in number:
                shown = ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")
                raise DataError(f"{self.path}, line {line}: label {label!r} is none of the classes {shown}")
        return [number[label] for label in self.labels]


def read_texts(
    path: Path,
    kind: str,
    *,
    label: str = "label",
    group: Sequence[str] = ("domain", "user"),
    ignore: Sequence[str] = (),
) -> Texts:
    """Read a file of labelled texts, which is gzipped if its name ends in ``.gz``.

    The texts stand in the column ``text``. If there is a column ``title``, it is put before the text.

    Args:
        path: The file.
        kind: ``jsonl``: an object per line; ``csv``: a table whose first row names the columns.
        label: Column of classes: names or whole numbers.
        group: Columns that may hold a domain or user; the first one that exists is taken.
        ignore: Values of the column ``split`` whose rows are skipped. Its other values must be ``train`` or ``test``.
            Without this column all rows are for training.

    Raises:
        DataError: If the file cannot be read, a column is missing, a cell cannot be used, or there is no row.
    """
    found = Texts(path)
    chosen = ""
    for line, row in _READERS[kind](path):
        for column in ("text", label):
            if row.get(column) is None:
                names = ", ".join(map(repr, row)) or "none"
                raise DataError(f"{path}, line {line}: column {column!r} is missing, got {names}")
        split = row.get("split") or "train"
        if split in ignore:
            continue
        if split not in ("train", "test"):
            raise DataError(f"{path}, line {line}: 'split' must be 'train' or 'test', got {split!r}")
        column = next((column for column in group if row.get(column) is not None), "")
        if not found.lines:
            chosen = column
        if column != chosen:
            raise DataError(
                f"{path}, line {line}: all rows must have the same of {' or '.join(map(repr, group))}, or none; got "
                f"{column or 'none'}, and {chosen or 'none'} in the first row; fill it in everywhere"
            )
        parts = [part for part in (row.get("title"), row["text"]) if part]
        if not all(isinstance(part, str) for part in parts):
            raise DataError(f"{path}, line {line}: 'text' must be text, got {parts!r:.100}")
        text = " ".join(parts)
        if not text.strip():
            raise DataError(f"{path}, line {line}: the text is empty; give it some words or remove the row")
        _check_whole(path, line, "text", text)
        if chosen:
            found.groups.append(_name(path, line, chosen, row.get(chosen)))
        found.lines.append(line)
        found.texts.append(text)
        found.labels.append(_name(path, line, label, row[label]))
        found.test.append(split == "test")
    if not found.lines:
        raise DataError(f"{path}: holds no text; at least one row is needed")
    return found


def _name(path: Path, line: int, column: str, value: object) -> str:
    """Return a cell that names a class or a group, as text; anything but a name or a whole number is an error."""
    if (isinstance(value, str) and value.strip()) or type(value) is int:
        _check_whole(path, line, column, str(value))
        return clean(str(value), path)
    raise DataError(f"{path}, line {line}: {column!r} must be a name or a whole number, got {value!r:.100}")


def _check_whole(path: Path, line: int, column: str, value: str) -> None:
    """Raise an error if a text holds half a character.

    JSON writes some characters as two halves, and a text may have been cut between them.
    """
    try:
        value.encode()
    except UnicodeEncodeError as err:
        raise DataError(
            f"{path}, line {line}: {column!r} holds half a character, {value[err.start]!r} at place {err.start + 1}; "
            "cut it before, or remove the row"
        ) from err


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file with their line ends; the file is gzipped if its name ends in ``.gz``.

    Raises:
        DataError: If the file cannot be read, or a line is not UTF-8.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as err:
                    raise DataError(
                        f"{path}, line {number}: not UTF-8 (byte {err.object[err.start]:#04x} at place "
                        f"{err.start + 1}); save the file as UTF-8"
                    ) from err
    except _PACKED as err:
        raise DataError(f"{path}: cannot be read ({err}); it may be damaged or cut short") from err


def _json_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as err:
            raise DataError(f"{path}, line {number}: not JSON ({err})") from err
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: must be an object like {{...}}, got {line.strip()!r:.100}")
        yield number, row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"names must differ, got {', '.join(repr(name) for name, _ in pairs)}")
    return row


def table_rows(path: Path) -> Iterator[Row]:
    """Yield each row of a table, as the number of its last line and a mapping from column name to cell.

    Raises:
        DataError: If the table cannot be read or names a column twice, or a row has more or fewer cells than columns.
    """
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(text_lines(path), strict=True)
    try:
        header = next(reader, [])
        if twice := [name for name in header if name and header.count(name) > 1]:
            raise DataError(
                f"{path}, line {reader.line_num}: column {twice[0]!r} is named twice; rename or remove one of the two"
            )
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: has {len(cells)} cells, and the first row names {len(header)} "
                    "columns; put texts with commas into quotes"
                )
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as err:
        raise DataError(f"{path}, line {reader.line_num}: not CSV ({err})") from err


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {"jsonl": _json_rows, "csv": table_rows}
