"""The task of predicting the next character of a role's speeches, as in LEAF (Caldas et al., arXiv:1812.01097)."""

import logging
from collections import defaultdict

import numpy as np
import torch

from isoproto.data.base import TextDataset
from isoproto.data.folders import Array
from isoproto.data.rows import Texts
from isoproto.errors import DataError

logger = logging.getLogger("isoproto")

WINDOW = 80
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, which are the classes in this order. They are fixed, so nothing is learned from the data."""

_NAMES = {"\n": "newline", " ": "space"}
_LEAST = 2  # a role with fewer training windows is left out
_UNKNOWN = 1


def windows(rows: Texts, stride: int = WINDOW + 1) -> TextDataset:
    """Cut each role's speeches into windows of 80 characters; the class is the character that follows.

    The speeches of a role are joined, separately for its training and its test part. Token 0 is padding, token 1 is a
    character that is not in ``ALPHABET``, and token 2 is the first character of ``ALPHABET``. A window is left out if
    a character that is not in ``ALPHABET`` follows it. A role is left out if it has fewer than two training windows.
    The roles are the domains.

    Args:
        rows: Speeches; the label is the role.
        stride: Characters from the start of one window to the start of the next. With 81, the default, no character is
            in two samples. With less, training and test part of a random split would share most characters.

    Raises:
        DataError: If no role has two training windows.
    """
    spoken: defaultdict[tuple[str, bool], list[str]] = defaultdict(list)
    for role, test, text in zip(rows.labels, rows.test, rows.texts, strict=True):
        spoken[role, test].append(text)
    parts = {key: _cut(_codes("\n".join(texts)), stride) for key, texts in spoken.items()}
    every = sorted(set(rows.labels))
    roles = [role for role in every if (role, False) in parts and len(parts[role, False]) >= _LEAST]
    if not roles:
        raise DataError(
            f"{rows.path}: no role speaks the {WINDOW + 1 + stride * (_LEAST - 1)} characters that make {_LEAST} "
            "training windows; take a smaller step"
        )
    if len(roles) < len(every):
        logger.info(
            "%s: %d of %d roles speak too little and are left out", rows.path, len(every) - len(roles), len(every)
        )
    kept = [
        (place, test, parts[role, test])
        for place, role in enumerate(roles)
        for test in (False, True)
        if (role, test) in parts
    ]
    sizes = [len(part) for _, _, part in kept]
    samples = np.concatenate([part for _, _, part in kept])
    return TextDataset(
        x=torch.from_numpy(samples[:, :WINDOW].copy()),
        y=torch.from_numpy(samples[:, WINDOW].astype(np.int64) - _UNKNOWN - 1),
        test=torch.from_numpy(np.repeat([test for _, test, _ in kept], sizes)),
        classes=tuple(_NAMES.get(character, character) for character in ALPHABET),
        domain=torch.from_numpy(np.repeat([place for place, _, _ in kept], sizes)),
        domains=tuple(roles),
        source=str(rows.path),
        words=("", "\N{REPLACEMENT CHARACTER}", *ALPHABET),
    )


def _codes(text: str) -> Array:
    """Return the token of each character, int32."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    table = np.full(129, _UNKNOWN, np.int32)
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET)) + _UNKNOWN + 1
    codes: Array = table[np.minimum(points, 128)]
    return codes


def _cut(codes: Array, stride: int) -> Array:
    """Return windows, each with the character that follows, shape ``[n, 81]``."""
    if len(codes) <= WINDOW:
        return np.empty((0, WINDOW + 1), np.int32)
    cut: Array = np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)[::stride]
    return cut[cut[:, WINDOW] > _UNKNOWN]
