"""A client's four steps in a secure sum, as functions of its state and the server's message.

The state is a value: save it before a reply leaves. A new process that reads it answers the same message with the same
bytes. It refuses a second, different message for a step that it has answered, since two answers together can say what
one does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from isoproto.errors import SecureSumError
from isoproto.secure import secrets, shamir
from isoproto.secure.client_state import ClientState
from isoproto.secure.messages import (
    CIPHER_BYTES,
    KEY_BYTES,
    MARK_BYTES,
    Circle,
    Octets,
    Reveal,
    Roster,
    Shares,
    Table,
    Terms,
    array,
)
from isoproto.secure.shamir import SHARE_BYTES
from isoproto.secure.stream import add_stream, derive, digest


def begin(terms: Terms, client: int, entropy: Callable[[int], bytes] = os.urandom) -> ClientState:
    """Draw a client's secret for one sum.

    Args:
        terms: The terms of the sum.
        client: The client's id, >= 0.
        entropy: Gives so many random bytes; only tests replace it.
    """
    return ClientState(terms=terms, client=int(client), secret=entropy(32))


def noise_seed(state: ClientState) -> bytes:
    """Return 32 bytes for the noise of this sum: a repeated message gets the same noise, so it says nothing more."""
    return derive(state.secret, b"noise")


def public_keys(state: ClientState) -> Octets:
    """Step 1: return the client's public keys, ``[64]``, uint8.

    Example:
        >>> state = begin(Terms(session="a", length=3, minimum=2), 7)
        >>> public_keys(state).shape, bool((public_keys(state) == public_keys(state)).all())
        ((64,), True)
    """
    return _octets(secrets.public_key(_mask_key(state)) + secrets.public_key(_cipher_key(state)))


def share(state: ClientState, roster: Roster) -> tuple[ClientState, Shares]:
    """Step 2: share the client's two secrets out among its holders.

    Returns:
        The state to save, and the encrypted shares.

    Raises:
        SecureSumError: If the roster has a wrong form, too few clients, or another key for this client, or if it is not
            the one that this client has answered before.
    """
    circle = Circle.of(state.terms, roster)
    me = circle.position(state.client)
    if not np.array_equal(circle.keys[me], public_keys(state)):
        raise SecureSumError(
            f"secure sum: the roster has other keys for client {state.client} than it made; it answers nothing. Either "
            f"its state was lost and made anew, or someone puts keys of their own between the clients",
            state.client,
        )
    dealt = _deal(state, circle, me)  # another roster gives other shares
    return replace(state.saw(0, _digest_of(dealt), "roster"), ids=circle.ids, keys=circle.keys), dealt


def mask(state: ClientState, table: Table, vector: npt.NDArray[np.int64]) -> tuple[ClientState, npt.NDArray[np.int64]]:
    r"""Step 3: return the vector under masks.

    .. math::
        y_u = x_u + G(b_u) + \sum_{v > u} G(s_{uv}) - \sum_{v < u} G(s_{uv}) \pmod{2^{64}}

    v goes over the clients that hold shares of u and sent shares; G is a stream of random words.

    Args:
        state: The state after step 2.
        table: The shares of all.
        vector: Whole numbers, ``[L]``, int64, see :mod:`isoproto.secure.fixed_point`.

    Returns:
        The state to save, and the masked vector, ``[L]``, int64. Alone it is as good as random.

    Raises:
        SecureSumError: If the table has a wrong form, too few clients, other shares of this client, or shares that
            cannot be read, which names the client that sent them; or if this client has answered with another table or
            vector before.
    """
    circle = state.circle()
    me = circle.position(state.client)
    table = circle.check_table(table)
    array(vector, np.int64, (state.terms.length,), f"the vector of client {state.client}")
    place = int(np.searchsorted(table.ids, state.client))
    own = Shares(table.rows[place % len(table.ids)], table.seals[place % len(table.ids)])
    if not np.array_equal(_octets(_digest_of(own)), state.seen[0]):
        raise SecureSumError(
            f"secure sum: the table lacks the shares that client {state.client} sent; it sends no vector",
            state.client,
        )
    context = secrets.table_context(circle, table)
    state = state.saw(1, context, "table").saw(2, digest(state.secret, vector.tobytes()), "vector")
    held = np.stack([_opened(state, circle, table, int(owner), me) for owner in circle.held(me, table.ids)])
    return replace(state, table=table.ids, held=held), _under_masks(state, circle, table, vector, context)


def reveal(state: ClientState, asked: Reveal) -> tuple[ClientState, Octets]:
    """Step 4: return shares that let the server take the masks off the sum.

    Of each survivor it is the share of its own mask, of each client that dropped out that of its pair masks. It is
    never both of one client.

    Args:
        state: The state after step 3.
        asked: Who is in the sum and who is not.

    Returns:
        The state to save, and a share for each client that this one holds shares of, by ascending id, ``[j, 33]``.

    Raises:
        SecureSumError: If the message names a client twice, not at all or unknown, if it names too few survivors, or if
            this client has answered another one before.
    """
    circle = state.circle()
    me = circle.position(state.client)
    if not len(state.table):
        raise SecureSumError(
            f"secure sum: client {state.client} got the last step before the third; its state may be lost", state.client
        )
    asked = circle.check_reveal(asked, state.table)
    said = digest(asked.survivors.tobytes(), asked.dropped.tobytes())
    alive = circle.among(asked.survivors)[circle.held(me, state.table)]
    own, pair = state.held[:, :SHARE_BYTES], state.held[:, SHARE_BYTES:]
    return state.saw(3, said, "list of survivors"), np.where(alive[:, None], own, pair)


def _mask_key(state: ClientState) -> bytes:
    return derive(state.secret, b"key for masks")


def _cipher_key(state: ClientState) -> bytes:
    return derive(state.secret, b"key for shares")


def _own_seed(state: ClientState, circle: Circle) -> bytes:
    return derive(state.secret, b"own mask", circle.context)


def _octets(text: bytes) -> Octets:
    return np.frombuffer(text, dtype=np.uint8).copy()


def _digest_of(shares: Shares) -> bytes:
    return digest(shares.rows.tobytes(), shares.seal.tobytes())


def _deal(state: ClientState, circle: Circle, me: int) -> Shares:
    """Split the two secrets and encrypt a pair of shares for each holder."""
    holders = circle.holders[me]
    points = (holders + 1).tolist()
    seed = _own_seed(state, circle)
    halves = [
        shamir.split(secret, points, circle.needed, derive(state.secret, b"coefficients", kind, circle.context))
        for kind, secret in [(secrets.OWN, seed), (secrets.PAIR, _mask_key(state))]
    ]
    rows = [_row(state, circle, int(holder), own, pair) for holder, own, pair in zip(holders, *halves, strict=True)]
    return Shares(np.stack(rows), _octets(secrets.sealed(circle, state.client, seed)))


def _row(state: ClientState, circle: Circle, holder: int, own: bytes, pair: bytes) -> Octets:
    """Return one holder's row: the two shares encrypted, then their marks."""
    other = int(circle.ids[holder])
    secret = secrets.agree(_cipher_key(state), circle.keys[holder, KEY_BYTES:].tobytes(), other)
    cipher = secrets.encrypt(secret, circle, state.client, other, own + pair)
    marks = [
        secrets.mark(circle, kind, state.client, other, text)
        for kind, text in [(secrets.OWN, own), (secrets.PAIR, pair)]
    ]
    return _octets(cipher + b"".join(marks))


