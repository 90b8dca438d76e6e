"""isoproto: federated learning across architectures by exchanging class prototypes."""

import importlib.util
from pathlib import Path

__version__ = "0.1.0"

PACKAGES = ("client_app", "isoproto", "models", "server_app", "strategies")
"""The packages of this project. They lie in one folder: the repository, an app bundle, or ``site-packages``."""


def _refuse_strangers() -> None:
    """Refuse to go on if Python would import somebody else's file under the name of one of our packages.

    Raises:
        ImportError: If a file such as ``models.py`` of the user comes first on Python's path.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module without a spec, which somebody made in this process
            spec = None
        found = spec.origin if spec else None
        if found is None or Path(found).resolve().parents[1] != ours:
            raise ImportError(
                f"isoproto needs its own package {name!r} in {ours}, but Python finds "
                f"{found or 'another module'} under this name. Rename that file or start in another folder, and "
                "restart Python",
                name=name,
                path=found,
            )


_refuse_strangers()
