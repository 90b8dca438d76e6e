"""The command ``isoproto data``. It shows what a data set is, where it is on this machine, and what it looks like."""

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isoproto.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from isoproto.data import Dataset, TextDataset
    from isoproto.data.info import DatasetInfo

_WIDE = 160  # characters of a line, so that a narrow screen does not cut the names of classes and domains
_COLUMNS = 8  # how many names fit side by side
_EXCERPT = 100  # how many characters of a text are shown
# The kinds of data sets whose names hold a path, and what may follow that path.
_NUMBER = r"@[1-9]\d*$"
_AFTER_PATH = {"npz": "$", "csv": _NUMBER, "jsonl": _NUMBER, "imagefolder": _NUMBER, "module": r"(?<=\.py):\w+$"}

app = typer.Typer()


def from_here(data: str) -> str:
    """Make the path in a data set's name absolute, if the path exists from the folder of the command.

    Example:
        >>> from_here("npz:nowhere.npz"), from_here("amazon:books")
        ('npz:nowhere.npz', 'amazon:books')
    """
    kind, _, where = data.partition(":")
    path = re.sub(_AFTER_PATH[kind], "", where) if kind in _AFTER_PATH else ""
    return f"{kind}:{Path(where).absolute()}" if path and Path(path).exists() else data


@app.command()
def data(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="Data set, as in the setting `data`. Without it, all names are listed."),
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with data files; by default `data` in $ISOPROTO_HOME.")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Download the set into the folder first, unless it is there.")
    ] = False,
    sheet: Annotated[
        Path | None,
        typer.Option("--sheet", help="File for a sheet of sample pictures; by default in the cache folder."),
    ] = None,
) -> None:
    """Show what a data set is, where it was found, its classes and some samples. The status is 1 if it is missing."""
    from rich.console import Console

    from isoproto.data import TextDataset, describe, load_dataset
    from isoproto.data.folders import cache_folder, data_folder
    from isoproto.data.named import fetch, is_here

    console = Console()
    wide = Console(width=max(console.width, _WIDE))
    if not name:
        console.print(_names())
        return
    name = from_here(name)
    kind = name.partition(":")[0]
    info, folder = describe(kind), data_folder(str(data_dir or "")).absolute()
    _say_where(name, info, folder)
    if download and is_here(name, folder):
        typer.echo("not fetched: something of it is in the folder already")
    elif download:
        fetch(name, folder)
    with _notes_unlogged():  # they are shown below
        dataset = load_dataset(name, str(folder))
    typer.echo(f"found: {dataset.source}")
    for note in dict.fromkeys((*info.caveats, *dataset.notes)):
        typer.echo(f"caveat: {note}")
    if not isinstance(dataset, TextDataset):
        _show_pictures(wide, dataset, sheet or cache_folder() / f"{kind}.png")
    elif sheet:
        raise ConfigError(f"data {name!r} is text, of which samples are printed; leave out --sheet, got {sheet}")
    else:
        _show_texts(wide, dataset)


def _say_where(name: str, info: "DatasetInfo", folder: Path) -> None:
    """Print what a data set is, where it is looked for, and how to get it."""
    from isoproto.data.named import how_to_get, looked_for

    typer.echo(f"{name}: {info.what}\nlicence: {info.licence}")
    if looked := looked_for(name, folder):
        typer.echo("looked for, in this order: " + ", ".join(looked))
    typer.echo(f"how to get it: {how_to_get(name)}")


def _show_texts(console: "Console", dataset: "TextDataset") -> None:
    """Print how many texts there are of each class, and the beginnings of some."""
    length = dataset.x.shape[1]
    typer.echo(f"texts: {len(dataset.x):,}, up to {length} tokens of a vocabulary of {dataset.vocabulary:,}")
    console.print(_counts(dataset))
    console.print(_excerpts(dataset))


def _show_pictures(console: "Console", dataset: "Dataset", path: Path) -> None:
    """Print how many pictures there are of each class, and draw some of them into a file."""
    channels, height, width = dataset.x.shape[1:]
    typer.echo(f"pictures: {len(dataset.x):,}, {height}x{width} {'grey' if channels == 1 else 'colour'}")
    console.print(_counts(dataset))
    _draw(dataset, path)
    typer.echo(f"samples: {path}")


@contextlib.contextmanager
def _notes_unlogged() -> Iterator[None]:
    from isoproto.data.sources import NOTES

    log = logging.getLogger(NOTES)
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def _names() -> "Table":
    """Return a table of the names of all data sets."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from isoproto.data import DATASETS, describe

    table = Table("data", "what", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in DATASETS:
        table.add_row(name, escape(describe(name).what))
    return table


def _counts(dataset: "Dataset") -> "Table":
    """Return a table of training and test samples: a row for each class and two columns for each domain.

    With many domains and few classes, rows are domains and columns are classes. With many of both, all domains are
    added up in one column.
    """
    import numpy as np
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    title, rows, columns = "class", dataset.classes, dataset.domains or ("",)
    domain = 0 if dataset.domain is None else dataset.domain.numpy()
    place = (dataset.test.numpy() * len(rows) + dataset.y.numpy()) * len(columns) + domain
    counts = np.bincount(place, minlength=2 * len(rows) * len(columns)).reshape(2, len(rows), len(columns))
    if len(columns) > _COLUMNS >= len(rows):
        title, rows, columns, counts = "domain", columns, rows, counts.transpose(0, 2, 1)
    elif len(columns) > _COLUMNS:
        columns, counts = (f"{len(columns)} domains",), counts.sum(2, keepdims=True)
    table = Table(title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        for part in ("train", "test"):
            table.add_column(escape(f"{column}\n{part}".strip()), justify="right")
    cells = counts.transpose(1, 2, 0).reshape(len(rows), -1)
    for name, row in zip(rows, cells, strict=True):
        table.add_row(escape(name), *map("{:,}".format, row))
    table.add_section()
    table.add_row("all", *map("{:,}".format, cells.sum(0)))
    return table


def _excerpts(dataset: "TextDataset") -> "Table":
    """Return a table of the beginnings of some texts."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from isoproto.data.excerpts import excerpts

    table = Table("class", box=box.SIMPLE_HEAD, pad_edge=False)
    if dataset.domains:
        table.add_column("domain")
    table.add_column("sample", no_wrap=True)
    for label, domain, text in excerpts(dataset):
        shown = text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 4]} ..."
        table.add_row(*map(escape, (label, domain, shown) if dataset.domains else (label, shown)))
    return table


def _draw(dataset: "Dataset", path: Path) -> None:
    from isoproto.data.contact_sheet import contact_sheet

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        contact_sheet(dataset).save(path, "PNG")
    except OSError as err:
        raise DataError(f"cannot write {path} ({err.strerror}); choose another file with --sheet") from err
