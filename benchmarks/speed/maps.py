"""Measure what the common frame costs on one core: pictures and texts a second, and the server's sums and solution.

The naive scattering convolves each picture by itself with each wavelet, as its formula says. Both give the same
features; the benchmark stops if they do not. The naive one is measured on fewer pictures.

python benchmarks/speed/maps.py [--repeats 5] [--force]
"""

import math
import tempfile
from typing import Any
from unittest import mock

import torch
from machine import median_seconds, options, write_results
from torch import Tensor
from torch.nn import functional

from isoproto.common.classifier import solve
from isoproto.common.statistics import Block, Totals, total
from isoproto.maps import computed, create_map
from isoproto.maps.base import made_up_pictures

TARGETS = {
    "scattering 32x32x3, pictures/s": 1000,
    "6,400 pictures 32x32x1, s": 10,
    "statistics of 200 clients added up, 1,536 coordinates, s": 1,
    "classifier of 100 classes, 2,048 coordinates, s": 2,
}
CLIENTS, RANK, CLASSES = 200, 64, 10
PICTURES, NAIVE, TEXTS, LENGTH, VOCABULARY = 1000, 20, 2000, 200, 30_000
DIGITS = 6400  # as many as digits4 has; what they show changes nothing
ANGLES, CELLS, CPU = 8, 4, torch.device("cpu")


def wavelets(sigma: float, wave: float) -> Tensor:
    """Return Morlet wavelets of 8 directions, ``[8, n, n]``, complex: waves under a Gaussian, less their mean."""
    reach = math.ceil(4 * sigma)
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)
    y, x = torch.meshgrid(offset, offset, indexing="ij")
    gaussian = torch.exp(-(x**2 + y**2) / (2 * sigma**2))
    gaussian /= gaussian.sum()
    found = []
    for angle in range(ANGLES):
        direction = torch.tensor(angle * math.pi / ANGLES)
        waves = torch.exp(1j * wave * (x * direction.cos() + y * direction.sin()))
        found.append(gaussian * (waves - (gaussian * waves).sum()))
    return torch.stack(found)


def edges(picture: Tensor, filters: Tensor) -> Tensor:
    """Return the absolute values of a picture ``[n, n]`` filtered by each wavelet, ``[8, n, n]``."""
    reach = filters.shape[1] // 2
    padded = functional.pad(picture[None, None], (reach,) * 4, mode="reflect")
    real, imaginary = (functional.conv2d(padded, part[:, None].float())[0] for part in (filters.real, filters.imag))
    return (real**2 + imaginary**2).sqrt()


def cells(maps: Tensor, step: int = 1) -> Tensor:
    """Return the means of maps ``[F, n, n]`` over 4 by 4 cells, at every ``step``-th pixel, ``[F, 16]``."""
    return functional.adaptive_avg_pool2d(maps[:, ::step, ::step].unsqueeze(0), CELLS)[0].flatten(1)


def naive_scattering(x: Tensor) -> Tensor:
    """Return the features of pictures ``[B, channels, n, n]``, where n is 32 or 64, one channel after the other."""
    fine, coarse = wavelets(1.2, 0.55 * math.pi), wavelets(2.4, 0.275 * math.pi)
    rows = []
    for picture in x:
        for channel in picture.float() / 255:
            first = edges(channel, fine)
            parts = [cells(channel[None]), cells(first), cells(edges(channel, coarse), 2)]
            halves = functional.avg_pool2d(first.unsqueeze(0), 2)[0]
            twice = torch.stack([edges(half, fine) for half in halves], 1)  # [second, first, n / 2, n / 2]
            parts.append(cells(twice.flatten(0, 1)))
            rows.append((torch.cat(parts).flatten() + 0.01).log())
    return torch.stack(rows).view(len(x), -1)


def server_seconds(repeats: int) -> list[float]:
    """Return the seconds in which the server adds up all clients' statistics, and solves for a classifier."""
    generator = torch.Generator().manual_seed(0)
    blocks = []
    for _ in range(CLIENTS):
        phi = torch.randn(2 * RANK, 1, 1536, generator=generator)
        blocks.append(Block.of(phi, torch.arange(2 * RANK) % CLASSES, RANK))
    labels = torch.arange(6000) % 100
    whole = Totals.of(torch.randn(len(labels), 1, 2048, generator=generator).double(), labels, 100)
    return median_seconds([lambda: total(blocks, CLASSES, 1536), lambda: solve(whole, [0.1])], repeats)


def measure(repeats: int) -> dict[str, Any]:
    """Return the figures of all maps."""
    pictures, few = made_up_pictures((3, 32, 32), PICTURES), made_up_pictures((3, 32, 32), NAIVE)
    large, digits = made_up_pictures((3, 64, 64), PICTURES // 4), made_up_pictures((1, 32, 32), DIGITS)
    small_map, large_map, digits_map = (
        create_map("scattering", shape=tuple(x.shape[1:]), words=(), device=CPU) for x in (pictures, large, digits)
    )
    torch.testing.assert_close(small_map(few), naive_scattering(few), rtol=1e-3, atol=1e-3)
    words = ("", "[UNK] ", *(f"word{number} " for number in range(VOCABULARY)))
    text_map = create_map("words", shape=(), words=words, device=CPU)
    texts = torch.randint(0, VOCABULARY, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(0)).int()
    with tempfile.TemporaryDirectory() as home, mock.patch.dict("os.environ", {"ISOPROTO_HOME": home}):
        kept = lambda: computed(small_map, pictures, key="benchmark", name="benchmark")  # noqa: E731 - named here
        kept()
        work = [
            lambda: small_map(pictures),
            lambda: naive_scattering(few),
            lambda: large_map(large),
            lambda: digits_map(digits),
            lambda: text_map(texts),
            kept,
        ]
        fast, naive, wide, whole, text, cached = median_seconds(work, repeats)
    added, solved = server_seconds(repeats)
    figures = {
        "scattering 32x32x3, pictures/s": PICTURES / fast,
        "naive scattering, pictures/s": NAIVE / naive,
        "ratio": PICTURES / fast / (NAIVE / naive),
        "scattering 64x64x3, pictures/s": len(large) / wide,
        "6,400 pictures 32x32x1, s": whole,
        "words, texts/s": TEXTS / text,
        "from the cache, pictures/s": PICTURES / cached,
        "statistics of 200 clients added up, 1,536 coordinates, s": added,
        "classifier of 100 classes, 2,048 coordinates, s": solved,
    }
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    """Measure and write benchmarks/results/maps.json."""
    arguments = options(__doc__, repeats=5)
    torch.set_num_threads(1)
    figures = measure(arguments.repeats)
    for name, figure in figures.items():
        print(f"{name}: {figure:,.1f}")
    if not arguments.force:
        command = f"python benchmarks/speed/maps.py --repeats {arguments.repeats}"
        print(
            "wrote", write_results("maps", {"command": command, "threads": 1, "targets": TARGETS, "figures": figures})
        )


if __name__ == "__main__":
    main()
