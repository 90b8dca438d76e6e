"""Random words from a key, and keys from secrets: AES-256 in counter mode, and HKDF with SHA-256 (RFC 5869).

In this package, `cryptography` is imported inside functions, so that local training also runs without it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_CHUNK = 2**15  # words at once: a quarter of a megabyte stays in the cache of a core
_ZEROS = bytes(8 * _CHUNK)


def derive(secret: bytes, *labels: bytes | int) -> bytes:
    """Return a key of 32 bytes for one purpose. Nothing about ``secret`` or other keys follows from it.

    Args:
        secret: The secret, with at least 32 bytes of chance.
        labels: What the key is for. Different labels give independent keys.
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=32, salt=None, info=_join(labels)).derive(secret)


def digest(*parts: bytes | int) -> bytes:
    """Return the SHA-256 digest of parts, 32 bytes. Where one part ends matters."""
    return hashlib.sha256(_join(parts)).digest()


def _join(parts: tuple[bytes | int, ...]) -> bytes:
    """Write parts one after the other, each with its length before it."""
    written = [part if isinstance(part, bytes) else int(part).to_bytes(8, "little", signed=True) for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in written)


def add_stream(target: Words, key: bytes, sign: int = 1) -> None:
    """Add the key's random words to ``target``, or subtract them, in place and modulo 2^64.

    A key may be used for one stream only, since the counter starts at zero.

    Args:
        target: Words, ``[L]``, uint64, contiguous.
        key: 32 bytes.
        sign: 1 adds, -1 subtracts.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    buffer = bytearray(8 * _CHUNK + 15)  # the library asks for 15 bytes to spare
    words = np.frombuffer(buffer, dtype="<u8", count=_CHUNK)
    for start in range(0, len(target), _CHUNK):
        piece = target[start : start + _CHUNK]
        encryptor.update_into(memoryview(_ZEROS)[: 8 * len(piece)], buffer)
        if sign > 0:
            piece += words[: len(piece)]
        else:
            piece -= words[: len(piece)]


def key_stream(key: bytes, length: int) -> Words:
    """Return the key's first random words, ``[length]``, uint64.

    Example:
        >>> words = key_stream(bytes(32), 3)
        >>> words.dtype, words.shape, bool((words == key_stream(bytes(32), 5)[:3]).all())
        (dtype('uint64'), (3,), True)
    """
    words = np.zeros(length, dtype=np.uint64)
    add_stream(words, key)
    return words
