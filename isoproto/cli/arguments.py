"""Make the help of positional arguments appear."""

from typing import Any

from typer.core import TyperArgument


def keep_help() -> None:
    """Give arguments their help back, which click 8.5 clears after Typer 0.20 has set it. A second call does nothing.

    Flower needs Typer below 0.21, so a newer one cannot be asked for.
    """
    original = TyperArgument.__init__
    if hasattr(original, "__wrapped__"):
        return

    def init(self: TyperArgument, *, help: str | None = None, **others: Any) -> None:  # noqa: A002, ANN401 - as in Typer
        original(self, help=help, **others)
        self.help = help

    init.__wrapped__ = original  # type: ignore[attr-defined]
    TyperArgument.__init__ = init  # type: ignore[method-assign]
