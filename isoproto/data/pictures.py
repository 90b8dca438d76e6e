"""Decode picture files into one array, for all readers of picture files."""

from __future__ import annotations

import io
import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from isoproto.errors import DataError

if TYPE_CHECKING:
    from PIL import Image  # imported where it is used, since not every machine that trains decodes pictures

logger = logging.getLogger("isoproto")

_GREY_MODES = {"1", "L", "LA"}
_DEEP_MODES = {"I", "F"}  # besides "I;16", "RGB;16B" and so on
_ORIENTATION = 0x0112  # EXIF's tag of that name
# Values 2 to 8 of that tag, and the transposition that undoes each.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_UPRIGHT, _SIDEWAYS = 1, {5, 6, 7, 8}
_AT_ONCE = 4096  # pictures resized together; as floats they take four times the memory
# Errors of pillow for a file that is no picture, or half of one. It also raises `Image.DecompressionBombError`.
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error)


def decode_pictures(
    pictures: Sequence[Path | npt.NDArray[np.uint8]],
    name: Callable[[int], str],
    side: int | None = None,
    *,
    upright: bool = False,
) -> npt.NDArray[np.uint8]:
    """Decode picture files into one array.

    The array is grey if every picture is grey, else RGB. All pictures are resized to the most frequent size, whatever
    their aspect ratio; if several sizes are equally frequent, the first one seen is taken. Transparent pictures are
    laid on white. Of a file with several pictures, such as the pages of a TIFF, the first is taken, with a warning.

    Args:
        pictures: ``N`` paths, or the bytes of ``N`` files, of any format that pillow knows, eight bits per channel.
        name: Returns the name of picture ``i`` for error texts.
        side: If given, all pictures are resized to ``side x side`` pixels instead.
        upright: Whether EXIF data turn pictures upright. Cameras write them instead of turning the picture.

    Returns:
        Shape ``[N, channels, H, W]``, 1 or 3 channels.

    Raises:
        DataError: If a picture cannot be read or has more than eight bits a channel.
    """
    from PIL import Image

    orientation = _orientation if upright else lambda _: _UPRIGHT
    # Headers alone first: sizes and modes must be known before the array is allocated.
    sizes: Counter[tuple[int, int]] = Counter()
    modes = set()
    several = 0
    for i, picture in enumerate(pictures):
        with _opened(picture, i, name) as image:
            sizes[image.size[::-1] if orientation(image) in _SIDEWAYS else image.size] += 1
            modes.add(image.mode)
            several += getattr(image, "n_frames", 1) > 1
    grey = modes <= _GREY_MODES
    size = (side, side) if side else sizes.most_common(1)[0][0]
    if resized := len(pictures) - sizes[size]:
        logger.info("%d of %d pictures are resized to %dx%d", resized, len(pictures), *size)

    if several:
        logger.warning("%d of %d files hold several pictures; the first one of each is taken", several, len(pictures))
    out = np.empty((len(pictures), 1 if grey else 3, size[1], size[0]), np.uint8)
    for i, picture in enumerate(pictures):
        with _opened(picture, i, name) as image:
            turn = _TURNS.get(orientation(image))
            plain = _on_white(image).convert("L" if grey else "RGB")
            plain = plain.transpose(Image.Transpose[turn]) if turn else plain
            pixels = np.asarray(plain if plain.size == size else plain.resize(size, Image.Resampling.LANCZOS))
        out[i] = pixels if grey else pixels.transpose(2, 0, 1)
    return out


def _on_white(image: Image.Image) -> Image.Image:
    """Return a picture without transparent places: they are white."""
    from PIL import Image

    if not image.has_transparency_data:
        return image
    colours = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours)


def fit(x: Tensor, side: int, channels: int) -> Tensor:
    """Resize pictures to squares, and turn grey pictures into colour if asked.

    Args:
        x: Pictures, shape ``[N, 1 or 3, H, W]``, uint8.
        side: Rows and columns of the result; the aspect ratio is not kept.
        channels: Channels of the result: those of ``x``, or 3.

    Returns:
        Pictures, shape ``[N, channels, side, side]``, uint8; ``x`` itself if it has this shape already.

    Example:
        >>> fit(torch.full((1, 1, 2, 2), 7, dtype=torch.uint8), 4, channels=3).unique()
        tensor([7], dtype=torch.uint8)
    """
    if x.shape[2:] != (side, side):
        parts = [_resize(part.float(), side) for part in x.split(_AT_ONCE)]
        x = torch.cat(parts)
    return x if x.shape[1] == channels else x.expand(-1, channels, -1, -1)


def _resize(x: Tensor, side: int) -> Tensor:
    resized = functional.interpolate(x, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def _orientation(image: Image.Image) -> int:
    """Return the orientation in a picture's EXIF data, or upright if there is none that can be read."""
    try:
        found = image.getexif().get(_ORIENTATION) if "exif" in image.info else _UPRIGHT
    except _UNREADABLE:
        return _UPRIGHT
    return found if found in _TURNS else _UPRIGHT


def _deep(image: Image.Image) -> str:
    """Return how a file with more than eight bits a channel stores them; empty for one with eight.

    Of 16 bits pillow would keep eight, and say nothing for colour.
    """
    stored = [image.mode, *(str(tile[3]) for tile in getattr(image, "tile", ()))]
    return next((text for text in stored if ";16" in text), image.mode if image.mode in _DEEP_MODES else "")


@contextmanager
def _opened(picture: Path | npt.NDArray[np.uint8], i: int, name: Callable[[int], str]) -> Iterator[Image.Image]:
    """Open a picture; any error until it is closed becomes a ``DataError`` with the picture's name."""
    from PIL import Image

    try:
        with Image.open(picture if isinstance(picture, Path) else io.BytesIO(picture.tobytes())) as image:
            if deep := _deep(image):
                raise DataError(f"{name(i)}: must have 8 bits a channel, got mode {deep}; save it as 8-bit")
            yield image
    except DataError:
        raise
    except (*_UNREADABLE, Image.DecompressionBombError) as err:
        raise DataError(f"{name(i)}: not a readable picture ({err}); repair or remove it") from err
