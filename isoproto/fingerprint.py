"""A digest of the code that runs, by which the server notices a foreign or outdated ClientApp.

Flower finds our packages by name. If a Ray worker or SuperNode has another copy of them earlier on its path, it runs
that one without an error. The server therefore asks every node for this digest and compares it.
"""

import functools
import hashlib
import importlib.util
from pathlib import Path

from isoproto import PACKAGES

# The files of a package that a bundle carries: see `fab-include` in pyproject.toml.
_SUFFIXES = (".py", ".jsonl")


def package_folder(package: str) -> Path:
    """Return the folder from which this process would import ``package``.

    Raises:
        ModuleNotFoundError: If there is no such package.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package!r} cannot be imported", name=package)
    return Path(next(iter(spec.submodule_search_locations)))


@functools.lru_cache(maxsize=1)
def fingerprint() -> str:
    """Return 16 hex digits that change with any source file of the packages this process would import."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        folder = package_folder(package)
        for path in sorted(p for p in folder.rglob("*") if p.suffix in _SUFFIXES):
            digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(path.read_bytes())
            digest.update(b"\0")
    return digest.hexdigest()[:16]
