"""A digest of the code that runs, to notice a foreign or stale ClientApp.

Flower finds our packages by name. A Ray worker or SuperNode that has another ``client_app`` or ``models``
earlier on its path would run that one without a word; the server therefore compares digests in its query.
"""

import functools
import hashlib
import importlib.util
from pathlib import Path

PACKAGES = ("client_app", "isoproto", "models", "server_app", "strategies")
# What a bundle carries of a package, see `fab-include` in pyproject.toml.
_SUFFIXES = (".py", ".jsonl")


def package_folder(package: str) -> Path:
    """Return the folder that this process would import ``package`` from.

    Raises:
        ModuleNotFoundError: If it would find none.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package!r} cannot be imported", name=package)
    return Path(next(iter(spec.submodule_search_locations)))


@functools.lru_cache(maxsize=1)
def fingerprint() -> str:
    """Return 16 hex digits over the source files of our packages, as this process would import them."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        folder = package_folder(package)
        for path in sorted(p for p in folder.rglob("*") if p.suffix in _SUFFIXES):
            digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(path.read_bytes())
            digest.update(b"\0")
    return digest.hexdigest()[:16]
