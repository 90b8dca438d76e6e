"""The server's steps in a secure sum, as functions of the clients' replies. It keeps nothing secret.

``read_...`` functions check one client's reply and name the client, so that a bad reply is one failed client. The other
functions make the next message. In the end :func:`total` returns the sum of the survivors' vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from isoproto.errors import SecureSumError
from isoproto.secure import secrets, shamir
from isoproto.secure.messages import (
    CIPHER_BYTES,
    KEY_BYTES,
    MARK_BYTES,
    ROW_BYTES,
    SEAL_BYTES,
    Circle,
    Ids,
    Octets,
    Reveal,
    Roster,
    S,
    Shares,
    Table,
    Terms,
    array,
    enough,
)
from isoproto.secure.shamir import SHARE_BYTES
from isoproto.secure.stream import Words, add_stream

Arrays = npt.NDArray[Any]


def roster(terms: Terms, keys: Mapping[int, Arrays]) -> Roster:
    """Step 2: make the roster of the clients that sent keys.

    Args:
        terms: The terms of the sum.
        keys: Public keys by client, ``[64]``, uint8.

    Raises:
        SecureSumError: If clients are too few, or if a key has a wrong form, which names the client.
    """
    enough(len(keys), terms, "sent keys")
    checked = {client: _of(client, keys[client], np.uint8, (2 * KEY_BYTES,), "keys") for client in sorted(keys)}
    return Roster(np.array(list(checked), dtype=np.int64), np.stack(list(checked.values())))


def read_shares(circle: Circle, client: int, shares: Shares) -> Shares:
    """Check the form of a client's shares.

    Raises:
        SecureSumError: If it is wrong, or if the client is unknown.
    """
    circle.position(client)
    rows = _of(client, shares.rows, np.uint8, (circle.holders.shape[1], ROW_BYTES), "shares")
    return Shares(rows, _of(client, shares.seal, np.uint8, (SEAL_BYTES,), "seal"))


def table(circle: Circle, shares: Mapping[int, Shares]) -> Table:
    """Step 3: make the table of the clients that sent shares.

    Raises:
        SecureSumError: If clients are too few, if one has too few holders, or if shares have a wrong form.
    """
    enough(len(shares), circle.terms, "sent shares")
    read = [read_shares(circle, client, shares[client]) for client in sorted(shares)]
    ids = np.array(sorted(shares), dtype=np.int64)
    return circle.check_table(Table(ids, np.stack([one.rows for one in read]), np.stack([one.seal for one in read])))


def read_vector(circle: Circle, shared: Ids, client: int, vector: Arrays) -> npt.NDArray[np.int64]:
    """Check a client's masked vector, ``[L]``, int64.

    Raises:
        SecureSumError: If it has a wrong form, or if the client sent no shares.
    """
    _sent_shares(shared, client)
    return _of(client, vector, np.int64, (circle.terms.length,), "vector")


def reveal(circle: Circle, shared: Ids, arrived: Ids) -> Reveal:
    """Step 4: say whose vector arrived.

    Args:
        circle: The clients of the sum.
        shared: ``Table.ids``.
        arrived: Clients whose vector is in the sum, ascending.

    Raises:
        SecureSumError: If they are too few, if too few holders of a client are among them, or if one is unknown.
    """
    asked = circle.check_reveal(Reveal(arrived, np.setdiff1d(shared, arrived)), shared)
    circle.check_holders(shared, circle.among(arrived), "sent a vector")
    return asked


def read_answer(circle: Circle, sent: Table, asked: Reveal, client: int, answer: Arrays) -> Octets:
    """Check the shares that a client reveals, ``[j, 33]``, uint8, against their marks.

    Raises:
        SecureSumError: If their form is wrong, if the client sent no shares itself, or if it changed a share.
    """
    _sent_shares(sent.ids, client)
    me = circle.position(client)
    owners = circle.held(me, sent.ids)
    answer = _of(client, answer, np.uint8, (len(owners), SHARE_BYTES), "revealed shares")
    alive = circle.among(asked.survivors)
    for owner, share in zip(owners.tolist(), answer, strict=True):
        kind = secrets.OWN if alive[owner] else secrets.PAIR
        row = sent.rows[np.searchsorted(sent.ids, circle.ids[owner]), np.searchsorted(circle.holders[owner], me)]
        start = CIPHER_BYTES + kind * MARK_BYTES
        expected = secrets.mark(circle, kind, int(circle.ids[owner]), client, share.tobytes())
        if row[start : start + MARK_BYTES].tobytes() != expected:
            raise SecureSumError(
                f"secure sum: client {client} revealed another share of client {circle.ids[owner]} than it got",
                client,
            )
    return answer


def total(
    circle: Circle, sent: Table, asked: Reveal, masked: npt.NDArray[np.int64], answers: Mapping[int, Arrays]
) -> npt.NDArray[np.int64]:
    r"""Take the masks off the sum of the masked vectors.

    .. math::
        \sum_{u \in A} x_u = \sum_{u \in A} y_u - \sum_{u \in A} G(b_u)
        - \sum_{v \in B} \sum_{u \in A, u \sim v} \pm G(s_{uv}) \pmod{2^{64}}

    A are the survivors, B the clients that dropped out, :math:`u \sim v` means that they share a mask.

    Args:
        circle: The clients of the sum.
        sent: The shares of all.
        asked: Survivors and clients that dropped out.
        masked: Sum of the survivors' masked vectors, ``[L]``, int64; int64 wraps round as it should.
        answers: Revealed shares by client, ``[j, 33]``, uint8.

    Returns:
        The sum of the survivors' vectors, ``[L]``, int64, exact.

    Raises:
        SecureSumError: If too few holders of a client answered, if one changed a share, or if a client shared out
            something else than its secrets; the last two name the client.
    """
    array(masked, np.int64, (circle.terms.length,), "the sum of the masked vectors")
    read = {client: read_answer(circle, sent, asked, client, answers[client]) for client in sorted(answers)}
    circle.check_holders(sent.ids, circle.among(np.array(list(read), dtype=np.int64)), "revealed their shares")
    shares = _by_owner(circle, sent.ids, read)
    context = secrets.table_context(circle, sent)
    found = masked.astype("<u8", copy=True)
    for client in asked.survivors.tolist():
        add_stream(found, secrets.own_mask_key(_own_seed(circle, sent, client, shares[client]), context), -1)
    for client in asked.dropped.tolist():
        _remove_pair_masks(found, circle, asked, client, _pair_key(circle, client, shares[client]), context)
    return found.view(np.int64)


def _of(client: int, values: Arrays, dtype: type[S], shape: tuple[int, ...], what: str) -> npt.NDArray[S]:
    """Check an array of one client's reply."""
    try:
        return array(values, dtype, shape, f"client {client}'s {what}")
    except SecureSumError as err:
        raise SecureSumError(str(err), client) from err


