"""Make random generators, each seeded by what it is used for. The global generators are never used.

A seed is computed from the run's seed, a purpose, and the round or client that it concerns. So a resumed run draws
the same numbers as an uninterrupted run, and a client's numbers do not depend on which clients its worker ran before.
"""

import hashlib

import numpy as np
import torch


def derive(seed: int, *parts: int | str) -> int:
    """Return a 63-bit seed that is a function of ``seed`` and ``parts``.

    Example:
        >>> derive(0, "batches", 3, "17") == derive(0, "batches", 3, "17")
        True
        >>> derive(0, "batches", 3, "17") == derive(0, "batches", 31, "7")
        False
    """
    text = "\x1f".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def torch_generator(seed: int, *parts: int | str) -> torch.Generator:
    """Return a torch generator on the CPU, seeded by ``derive``."""
    return torch.Generator().manual_seed(derive(seed, *parts))


def numpy_generator(seed: int, *parts: int | str) -> np.random.Generator:
    """Return a NumPy generator, seeded by ``derive``."""
    return np.random.default_rng(derive(seed, *parts))
