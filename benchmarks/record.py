"""Read and write the files in benchmarks/results, the same way for every benchmark."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isoproto.paths import write_atomically

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def record(name: str, content: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write ``<name>.json`` and return its path; a reader never sees half a file.

    Args:
        name: Name of the file without ``.json``.
        content: What to write, with the command that makes it under ``"command"``. Without one nobody could repeat
            the figures, so a missing command is an error.
        folder: Where the file goes.
    """
    if "command" not in content:
        raise ValueError(f"the results {name!r} do not say which command makes them")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return path


def recorded(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Return the content of ``<name>.json``, or an empty mapping where nothing was recorded yet."""
    path = folder / f"{name}.json"
    content: dict[str, Any] = json.loads(path.read_text("utf8")) if path.exists() else {}
    return content


def paragraph(text: str) -> str:
    """Return a sentence with figures in it, broken into the lines of a page."""
    return textwrap.fill(text, 116, break_long_words=False, break_on_hyphens=False)
