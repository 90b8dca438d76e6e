"""The secure sum: what each step says, what it refuses, and what nobody may learn."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from isoproto.errors import SecureSumError, StateError
from isoproto.secure import client, secrets, server, shamir
from isoproto.secure.client_state import ClientState
from isoproto.secure.fixed_point import decode, encode, limit
from isoproto.secure.graph import holders, smallest_group
from isoproto.secure.messages import ROW_BYTES, Circle, Reveal, Roster, Shares, Terms
from isoproto.secure.shamir import PRIME, SHARE_BYTES
from isoproto.secure.stream import key_stream
from tests.secure_sums import Sum

LENGTH = 6


def a_sum(clients=5, gone=None, **terms) -> Sum:
    """Client 10 + k has the vector (k, 2k, ...), from k = 1."""
    terms = {"session": "test", "length": LENGTH, "minimum": 2, **terms}
    vectors = {10 + k: k * np.arange(1, LENGTH + 1, dtype=np.int64) for k in range(1, clients + 1)}
    return Sum(Terms(**terms), vectors, gone or {})


def test_three_clients_add_up_as_on_paper():
    assert a_sum(3).run().tolist() == [6, 12, 18, 24, 30, 36]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_client_that_drops_out_before_its_vector_is_not_in_the_sum(step):
    assert a_sum(5, {step: [15]}).run().tolist() == [10, 20, 30, 40, 50, 60]


def test_a_client_that_drops_out_after_its_vector_is_in_the_sum():
    assert a_sum(5, {4: [15]}).run().tolist() == [15, 30, 45, 60, 75, 90]


def test_vectors_wrap_around_and_come_back():
    run = a_sum(3)
    run.vectors = {who: np.array([2**62, -(2**62), -1, 0, 1, 2]) * (1 if who == 11 else 0) for who in run.vectors}
    assert run.run().tolist() == [2**62, -(2**62), -1, 0, 1, 2]


def test_a_masked_vector_alone_looks_random():
    run = a_sum(3)
    run.terms = replace(run.terms, length=50_000)
    run.vectors = {who: np.zeros(50_000, dtype=np.int64) for who in run.vectors}
    run.keys().share().mask()
    for vector in run.masked.values():
        counts = np.bincount(vector.view(np.uint8), minlength=256)
        chi_square = float(((counts - 50_000 * 8 / 256) ** 2 / (50_000 * 8 / 256)).sum())
        assert 174.8 < chi_square < 347.7  # 0.01 % on either side of 255 degrees of freedom
    one, other = list(run.masked.values())[:2]
    assert abs(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) < 0.02


def test_masks_are_gone_only_when_all_survivors_are_added():
    run = a_sum(4).keys().share().mask().reveal()
    partial = sum(run.masked[who] for who in [11, 12, 13])
    wrong = server.total(run.circle, run.table, run.asked, partial, run.answers)
    assert np.abs(wrong).min() > 10**6


def test_no_client_reveals_both_shares_of_another():
    run = a_sum(5, {3: [15]}).keys().share().mask().reveal()
    for who, answer in run.answers.items():
        state = run.states[who]
        assert len(answer) == len(state.table)
        for owner, said, held in zip(state.table.tolist(), answer, state.held, strict=True):
            kept_back = held[:SHARE_BYTES] if owner == 15 else held[SHARE_BYTES:]
            assert np.array_equal(said, held[SHARE_BYTES:] if owner == 15 else held[:SHARE_BYTES])
            assert not np.array_equal(said, kept_back)


def ids(*values):
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("survivors", "dropped", "says"),
    [
        ((11, 12, 13, 14, 15), (15,), "client 15 is named both"),
        ((11, 12, 13, 14), (), "client 15 sent shares but is not named"),
        ((11, 12, 13, 14, 15), (99,), "client 99 is named but sent no shares"),
        ((11,), (12, 13, 14, 15), r"only 1 clients sent a vector.*at least 2"),
        ((12, 11, 13, 14), (15,), "must ascend"),
        ((11, 11, 12, 13, 14), (15,), "must ascend"),
    ],
)
def test_a_client_refuses_a_bad_list_of_survivors(survivors, dropped, says):
    run = a_sum(5).keys().share().mask()
    with pytest.raises(SecureSumError, match=says):
        client.reveal(run.states[11], Reveal(ids(*survivors), ids(*dropped)))


def test_a_client_answers_one_list_of_survivors_only():
    run = a_sum(5).keys().share().mask().reveal()
    with pytest.raises(SecureSumError, match="answered with another list of survivors"):
        client.reveal(run.states[11], Reveal(ids(11, 12, 13, 14), ids(15)))


def test_a_client_answers_one_roster_only():
    run = a_sum(5).keys().share()
    fewer = Roster(run.roster.ids[:4], run.roster.keys[:4])
    with pytest.raises(SecureSumError, match="answered with another roster"):
        client.share(run.states[11], fewer)


def test_a_client_answers_one_table_and_one_vector_only():
    run = a_sum(5).keys().share().mask()
    with pytest.raises(SecureSumError, match="answered with another vector"):
        client.mask(run.states[11], run.table, run.vectors[12])
    fewer = server.table(run.circle, {who: run.sent[who] for who in [11, 12, 13, 14]})
    with pytest.raises(SecureSumError, match="answered with another table"):
        client.mask(run.states[11], fewer, run.vectors[11])


def test_a_new_process_answers_repeated_messages_with_the_same_bytes():
    run = a_sum(5, {3: [15]}).keys().share().mask().reveal()
    state = ClientState.from_arrays({k: v.copy() for k, v in run.states[11].to_arrays().items()})
    assert {v.dtype for v in state.to_arrays().values()} == {np.dtype(np.uint8), np.dtype(np.int64)}
    assert np.array_equal(client.public_keys(state), run.roster.keys[0])
    state, again = client.share(state, run.roster)
    assert np.array_equal(again.rows, run.sent[11].rows)
    state, masked = client.mask(state, run.table, run.vectors[11])
    assert np.array_equal(masked, run.masked[11])
    assert np.array_equal(client.reveal(state, run.asked)[1], run.answers[11])
    assert client.noise_seed(state) == client.noise_seed(run.states[11])
    assert client.noise_seed(state) != client.noise_seed(run.states[12])


def test_a_state_that_cannot_be_read_is_a_clear_error():
    arrays = a_sum(3).keys().states[11].to_arrays()
    del arrays["held"]
    with pytest.raises(StateError, match=r"cannot be read \(KeyError\('held'\)\); delete it"):
        ClientState.from_arrays(arrays)


def test_a_state_does_not_show_its_secrets_in_a_log():
    shown = repr(a_sum(3).keys().share().mask().states[11])
    assert "client=11" in shown
    assert "secret=" not in shown
    assert "held=" not in shown


def test_ids_may_be_numbers_of_numpy():
    run = a_sum(3)
    run.vectors = {np.int64(who): vector for who, vector in run.vectors.items()}
    assert run.run().tolist() == [6, 12, 18, 24, 30, 36]
    assert ClientState.from_arrays(run.states[11].to_arrays()).client == 11


def test_steps_out_of_order_are_refused():
    run = a_sum(3).keys()
    other = a_sum(3).keys().share().mask()
    with pytest.raises(SecureSumError, match="client 11 has not sent shares in session 'test'"):
        client.mask(run.states[11], other.table, run.vectors[11])
    run.share()
    with pytest.raises(SecureSumError, match="client 11 got the last step before the third"):
        client.reveal(run.states[11], other.asked)


def test_too_few_clients_stop_every_step():
    with pytest.raises(SecureSumError, match=r"only 3 clients sent keys.*at least 4"):
        a_sum(4, {1: [14]}, minimum=4).run()
    with pytest.raises(SecureSumError, match=r"only 3 clients sent shares"):
        a_sum(4, {2: [14]}, minimum=4).run()
    with pytest.raises(SecureSumError, match=r"only 3 clients sent a vector"):
        a_sum(4, {3: [14]}, minimum=4).run()
    with pytest.raises(SecureSumError, match=r"of the 5 holders of client 11's shares only 3 sent a vector, and 4 are"):
        a_sum(5, {3: [14, 15]}).run()
    with pytest.raises(SecureSumError, match=r"only 3 revealed their shares"):
        a_sum(5, {4: [14, 15]}).run()


def test_a_client_refuses_a_roster_with_too_few_or_other_keys():
    run = a_sum(3, minimum=3).keys()
    with pytest.raises(SecureSumError, match="only 2 clients are on the roster"):
        client.share(run.states[11], Roster(run.roster.ids[:2], run.roster.keys[:2]))
    forged = run.roster.keys.copy()
    forged[0, 3] ^= 1
    with pytest.raises(SecureSumError, match="other keys for client 11 than it made"):
        client.share(run.states[11], Roster(run.roster.ids, forged))
    forged = run.roster.keys.copy()
    forged[1] = forged[2]
    with pytest.raises(SecureSumError, match="two keys on the roster are equal"):
        client.share(run.states[11], Roster(run.roster.ids, forged))
    with pytest.raises(SecureSumError, match="client 11 is not on the roster"):
        client.share(run.states[11], Roster(ids(12, 13, 14), run.roster.keys))


def test_an_unusable_public_key_names_its_client():
    run = a_sum(3).keys()
    forged = run.roster.keys.copy()
    forged[2, 32:] = 0
    with pytest.raises(SecureSumError, match="public key of client 13 is not usable") as caught:
        client.share(run.states[11], Roster(run.roster.ids, forged))
    assert caught.value.clients == (13,)


@pytest.mark.parametrize(("byte", "says"), [(5, "cannot be decrypted"), (90, "do not fit their marks")])
def test_a_changed_share_on_the_way_to_a_holder_names_its_owner(byte, says):
    run = a_sum(4).keys()
    run.share()
    rows = run.sent[13].rows.copy()
    rows[0, byte] ^= 1  # the row for client 11
    table = server.table(run.circle, {**run.sent, 13: Shares(rows, run.sent[13].seal)})
    with pytest.raises(SecureSumError, match=f"client 13 sent to client 11 {says}") as caught:
        client.mask(run.states[11], table, run.vectors[11])
    assert caught.value.clients == (13,)
    with pytest.raises(SecureSumError, match="the table lacks the shares that client 13 sent"):
        client.mask(run.states[13], table, run.vectors[13])


def test_a_changed_share_in_the_last_step_names_its_holder():
    run = a_sum(4).keys().share().mask().reveal()
    run.answers[12] = run.answers[12].copy()
    run.answers[12][2, 0] ^= 1
    with pytest.raises(SecureSumError, match="client 12 revealed another share of client 13 than it got") as caught:
        run.total()
    assert caught.value.clients == (12,)


@pytest.mark.parametrize("gone", [{}, {3: [13]}])
def test_a_client_that_shares_out_something_else_is_named(gone, monkeypatch):
    split = shamir.split
    run = a_sum(5, gone).keys()
    with monkeypatch.context() as patch:
        patch.setattr(shamir, "split", lambda secret, *rest: split(bytes(32), *rest))
        run.states[13], hostile = client.share(run.states[13], run.roster)
    real = client.share

    def share(state, roster):
        return (state, hostile) if state.client == 13 else real(state, roster)

    with monkeypatch.context() as patch:
        patch.setattr(client, "share", share)
        run.share()
    run.mask().reveal()
    with pytest.raises(SecureSumError, match="shares of client 13 do not give its secret back") as caught:
        run.total()
    assert caught.value.clients == (13,)


def test_replies_of_a_wrong_form_name_their_client():
    run = a_sum(3).keys().share().mask().reveal()
    with pytest.raises(SecureSumError, match=r"client 12's keys must be uint8 \(64,\), got uint8 \(63,\)") as caught:
        server.roster(run.terms, {11: run.roster.keys[0], 12: run.roster.keys[1][:63]})
    assert caught.value.clients == (12,)
    assert pickle.loads(pickle.dumps(caught.value)).clients == (12,)
    with pytest.raises(SecureSumError, match="client 99 is not on the roster"):
        server.read_shares(run.circle, 99, run.sent[11])
    with pytest.raises(SecureSumError, match=r"client 11's shares must be uint8 \(3, 114\)"):
        server.read_shares(run.circle, 11, Shares(run.sent[11].rows[:2], run.sent[11].seal))
    with pytest.raises(SecureSumError, match="client 11's vector must be int64"):
        server.read_vector(run.circle, run.table.ids, 11, run.masked[11].astype(float))
    with pytest.raises(SecureSumError, match="client 99 sent no shares"):
        server.read_vector(run.circle, run.table.ids, 99, run.masked[11])
    with pytest.raises(SecureSumError, match="client 11's revealed shares must be uint8"):
        server.read_answer(run.circle, run.table, run.asked, 11, run.answers[11][:1])


def test_a_small_group_of_survivors_that_shares_no_mask_with_the_others_is_refused():
    run = a_sum(12, minimum=3, degree=2, threshold=0.5).keys().share()
    before, here, after = _walk(run.circle, 0)
    beyond = next(p for p in run.circle.holders[after].tolist() if p not in (here, after))
    dropped = np.sort(run.circle.ids[[before, beyond]])
    survivors = np.setdiff1d(run.circle.ids, dropped)
    with pytest.raises(SecureSumError, match=r"only 2 clients are joined by masks.*at least 3"):
        client.reveal(replace(run.states[int(survivors[0])], table=run.table.ids), Reveal(survivors, dropped))


def _walk(circle, here):
    before, after = (p for p in circle.holders[here].tolist() if p != here)
    return before, here, after


def test_terms_say_all_their_problems_at_once():
    with pytest.raises(ValueError, match=r"`session`.*`length`.*`minimum`.*`threshold`.*`degree`"):
        Terms(session="", length=0, minimum=1, threshold=0.4, degree=3)


def test_different_sums_have_nothing_in_common():
    one, other = a_sum(3).keys().share().mask(), a_sum(3, session="other").keys().share().mask()
    assert one.circle.context != other.circle.context
    assert not np.array_equal(one.masked[11], other.masked[11])
    with pytest.raises(SecureSumError, match="the table lacks the shares that client 11 sent"):
        client.mask(one.states[11], other.table, one.vectors[11])


def test_messages_have_the_sizes_that_the_docs_say():
    run = a_sum(60, degree=40).keys().share().mask().reveal()
    assert ROW_BYTES == 114
    assert run.roster.keys[0].nbytes == 64
    assert run.sent[11].rows.nbytes + run.sent[11].seal.nbytes == 41 * 114 + 32
    assert run.table.rows.nbytes == 60 * 41 * 114
    assert run.masked[11].nbytes == 8 * LENGTH
    assert run.answers[11].nbytes == 41 * 33
    assert run.total().tolist() == [1830 * k for k in range(1, LENGTH + 1)]


def test_holders_are_mutual_and_include_the_client():
    found = holders(50, 8, bytes(32))
    joined = {(a, b) for a in range(50) for b in found[a].tolist()}
    assert found.shape == (50, 9)
    assert all((b, a) in joined for a, b in joined)
    assert all((a, a) in joined for a in range(50))
    assert smallest_group(found, np.ones(50, bool)) == 50
    assert not np.array_equal(found, holders(50, 8, bytes(31) + b"1"))


def test_the_modulus_is_prime():
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):  # Miller and Rabin: a composite passes 40 bases with chance below 4^-40
        x = pow(base, odd, PRIME)
        assert x in (1, PRIME - 1) or any((x := x * x % PRIME) == PRIME - 1 for _ in range(twos - 1))


def test_a_worked_secret_of_two_points():
    secret = (7).to_bytes(32, "little")
    slope = int.from_bytes(key_stream(bytes(32), 8).tobytes(), "little") % PRIME
    one, five = shamir.split(secret, [1, 5], needed=2, seed=bytes(32))
    assert int.from_bytes(one, "little") == (7 + slope) % PRIME
    assert int.from_bytes(five, "little") == (7 + 5 * slope) % PRIME
    assert shamir.join({1: one, 5: five}) == secret
    with pytest.raises(ValueError, match="cannot split"):
        shamir.split(secret, [1, 1], needed=2, seed=bytes(32))


def test_the_stream_is_aes_in_counter_mode():
    # FIPS 197's test vector, AES-256 of the zero block under the zero key: dc95c078a2408989ad48a21492842087.
    assert key_stream(bytes(32), 2).tobytes().hex() == "dc95c078a2408989ad48a21492842087"
    long = key_stream(bytes(32), 100_001)
    assert np.array_equal(long[:70_000], key_stream(bytes(32), 70_000))
    assert len(np.unique(long)) == 100_001


def test_two_clients_agree_on_a_secret_that_a_third_does_not_get():
    one, other, third = bytes(32), b"1" * 32, b"2" * 32
    agreed = secrets.agree(one, secrets.public_key(other), 1)
    assert agreed == secrets.agree(other, secrets.public_key(one), 2)
    assert agreed != secrets.agree(third, secrets.public_key(other), 3)


def test_masks_are_made_for_one_table_only():
    """Else a client whose state was lost could answer two tables, and the difference would bare a part of its masks."""
    for key in (secrets.own_mask_key, secrets.pair_mask_key):
        assert key(bytes(32), b"one table") != key(bytes(32), b"another table")
    assert secrets.own_mask_key(bytes(32), b"a table") != secrets.pair_mask_key(bytes(32), b"a table")


def test_fixed_point_refuses_what_could_overflow():
    most = limit()
    assert decode(encode([most - 1, 1 - most])).tolist() == [most - 1, 1 - most]
    with pytest.raises(ValueError, match=r"class sums has a value of magnitude 8.38861e\+06.*must be below"):
        encode([most], what="class sums")
    with pytest.raises(ValueError, match="has 2 values that are NaN or infinite"):
        encode([np.nan, np.inf, 1.0])
    largest = encode(np.full(3, most - 2.0**-24))
    assert decode(sum(largest for _ in range(2**10)) * 2**6).tolist() == [2**16 * (most - 2.0**-24)] * 3


def test_a_circle_is_the_same_for_all():
    run = a_sum(50, degree=10).keys()
    assert np.array_equal(Circle.of(run.terms, run.roster).holders, run.circle.holders)
