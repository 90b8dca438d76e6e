"""Keys, pair secrets, marks and seals of a secure sum: what clients and server derive in the same way."""

from __future__ import annotations

from isoproto.errors import SecureSumError
from isoproto.secure.messages import MARK_BYTES, Circle, Table
from isoproto.secure.stream import derive, digest

OWN, PAIR = 0, 1  # the two secrets of a client: the seed of its own mask, and its private key for pair masks
_ONCE = bytes(12)  # each key encrypts one message, so the number used once may be zero


def public_key(private: bytes) -> bytes:
    """Return the public key of a private key on Curve25519, 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, client: int) -> bytes:
    """Return the secret that two clients share, 32 bytes.

    Raises:
        SecureSumError: If the public key of ``client`` is one with which everybody would know the secret.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as err:
        raise SecureSumError(f"secure sum: the public key of client {client} is not usable ({err})", client) from err


def table_context(circle: Circle, table: Table) -> bytes:
    """Return a digest of roster and table. Masks depend on it, so two tables never get the same mask."""
    return digest(circle.context, table.ids.astype("<i8").tobytes(), table.rows.tobytes(), table.seals.tobytes())


def own_mask_key(seed: bytes, context: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return derive(seed, b"own mask", context)


def pair_mask_key(secret: bytes, context: bytes) -> bytes:
    """Return the key of the mask that two clients share."""
    return derive(secret, b"pair mask", context)


def sealed(circle: Circle, owner: int, seed: bytes) -> bytes:
    """Return the seal of a client's own-mask seed, 32 bytes. It shows later that the seed is the one shared out."""
    return digest(b"seal", circle.context, owner, seed)


def mark(circle: Circle, kind: int, owner: int, holder: int, share: bytes) -> bytes:
    """Return the mark of a share, 16 bytes. It shows later who changed a share: the owner or the holder."""
    return digest(b"mark", circle.context, kind, owner, holder, share)[:MARK_BYTES]


def encrypt(secret: bytes, circle: Circle, owner: int, holder: int, text: bytes) -> bytes:
    """Encrypt what ``owner`` has to say to ``holder``; ``secret`` is the one that they share."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    key, label = _cipher(secret, circle, owner, holder)
    return ChaCha20Poly1305(key).encrypt(_ONCE, text, label)


def decrypt(secret: bytes, circle: Circle, owner: int, holder: int, cipher: bytes) -> bytes:
    """Decrypt what ``owner`` wrote to ``holder``; the library's ``InvalidTag`` passes through."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    key, label = _cipher(secret, circle, owner, holder)
    return ChaCha20Poly1305(key).decrypt(_ONCE, cipher, label)


def _cipher(secret: bytes, circle: Circle, owner: int, holder: int) -> tuple[bytes, bytes]:
    """Return the key of one direction between two clients, and the text that is bound to the message."""
    return derive(secret, b"shares", circle.context, owner, holder), digest(circle.context, owner, holder)
