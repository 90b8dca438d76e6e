"""Finding a user's own function by its name: ``module:callable`` or ``FILE.py:callable``.

Whoever names a function runs code here. So a name is only ever taken from a node's own configuration, or, in a
simulation, from the researcher's run config: see ``Client.of``.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isoproto.errors import ConfigError


def is_own(name: str) -> bool:
    """Whether a setting names a user's own function.

    Example:
        >>> is_own("wards.py:network"), is_own("resnet")
        (True, False)
    """
    return ":" in name


def absolute(name: str, folder: Path) -> str:
    """Return a function's name with the path of its file made absolute.

    Example:
        >>> absolute("wards.py:net", Path("/srv")), absolute("wards:net", Path("/srv"))
        ('/srv/wards.py:net', 'wards:net')
    """
    where, colon, function = name.rpartition(":")
    return f"{(folder / Path(where).expanduser()).absolute()}:{function}" if colon and where.endswith(".py") else name


def own_callable(name: str, key: str, folder: Path = Path()) -> Callable[..., Any]:
    """Import a user's function.

    Args:
        name: ``module:callable``, a module that this Python can import, or ``FILE.py:callable``.
        key: The setting that names it, for error texts.
        folder: What a relative path of a file starts from.

    Raises:
        ConfigError: If the module, the file or the function is not there, or its import fails.

    Example:
        >>> own_callable("math:sqrt", "model")(9.0)
        3.0
    """
    where, _, function = name.rpartition(":")
    if not where or not function.isidentifier():
        raise ConfigError(f"`{key}` {name!r} names no function; write `module:callable` or `FILE.py:callable`")
    try:
        module = _from_file(folder / Path(where).expanduser()) if where.endswith(".py") else _imported(where)
    except ModuleNotFoundError as err:
        raise ConfigError(
            f"`{key}` {name!r}: {err}; install it for {sys.executable}, or name a file: `FILE.py:{function}`"
        ) from err
    except FileNotFoundError as err:
        raise ConfigError(f"`{key}` {name!r}: there is no file {err.filename}") from err
    except Exception as err:
        raise ConfigError(f"`{key}` {name!r} cannot be imported: {type(err).__name__}: {err}") from err
    found = getattr(module, function, None)
    if not callable(found):
        names = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(f"`{key}` {name!r}: {where} has no function {function!r}; it has {names[:10]}")
    made: Callable[..., Any] = found
    return made


def _imported(name: str) -> object:
    return importlib.import_module(name)


def _from_file(path: Path) -> object:
    """Import a file under a name that no package has, once per process."""
    path = path.absolute()
    name = f"isoproto_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError(2, "no such file", str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
