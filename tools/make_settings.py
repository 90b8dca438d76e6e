"""Write docs/settings.md, and the tables of arrays in docs/wire-schema.md, from the declarations in the code.

    make settings                # the same as: python tools/make_settings.py

A setting is declared in ``isoproto/settings/`` with its default, its range and its meaning. An array of a message is
declared by the part that sends it. Change the declaration, never a table; a test compares them.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from isoproto.config import AUTO, SECTIONS, MethodSettings, Scalar, key_of
from isoproto.parts import PARTS
from isoproto.parts.base import Field
from isoproto.settings.rules import Rule
from isoproto.wire.broadcast import DOWN
from isoproto.wire.train_reply import UP
from strategies import STRATEGIES

DOCS = Path(__file__).parents[1] / "docs"

HEAD = """# Settings

Every setting of a run is a key of the run config: `isoproto run -c "rounds=5"`, `flwr run . -c "rounds=5"`, or a line
of a TOML file. Wrong keys, types and values are refused before anything starts, all of them in one message.

This page is written by `make settings` from the declarations in `isoproto/settings/`. Change the declaration, then run
the command.

**What `auto` means.** The method decides. The value of such a setting is found in this order:

1. the value in your run config, if it is not `auto`;
2. the value that the method sets: see [What each method sets](#what-each-method-sets);
3. for `lambda`, `gamma`: the weights of the alignment loss that the run uses. If you choose another loss than the
   method's, its values of `lambda`, `gamma` and `missing` do not apply;
4. the value that this page gives after "`auto` is".

`strategies.resolve.resolve` does this, and `config.toml` of the run folder holds the result. The exception is `device`:
there `auto` stays, because every machine decides for itself.

**Names in code.** A key is the name of a field in kebab-case: `batch-size` is `batch_size`, `hyper.size` is
`hyper__size`, and `lambda` is `lambda_`.
"""


def settings_page() -> str:
    """Return the text of docs/settings.md."""
    sections = [_section(section) for section in SECTIONS]
    return "\n".join([HEAD, *sections, _methods()])


def _section(section: type) -> str:
    rows = [
        (f"`{key_of(f)}`", literal(f.default), _may_be(f), f.metadata["rule"].doc + _auto(f.metadata["rule"]))
        for f in dataclasses.fields(section)
    ]
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", section.__name__).capitalize()
    table = _table(("key", "default", "may be", "what it does"), rows)
    return f"## {title}\n\n{inspect.cleandoc(section.__doc__ or '')}\n\n{table}"


def _may_be(field: "dataclasses.Field[Scalar]") -> str:
    rule: Rule = field.metadata["rule"]
    if rule.choices:
        return ", ".join(f"`{choice}`" for choice in rule.choices)
    if field.type is bool:
        return "`true`, `false`"
    if field.type is str:
        return "text"
    wanted = rule.wanted().removesuffix("finite").removesuffix(" and ")
    kind = "whole number" if field.type is int else "number"
    return f"{f'`{AUTO}`, or a ' if field.default == AUTO else ''}{kind} {wanted}".strip()


def _auto(rule: Rule) -> str:
    return "" if rule.auto is None else f" `auto` is {literal(rule.auto)}."


def _methods() -> str:
    fields = [f for section in MethodSettings.__bases__ for f in dataclasses.fields(section)]
    rows = []
    for name, strategy in STRATEGIES.items():
        values = ((f, getattr(strategy.method, f.name)) for f in fields)
        rows.append((f"`{name}`", ", ".join(f"`{key_of(f)} = {value}`" for f, value in values if value != f.default)))
    about = "A method leaves all other settings as they are. Each row is the `method` of a class in `strategies/`."
    return f"## What each method sets\n\n{about}\n\n{_table(('strategy', 'settings'), rows)}"


def literal(value: object) -> str:
    """Return a value as a run config takes it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value != "" else "empty"


def arrays(fields: Iterable[Field]) -> str:
    """Return the table of the arrays that one message may hold."""
    owners: dict[str, list[str]] = {}
    for part in PARTS:
        for declared in (*part.down, *part.up):
            owners.setdefault(declared.name, []).append(f"`{part.__name__}`")
    rows = [
        (
            f"`{f.name}`",
            f"`[{', '.join(f.shape.split())}]` {_stored(f)}",
            "yes" if f.rounded else "no",
            f"`{f.may_send}`" if f.may_send else "-",
            ", ".join(dict.fromkeys(owners.get(f.name, ["no part: it is always sent"]))),
        )
        for f in fields
    ]
    return _table(("array", "shape, dtype", "may be rounded", "word of `may-send`", "part that declares it"), rows)


def _stored(field: Field) -> str:
    return "uint8" if field.dtype == torch.bool else str(field.dtype).removeprefix("torch.")


def wire_page(text: str) -> str:
    """Return docs/wire-schema.md with its tables of arrays made anew."""
    for name, fields in (("down", DOWN), ("up", UP)):
        begin, end = f"<!-- arrays {name}: written by make settings -->\n", f"<!-- end of arrays {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{arrays(fields.values())}\n{end}{rest.partition(end)[2]}"
    return text


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(_lines(heads, rows)) + "\n"


def _lines(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def main() -> None:
    """Write both pages."""
    (DOCS / "settings.md").write_text(settings_page(), "utf-8")
    schema = DOCS / "wire-schema.md"
    schema.write_text(wire_page(schema.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
