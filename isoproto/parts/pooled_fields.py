"""The arrays of pooled statistics, and the texts and numbers that both sides make of them in the same way."""

from __future__ import annotations

import hashlib
from enum import IntEnum

import torch

from isoproto.parts.base import Field
from isoproto.secure.messages import KEY_BYTES, ROW_BYTES, SEAL_BYTES, Terms
from isoproto.secure.shamir import SHARE_BYTES


class Step(IntEnum):
    """What the server waits for. ``OPEN`` is without the secure sum; the others are the four steps of a secure sum."""

    OPEN = 0
    KEYS = 1
    SHARES = 2
    VECTOR = 3
    REVEAL = 4


_KEYS, _ROW, _SEAL, _SHARE = (str(n) for n in (2 * KEY_BYTES, ROW_BYTES, SEAL_BYTES, SHARE_BYTES))

DOWN = (
    Field(name="pool-plan", shape="2", dtype=torch.int64, together="pool"),
    Field(name="pool-members", shape="N", dtype=torch.int64, together="pool"),
    Field(name="pool-since", shape="N", dtype=torch.int64, together="pool"),
    Field(name="secure-ids", shape="N", dtype=torch.int64, together="secure-roster"),
    Field(name="secure-keys", shape=f"N {_KEYS}", dtype=torch.uint8, together="secure-roster"),
    Field(name="secure-shared", shape="N", dtype=torch.int64, together="secure-table"),
    Field(name="secure-rows", shape=f"N H {_ROW}", dtype=torch.uint8, together="secure-table"),
    Field(name="secure-seals", shape=f"N {_SEAL}", dtype=torch.uint8, together="secure-table"),
    Field(name="secure-survivors", shape="N", dtype=torch.int64, together="secure-reveal"),
    Field(name="secure-dropped", shape="N", dtype=torch.int64, together="secure-reveal"),
)

OPEN_UP = (
    Field(name="pool-vector", shape="L", dtype=torch.int64, together="pool-vector", may_send="statistics"),
    Field(name="pool-mark", shape="1", dtype=torch.int64, together="pool-vector"),
)

SECURE_UP = (
    Field(name="secure-key", shape=_KEYS, dtype=torch.uint8, together="secure-key"),
    Field(name="secure-width", shape="1", dtype=torch.int64, together="secure-key"),
    Field(name="secure-row", shape=f"H {_ROW}", dtype=torch.uint8, together="secure-row"),
    Field(name="secure-seal", shape=_SEAL, dtype=torch.uint8, together="secure-row"),
    Field(name="secure-masked", shape="L", dtype=torch.int64, may_send="statistics"),
    Field(name="secure-answer", shape=f"H {_SHARE}", dtype=torch.uint8),
    Field(name="secure-blamed", shape="N", dtype=torch.int64),
)


def id_of(client: str) -> int:
    """Return the number that stands for a client's name in messages: 62 bits.

    Example:
        >>> id_of("7") == id_of("7"), 0 <= id_of("7") < 2**62, id_of("7") == id_of("8")
        (True, True, False)
    """
    return int.from_bytes(hashlib.sha256(f"client {client}".encode()).digest()[:8], "little") >> 2


def terms_of(start: int, length: int, minimum: int) -> Terms:
    """Return the terms of the sum that began in round ``start``."""
    return Terms(session=f"statistics from round {start}", length=length, minimum=minimum)
