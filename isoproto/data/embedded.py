"""The data set ``digits4``, which comes with the package: digits of four domains."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from isoproto.data.base import ImageDataset
from isoproto.errors import DataError

DOMAINS = ("scan", "pen", "print", "scene")
FOLDER = Path(__file__).parent / "digits4"
_SIDE = 32  # pixels


def load_digits4(argument: str, folder: Path) -> ImageDataset:
    """Read the 4,800 + 1,600 embedded digits: ``[6400, 1, 32, 32]``, 10 classes, 4 domains.

    Each domain is one file of three JSON lines, made by ``tools/make_digits4.py``. The first line says what the domain
    is and who made it. The second holds the labels of its training and of its test part, one digit each. The third
    holds a picture in which all digits stand row by row, training part first.

    Args:
        argument: The text behind ``digits4:``; must be empty.
        folder: Not used: the files lie next to this module.

    Raises:
        DataError: If there is an argument.
    """
    if argument:
        raise DataError(f"data 'digits4' takes no argument, got {argument!r}; write `data = \"digits4\"`")
    parts = [_read_domain(domain) for domain in DOMAINS]
    x, y, test = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    domain = np.repeat(np.arange(len(DOMAINS)), [len(labels) for _, labels, _ in parts])
    order = np.argsort(test, kind="stable")  # all training parts, then all test parts
    return ImageDataset(
        x=torch.from_numpy(x[order]),
        y=torch.from_numpy(y[order]),
        test=torch.from_numpy(test[order]),
        classes=tuple("0123456789"),
        domain=torch.from_numpy(domain[order]),
        domains=DOMAINS,
        source="digits4",
    )


def _read_domain(name: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return pictures ``[N, 1, 32, 32]``, labels and official-test mask ``[N]`` of one domain."""
    _, labels, sheet = map(json.loads, (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines())
    y = np.frombuffer((labels["train"] + labels["test"]).encode(), np.uint8).astype(np.int64) - ord("0")
    from PIL import Image  # not every machine that trains decodes pictures

    with Image.open(io.BytesIO(base64.b64decode(sheet["png"]))) as image:
        pixels = np.asarray(image)
    tiles = pixels.reshape(-1, _SIDE, pixels.shape[1] // _SIDE, _SIDE).swapaxes(1, 2)
    return tiles.reshape(-1, 1, _SIDE, _SIDE), y, np.arange(len(y)) >= len(labels["train"])
