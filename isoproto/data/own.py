"""The data set ``module:NAME:FUNCTION``: data that a user's function returns."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from isoproto.data.base import ImageDataset
from isoproto.data.npz import from_arrays
from isoproto.errors import DataError
from isoproto.own_code import own_callable, told


def load_own(argument: str, folder: Path) -> ImageDataset:
    """Get a data set from a user's function, ``module:callable`` or ``FILE.py:callable``, called without arguments.

    The function returns an ``ImageDataset``, or a mapping of arrays as in an ``npz:`` file: ``train_x`` uint8
    ``[N, H, W]`` or ``[N, H, W, channels]``, ``train_y``, ``classes``, and optionally ``test_x``, ``test_y``. A node
    calls it once per message, so slow work belongs behind ``isoproto.data.folders.cached_array``.

    Args:
        argument: Name of the function; a relative path starts from ``folder``.
        folder: See ``data_folder``.

    Raises:
        ConfigError: If there is no such function.
        DataError: If the function fails, or returns something else.
    """
    function, source = own_callable(argument, "data", folder), f"module:{argument}"
    try:
        made = function()
    except Exception as err:
        raise DataError(f"data '{source}' failed: {told(err, argument)}") from err
    if isinstance(made, Mapping):
        return from_arrays(source, {key: np.asarray(value) for key, value in made.items()})
    if not isinstance(made, ImageDataset):
        raise DataError(
            f"data '{source}' must return an ImageDataset or a mapping with `train_x`, `train_y` and `classes`, got "
            f"{type(made).__name__}"
        )
    return made
