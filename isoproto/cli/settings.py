"""The command ``isoproto settings``: every key of the run config, in words."""

import dataclasses
import difflib
import json
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoproto.config import OTHER_NAMES, SECTIONS, key_of
from isoproto.errors import ConfigError
from isoproto.settings.rules import Rule

app = typer.Typer()


@app.command()
def settings(
    key: Annotated[
        str, typer.Argument(metavar="[KEY]", help="A setting, or a part of its name. Without it, all are listed.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Say what settings there are, what they may be and what they do."""
    known = {entry["key"]: entry for section in SECTIONS for entry in map(_entry, dataclasses.fields(section))}
    key = OTHER_NAMES.get(key.replace("_", "-"), key)
    found = [known[key]] if key in known else [entry for name, entry in known.items() if key in name]
    if not found:
        close = difflib.get_close_matches(key, known, n=1)
        raise ConfigError(f"no setting has {key!r} in its name" + (f" (did you mean `{close[0]}`?)" if close else ""))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("what it does", min_width=40)
    for entry in found:
        table.add_row(entry["key"], json.dumps(entry["default"]), Text(f"{entry['does']} May be: {entry['may be']}."))
    Console().print(table)


def _entry(field: "dataclasses.Field[Any]") -> dict[str, Any]:
    rule: Rule = field.metadata["rule"]
    kind = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}
    wanted = rule.wanted() if rule.choices or field.type in (int, float) else ""
    wanted = wanted.removesuffix("finite").removesuffix(" and ")
    may_be = wanted if rule.choices else f"{kind[field.type]} {wanted}".strip()  # type: ignore[index]
    auto = "" if rule.auto is None else f" `auto` is {json.dumps(rule.auto)}."
    return {"key": key_of(field), "default": field.default, "may be": may_be, "does": rule.doc + auto}