def _sent_shares(shared: Ids, client: int) -> None:
    """Check that a client is in the table."""
    if client not in shared:
        raise SecureSumError(f"secure sum: client {client} sent no shares, so it is not in this sum", client)


def _by_owner(circle: Circle, shared: Ids, answers: Mapping[int, Octets]) -> dict[int, dict[int, bytes]]:
    """Return as many shares of each client's secret as are needed, by point."""
    found: dict[int, dict[int, bytes]] = {int(client): {} for client in shared}
    for client, answer in answers.items():
        me = circle.position(client)
        for owner, share in zip(circle.held(me, shared).tolist(), answer, strict=True):
            of_owner = found[int(circle.ids[owner])]
            if len(of_owner) < circle.needed:
                of_owner[me + 1] = share.tobytes()
    return found


def _own_seed(circle: Circle, sent: Table, client: int, shares: Mapping[int, bytes]) -> bytes:
    """Return the seed of a survivor's own mask."""
    seed = shamir.join(shares)
    seal = sent.seals[np.searchsorted(sent.ids, client)].tobytes()
    if seed is None or secrets.sealed(circle, client, seed) != seal:
        raise _not_shared_out(client)
    return seed


def _pair_key(circle: Circle, client: int, shares: Mapping[int, bytes]) -> bytes:
    """Return the private key for pair masks of a client that dropped out."""
    key = shamir.join(shares)
    if key is None or secrets.public_key(key) != circle.keys[circle.position(client), :KEY_BYTES].tobytes():
        raise _not_shared_out(client)
    return key


def _not_shared_out(client: int) -> SecureSumError:
    return SecureSumError(
        f"secure sum: the shares of client {client} do not give its secret back, and their holders did not change "
        f"them; start the sum again without client {client}",
        client,
    )


def _remove_pair_masks(found: Words, circle: Circle, asked: Reveal, client: int, key: bytes, context: bytes) -> None:
    """Take the masks that survivors share with a dropped client off the sum."""
    for other in circle.held(circle.position(client), asked.survivors).tolist():
        survivor = int(circle.ids[other])
        secret = secrets.agree(key, circle.keys[other, :KEY_BYTES].tobytes(), survivor)
        add_stream(found, secrets.pair_mask_key(secret, context), -1 if survivor < client else 1)
