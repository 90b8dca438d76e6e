"""Pieces of HTML that the sections of the report are made of. All values are escaped here."""

from collections.abc import Iterable, Sequence
from html import escape

from isoproto.report.formats import plain


def html_table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Iterable[int] = (),
    long: Iterable[int] = (),
) -> str:
    """Return an HTML table of plain values, in which the first cell of a row is the row's heading.

    Args:
        caption: Its title; empty for none.
        headings: The names of the columns.
        rows: The cells of each row.
        numbers: Which columns hold numbers, which stand to the right.
        long: Which columns hold long text, which may be broken inside a word.
    """
    kinds = {**dict.fromkeys(numbers, ' class="n"'), **dict.fromkeys(long, ' class="long"')}

    def cell(column: int, value: object, scope: str = "") -> str:
        start, end = (f'th scope="{scope}"', "th") if scope else ("td", "td")
        return f"<{start}{kinds.get(column, '')}>{html_text(value)}</{end}>"

    head = "".join(cell(i, heading, "col") for i, heading in enumerate(headings))
    body = "".join(
        f"<tr>{''.join(cell(i, value, '' if i else 'row') for i, value in enumerate(row))}</tr>" for row in rows
    )
    title = f"<caption>{html_text(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def panels(tables: Iterable[str]) -> str:
    """Return tables, each in a frame of its own that scrolls if the table is long."""
    return "".join(f'<div class="panel"><div class="tall" tabindex="0">{table}</div></div>' for table in tables)


def html_text(value: object) -> str:
    """Return a value as the text of an element or attribute; nothing in it is taken for markup."""
    return escape(plain(value))
