"""Draw some samples of each class and domain of a data set into one picture, to look at before training."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from isoproto.data.base import Dataset

_CELL = 48  # approximate pixels of a sample
_GAP = 8  # pixels between domains
_LEFT, _TOP = 130, 18  # pixels for the names of classes and domains


def contact_sheet(dataset: Dataset, *, classes: int = 20, samples: int = 6) -> Image.Image:
    """Draw a row for each class and a block of columns for each domain; a cell without a sample stays blank.

    Args:
        dataset: A set of pictures.
        classes: Largest number of classes drawn; if there are more, they are taken at equal distances.
        samples: Samples of each class and domain. They are drawn at random with a fixed seed.

    Example:
        >>> from isoproto.data import load_dataset
        >>> contact_sheet(load_dataset("digits4"), samples=2).size
        (674, 658)
    """
    rows = some_classes(len(dataset.classes), classes)
    blocks = dataset.domains or ("",)
    domain = np.zeros(len(dataset.y), int) if dataset.domain is None else dataset.domain.numpy()
    height, width = dataset.x.shape[2:]
    scale = max(1, round(_CELL / max(height, width)))
    cell_h, cell_w = height * scale, width * scale
    block_w = samples * cell_w + _GAP
    sheet = Image.new("RGB", (_LEFT + block_w * len(blocks), _TOP + cell_h * len(rows)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    rng = np.random.default_rng(0)
    for column, name in enumerate(blocks):
        draw.text((_LEFT + column * block_w, 2), name, "black", font)
    for row, label in enumerate(rows):
        top = _TOP + row * cell_h
        draw.text((4, top + cell_h // 2 - 6), dataset.classes[label][:20], "black", font)
        for column in range(len(blocks)):
            held = np.flatnonzero((dataset.y.numpy() == label) & (domain == column))
            for place, index in enumerate(rng.permutation(held)[:samples]):
                picture = _image(dataset.x[index].numpy(), (cell_w, cell_h))
                sheet.paste(picture, (_LEFT + column * block_w + place * cell_w, top))
    return sheet


def some_classes(count: int, most: int) -> list[int]:
    """Return the numbers of all ``count`` classes, or of ``most`` of them at equal distances.

    Example:
        >>> some_classes(3, 20), some_classes(100, 4)
        ([0, 1, 2], [0, 33, 66, 99])
    """
    numbers: list[int] = np.linspace(0, count - 1, min(most, count)).astype(int).tolist()
    return numbers


def _image(x: np.ndarray, size: tuple[int, int]) -> Image.Image:
    pixels = x[0] if len(x) == 1 else x.transpose(1, 2, 0)
    return Image.fromarray(np.ascontiguousarray(pixels)).resize(size, Image.Resampling.NEAREST)