def _opened(state: ClientState, circle: Circle, table: Table, owner: int, me: int) -> Octets:
    """Return the two shares that ``owner`` sent to this client, ``[66]``."""
    from cryptography.exceptions import InvalidTag

    other = int(circle.ids[owner])
    column = int(np.searchsorted(circle.holders[owner], me))
    row = table.rows[int(np.searchsorted(table.ids, other)), column].tobytes()
    secret = secrets.agree(_cipher_key(state), circle.keys[owner, KEY_BYTES:].tobytes(), other)
    try:
        text = secrets.decrypt(secret, circle, other, state.client, row[:CIPHER_BYTES])
    except InvalidTag as err:
        raise _unreadable(state, other, "cannot be decrypted") from err
    marks = row[CIPHER_BYTES : CIPHER_BYTES + MARK_BYTES], row[CIPHER_BYTES + MARK_BYTES :]
    halves = text[:SHARE_BYTES], text[SHARE_BYTES:]
    for kind, half, found in zip((secrets.OWN, secrets.PAIR), halves, marks, strict=True):
        if secrets.mark(circle, kind, other, state.client, half) != found:
            raise _unreadable(state, other, "do not fit their marks")
    return _octets(text)


def _unreadable(state: ClientState, owner: int, what: str) -> SecureSumError:
    return SecureSumError(
        f"secure sum: the shares that client {owner} sent to client {state.client} {what}; start the sum again without "
        f"client {owner}",
        owner,
    )


def _under_masks(
    state: ClientState, circle: Circle, table: Table, vector: npt.NDArray[np.int64], context: bytes
) -> npt.NDArray[np.int64]:
    """Add the client's own mask and the masks that it has in common with others."""
    masked = vector.astype("<u8", copy=True)
    add_stream(masked, secrets.own_mask_key(_own_seed(state, circle), context))
    for other in circle.held(circle.position(state.client), table.ids).tolist():
        client = int(circle.ids[other])
        if client != state.client:
            secret = secrets.agree(_mask_key(state), circle.keys[other, :KEY_BYTES].tobytes(), client)
            add_stream(masked, secrets.pair_mask_key(secret, context), 1 if state.client < client else -1)
    return masked.view(np.int64)
