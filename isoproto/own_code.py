"""Import a user's function by its name: ``module:callable`` or ``FILE.py:callable``.

A name runs code on this machine. A node therefore takes it only from its own configuration. In a simulation it may
come from the run config, since the researcher owns that machine.
"""

import hashlib
import importlib
import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isoproto.errors import ConfigError

_log = logging.getLogger("isoproto")


def is_own(name: str) -> bool:
    """Return whether a setting names a user's function rather than an entry of a table.

    Example:
        >>> is_own("wards.py:network"), is_own("resnet")
        (True, False)
    """
    return ":" in name


def absolute(name: str, folder: Path) -> str:
    """Return the name of a function with the path of its file made absolute; other names stay as they are.

    Example:
        >>> absolute("wards.py:net", Path("/srv")), absolute("wards:net", Path("/srv"))
        ('/srv/wards.py:net', 'wards:net')
    """
    where, colon, function = name.rpartition(":")
    return f"{(folder / Path(where).expanduser()).absolute()}:{function}" if colon and where.endswith(".py") else name


def without_folder(name: str) -> str:
    """Return the name of a function without the folder of its file, as it is shown and sent.

    Example:
        >>> without_folder("/srv/ward 3/nets.py:small"), without_folder("resnet"), without_folder("wards:net")
        ('nets.py:small', 'resnet', 'wards:net')
    """
    where, colon, function = name.rpartition(":")
    return f"{Path(where).name}:{function}" if colon and where.endswith(".py") else name


def told(err: Exception, name: str) -> str:
    """Return an error of a user's function in one line: its kind, its text, and the last line of the user's file in it.

    The whole traceback goes to the log.

    Args:
        err: What the function, or what it returned, has raised.
        name: Name of the function.
    """
    _log.warning("%s raised an error", without_folder(name), exc_info=err)
    frames = traceback.extract_tb(err.__traceback__)
    where = name.rpartition(":")[0]
    file = Path(where).name if where.endswith(".py") else f"{where.rpartition('.')[2]}.py"
    own = [frame for frame in frames if Path(frame.filename).name == file] or frames[-1:]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(err).__name__}: {err}{place}"


def own_callable(name: str, key: str, folder: Path = Path()) -> Callable[..., Any]:
    """Import a user's function.

    Args:
        name: ``module:callable`` for a module that this Python can import, or ``FILE.py:callable``.
        key: The setting that holds the name, for error texts.
        folder: Folder from which a relative path of a file starts.

    Raises:
        ConfigError: If the module, the file or the function does not exist, or the import fails.

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
        raise ConfigError(f"`{key}` {name!r} cannot be imported: {told(err, name)}") from err
    found = getattr(module, function, None)
    if not callable(found):
        names = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(f"`{key}` {name!r}: {where} has no function {function!r}; it has {names[:10]}")
    made: Callable[..., Any] = found
    return made


def _imported(name: str) -> object:
    return importlib.import_module(name)


def _from_file(path: Path) -> object:
    """Import a file once per process, under a module name that no package uses."""
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
