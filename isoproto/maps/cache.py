"""Features of samples: computed in batches, with a progress bar, and kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from isoproto.data.folders import Array, cached_array, content_key

logger = logging.getLogger("isoproto")

_AT_ONCE = 512
# Seconds after which a computation says that it is running.
_PATIENCE = 3.0
# Behind the features of an entry: the bytes of a number, and the checksum of all before.
_DIGEST = 32
_TAIL = 1 + _DIGEST


def computed(
    function: Callable[[Tensor], Tensor], x: Tensor, *, key: object, name: str, device: torch.device | None = None
) -> Tensor:
    """Return ``function(x)``, from the cache of this machine if it has been computed before.

    An entry is a float16 array with a checksum that is verified when it is read. A damaged entry is computed anew. If
    nothing can be written, the features are used all the same. If several processes want the same entry, one computes
    it, and the others wait. What is returned is rounded to float16 in any case, so a second run gets the same numbers.
    A number that float16 cannot hold makes it float32.

    Args:
        function: Maps a batch ``[B, ...]`` to features ``[B, D]``, without a memory of other batches.
        x: Samples ``[n, ...]``, on the CPU.
        key: What the result depends on besides the samples, such as the checksum of a map. Its ``repr`` counts.
        name: What is computed, for the progress bar and the log, such as ``"scattering"``.
        device: Where batches are sent before the function is called; by default they stay on the CPU.

    Returns:
        Features ``[n, D]``, float32, on the CPU.

    Example:
        >>> computed(lambda x: x.float().sqrt(), torch.tensor([[4, 9], [0, 1]]), key="roots", name="roots")
        tensor([[2., 3.],
                [0., 1.]])
    """
    if not len(x):
        return function(x.to(device)).float().cpu()
    digest = hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()
    entry = cached_array(
        content_key("features", (key, tuple(x.shape), x.dtype, digest)),
        lambda: _packed(_in_batches(function, x, name, device)),
        sound=intact,
        what="features",
    )
    return _unpacked(entry, len(x))


def _packed(features: Tensor) -> Array:
    """Return the bytes of an entry: features, bytes of a number, checksum."""
    largest = torch.finfo(torch.float16).max
    numbers = features.half() if bool((features.abs() <= largest).all()) else features.float()
    content = numbers.contiguous().numpy().reshape(-1).view(np.uint8)
    return sealed(np.append(content, np.uint8(numbers.element_size())))


def sealed(content: Array) -> Array:
    """Return bytes and behind them their checksum, as an entry of the cache.

    Example:
        >>> entry = sealed(np.frombuffer(b"1234", np.uint8))
        >>> unsealed(entry).tobytes(), intact(entry), intact(entry[1:])
        (b'1234', True, False)
    """
    return np.concatenate([content, np.frombuffer(hashlib.sha256(content.data).digest(), np.uint8)])


def intact(entry: Array) -> bool:
    """Return whether an entry is what :func:`sealed` returned."""
    whole = entry.dtype == np.uint8 and entry.ndim == 1 and len(entry) > _DIGEST
    return whole and hashlib.sha256(entry[:-_DIGEST].data).digest() == entry[-_DIGEST:].tobytes()


def unsealed(entry: Array) -> Array:
    """Return the bytes of an entry without their checksum."""
    return entry[:-_DIGEST]


def _unpacked(entry: Array, count: int) -> Tensor:
    kind = np.float16 if entry[-_TAIL] == np.dtype(np.float16).itemsize else np.float32
    return torch.from_numpy(entry[:-_TAIL].view(kind).reshape(count, -1).astype(np.float32))


def _in_batches(function: Callable[[Tensor], Tensor], x: Tensor, name: str, device: torch.device | None) -> Tensor:
    """Return the features of all samples, and show how far it is if it takes long."""
    began, done = time.monotonic(), 0
    features: list[Tensor] = []
    tell: Callable[[int], None] | None = None
    with contextlib.ExitStack() as stack:
        for part in x.split(_AT_ONCE):
            features.append(function(part.to(device)).cpu())
            done += len(part)
            if tell is None and done < len(x) and time.monotonic() - began > _PATIENCE:
                tell = stack.enter_context(_progress(name, len(x)))
            if tell is not None:
                tell(done)
    return torch.cat(features)


@contextlib.contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many samples are done: a bar on a terminal, else two lines in the log."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"{name}: features", total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    logger.info("%s: computing features of %d samples, which are kept for later runs", name, total)
    began = time.monotonic()
    yield lambda done: None
    logger.info("%s: features are done after another %.0f s", name, time.monotonic() - began)
