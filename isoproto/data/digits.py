"""The data set ``digits``: MNIST, USPS, SVHN and SYN as four domains, in colour and of one size."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from isoproto.data.base import ImageDataset
from isoproto.data.folders import cached_array, content_key
from isoproto.data.info import INFOS
from isoproto.data.named import looked_for, missing, places, refuse_argument
from isoproto.data.pictures import fit
from isoproto.data.sources import Place, npz_place
from isoproto.errors import DataError

SIDE = 32  # pixels
DOMAINS = INFOS["digits"].parts
# The file that replaces a domain that is not there, and the words that describe the file.
_STAND_INS = {
    "svhn": ("digits_mnistm_like.npz", "MNIST digits over photo patches, re-made after the recipe of MNIST-M"),
    "syn": ("digits_syn_like.npz", "re-made after the published recipe, not the published files"),
}


def load_digits(argument: str, folder: Path) -> ImageDataset:
    """Read four sets of digits as one of 4 domains and 10 classes, ``[N, 3, 32, 32]``.

    Each of the four is looked for in the same places as if it were named alone.

    Args:
        argument: The text behind ``digits:``; must be empty.
        folder: See ``data_folder``.

    Raises:
        DataError: If there is an argument, or a domain is missing or does not have ten classes.
    """
    refuse_argument("digits", argument)
    found = locate_digits(folder)
    parts = [place.load() for place in found]
    for part in parts:
        if len(part.classes) != len("0123456789"):
            raise DataError(f"{part.source}: must have the ten digits as classes, got {part.classes[:20]}")

    def pictures() -> npt.NDArray[np.uint8]:
        return np.concatenate([fit(part.x, SIDE, channels=3).numpy() for part in parts])

    key = content_key("digits", [place.identity() for place in found])
    lengths = torch.tensor([len(part.y) for part in parts])
    return ImageDataset(
        x=torch.from_numpy(cached_array(key, pictures)),
        y=torch.cat([part.y for part in parts]),
        test=torch.cat([part.test for part in parts]),
        classes=tuple("0123456789"),
        domain=torch.arange(len(parts)).repeat_interleave(lengths),
        domains=DOMAINS,
        source=f"digits in {folder}",
        notes=tuple(note for part in parts for note in part.notes),
    )


def locate_digits(folder: Path) -> list[Place]:
    """Return where each domain was found.

    Raises:
        DataError: If a domain is missing.
    """
    return [_domain(name, folder) for name in DOMAINS]


def _domain(name: str, folder: Path) -> Place:
    place = next(places(name, folder), None)
    if place is not None:
        return place
    looked = looked_for(name, folder)
    if name in _STAND_INS:
        file, what = _STAND_INS[name]
        if (folder / file).is_file():
            return npz_place(folder / file, (f"{name} of digits is replaced by {file}: {what}",))
        looked.append(str(folder / file))
    raise missing("digits", [f"{name} as {looked[0]}", *looked[1:]])
