"""Features of texts do not depend on a node's vocabulary, and are what a plain loop computes."""

import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoproto.errors import ConfigError
from isoproto.maps.words import Characters, Words, word_map

CPU = torch.device("cpu")
VOCABULARY = ("the", "market", "markets", "mark", "a", "!", "naïve", "北京")
texts = st.lists(st.lists(st.sampled_from(VOCABULARY), max_size=7), min_size=1, max_size=4)


def encode(some, vocabulary):
    """Return token ids and the characters of each, as a data set has them."""
    words = ("", "[UNK] ", *(f"{word} " for word in vocabulary))
    longest = max(1, *(len(text) for text in some))
    rows = [[words.index(f"{word} ") for word in text] + [0] * (longest - len(text)) for text in some]
    return torch.tensor(rows, dtype=torch.int32), words


def by_hand(text):
    """Count one text in a loop."""
    counts = [0] * 2048
    for word in text:
        for piece in {word[:4], word}:
            digest = hashlib.blake2b(piece.encode(), digest_size=8).digest()
            counts[int.from_bytes(digest[:4], "little") % 2048] += 1 if digest[4] % 2 else -1
    logs = [math.copysign(math.log(1 + abs(n)), n) for n in counts]
    length = math.sqrt(sum(v * v for v in logs)) or 1.0
    return torch.tensor([v / length for v in logs])


@given(texts)
def test_features_are_those_of_a_plain_loop(some):
    ids, words = encode(some, VOCABULARY)
    torch.testing.assert_close(Words(words, CPU)(ids), torch.stack([by_hand(text) for text in some]))


@given(texts, st.permutations([*VOCABULARY, "other", "more"]))
def test_another_vocabulary_changes_nothing(some, vocabulary):
    ids, words = encode(some, VOCABULARY)
    others, other_words = encode(some, vocabulary)
    assert torch.equal(Words(words, CPU)(ids), Words(other_words, CPU)(others))
    assert torch.equal(Words(words, CPU).probed(), Words(other_words, CPU).probed())


@given(texts)
def test_the_order_of_words_and_padding_change_nothing(some):
    ids, words = encode(some, VOCABULARY)
    padded = torch.cat([torch.zeros(len(ids), 2, dtype=torch.int32), ids.flip(1)], 1)
    assert torch.equal(Words(words, CPU)(ids), Words(words, CPU)(padded))


def test_unknown_words_count_nothing_and_length_is_one():
    found = Words(("", "[UNK] ", "cat "), CPU)(torch.tensor([[1, 0, 0], [1, 2, 2], [0, 0, 0]]))
    assert found.norm(dim=1).tolist() == [0.0, 1.0, 0.0]


def run_by_hand(text):
    """Place the last 1 to 5 characters of one text in a loop."""
    features = [0.0] * 2048
    run = 0
    for k in range(1, min(5, len(text)) + 1):
        run = (run * 1103515245 + ord(text[-k]) + 1 + k) % (2**31 - 1)
        mixed = run * 48271 % (2**31 - 1)
        features[mixed % 2048] += 0.7 ** (k - 1) * (1 - 2 * (mixed // 2048 % 2))
    length = math.sqrt(sum(v * v for v in features)) or 1.0
    return torch.tensor([v / length for v in features])


@given(st.lists(st.text("abcde\n ", max_size=8), min_size=1, max_size=4), st.permutations("abcdef\n "))
def test_characters_are_those_of_a_plain_loop_under_any_vocabulary(some, alphabet):
    words = ("", "\N{REPLACEMENT CHARACTER}", *alphabet)
    longest = max(1, *(len(text) for text in some))
    ids = torch.tensor([[words.index(c) for c in text] + [0] * (longest - len(text)) for text in some])
    expected = torch.stack([run_by_hand(text) for text in some])
    torch.testing.assert_close(Characters(words, CPU)(ids.int()), expected)


def test_what_stands_before_the_last_five_characters_changes_nothing():
    texts = Characters(("", "?", *"abc"), CPU)
    found = texts(torch.tensor([[2, 2, 3, 4, 2, 3, 4], [4, 3, 3, 4, 2, 3, 4], [4, 3, 4, 4, 2, 3, 4]]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("made", [Words, Characters])
def test_probes_are_eight_different_texts_of_unit_length(made):
    found = made(("", "?", "a"), CPU).probed()
    assert found.shape == (8, 2048)
    assert len(found.unique(dim=0)) == 8
    torch.testing.assert_close(found.norm(dim=1), torch.ones(8))


def test_single_characters_are_told_from_words():
    assert word_map((), ("", "[UNK] ", "a ", "b "), CPU).name == "words"
    assert word_map((), ("", "?", "a", "\n"), CPU).name == "characters"


def test_equal_maps_are_equal():
    assert Words(("", "?", "a "), CPU) == Words(("", "?", "a "), CPU)
    assert hash(Words(("", "?", "a "), CPU)) == hash(Words(("", "?", "a "), CPU))


def test_pictures_and_empty_vocabularies_are_refused():
    with pytest.raises(ConfigError, match=r"a map of texts; the samples are pictures \(3, 32, 32\)"):
        word_map((3, 32, 32), (), CPU)
    with pytest.raises(ConfigError, match="vocabulary of at least one word"):
        word_map((), ("", "?"), CPU)
