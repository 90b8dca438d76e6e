"""Well-known data sets by name: from a pack under ``data-dir`` if there is one, else as torchvision keeps them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isoproto.data.base import ImageDataset
from isoproto.data.npz import load_npz
from isoproto.errors import DataError

logger = logging.getLogger("isoproto")

_CLASSES = {  # our name -> torchvision's
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashionmnist": "FashionMNIST",
    "usps": "USPS",
    "svhn": "SVHN",
}


def load_torchvision(argument: str, folder: Path, *, name: str) -> ImageDataset:
    """Read ``name.npz`` or ``digits_name.npz`` under ``folder``, else torchvision's copy, downloaded if absent.

    Args:
        argument: What follows ``name:``; must be empty.
        folder: See ``data_folder``; torchvision keeps its files there too.
        name: One of ``cifar10``, ``cifar100``, ``mnist``, ``fashionmnist``, ``usps``, ``svhn``.

    Raises:
        DataError: If there is an argument, or the set is neither there nor can be downloaded.
    """
    if argument:
        raise DataError(f"data '{name}' takes no argument, got {argument!r}; its files are looked up in `data-dir`")
    packs = [folder / f"{name}.npz", folder / f"digits_{name}.npz"]
    for pack in packs:
        if pack.is_file():
            return load_npz(str(pack), folder)
    logger.info("data '%s': reading torchvision's files in %s, which are downloaded if absent", name, folder)
    try:
        train, test = (_download(name, folder, train=part) for part in (True, False))
    except (OSError, RuntimeError, ImportError) as err:
        reason = " ".join(str(err).split())
        raise DataError(
            f"data '{name}': found neither {' nor '.join(map(str, packs))} nor torchvision's files in {folder}, and "
            f"they cannot be downloaded ({reason}). Put one of them there, point `data-dir` to where they are, or run "
            f"once with a network: torchvision.datasets.{_CLASSES[name]}(root={str(folder)!r}, download=True)"
        ) from err
    x = torch.cat([_pictures(train), _pictures(test)])
    y = torch.cat([torch.as_tensor(_labels(part), dtype=torch.int64) for part in (train, test)])
    classes = tuple(getattr(train, "classes", None) or map(str, range(int(y.max()) + 1)))
    return ImageDataset(x, y, torch.arange(len(y)) >= len(train), classes, source=f"{name} in {folder}")


def _download(name: str, folder: Path, *, train: bool) -> Any:  # noqa: ANN401 - torchvision is untyped
    from torchvision import datasets  # slow to import, and most runs need none of it

    part = {"split": "train" if train else "test"} if name == "svhn" else {"train": train}
    return getattr(datasets, _CLASSES[name])(root=str(folder), download=True, **part)


def _pictures(part: Any) -> torch.Tensor:  # noqa: ANN401
    """``[N, channels, H, W]`` from the four layouts that torchvision's classes have."""
    x = torch.as_tensor(np.asarray(part.data))
    if x.dim() == 3:
        return x.unsqueeze(1)
    return x.contiguous() if x.shape[1] == 3 else x.permute(0, 3, 1, 2).contiguous()


def _labels(part: Any) -> Any:  # noqa: ANN401
    return part.labels if hasattr(part, "labels") else part.targets
