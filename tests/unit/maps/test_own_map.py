"""A node's own map is tried before it is used, and what is wrong with it is said."""

import pytest
import torch

from isoproto.errors import ConfigError
from isoproto.maps import create_map, fingerprint

CPU = torch.device("cpu")
SHAPE = (1, 4, 4)
WORDS = ("", "[UNK] ", "a ", "cat ", "dog ")

CODE = """
import torch

def rows(x):
    return x.flatten(1) + 1

def lengths(texts):
    return torch.tensor([[len(text), text.count("a")] for text in texts])

def flat(x):
    return x.flatten()

def maps(x):
    return x

def nothing(x):
    return x.flatten(1)[:, :0]

def numbers(x):
    return x.flatten(1).numpy()

def nans(x):
    return torch.cat([x.flatten(1)[:2], x.flatten(1)[2:] / 0 - x.flatten(1)[2:] / 0])

def noise(x):
    return x.flatten(1) + 0.1 * torch.rand(len(x), 1)

def batch_norm(x):
    return x.flatten(1) - x.flatten(1).mean(0)

def fails(x):
    raise RuntimeError("no weights in /here")

def bright(x):
    return x.flatten(1) if x.mean() < 0.99 else x.flatten(1)[:, :3]

def dark(x):
    return 1 / x.flatten(1).amax(1, keepdim=True)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return lambda function: f"{tmp_path / 'mine.py'}:{function}"


def test_pictures_come_as_numbers_from_0_to_1(own):
    found = create_map("own", shape=SHAPE, words=(), device=CPU, own=own("rows"))
    x = torch.arange(0, 32, dtype=torch.uint8).view(2, 1, 4, 4)
    assert (found.name, found.width, found.shape) == ("own", 16, SHAPE)
    expected = x.flatten(1) / 255 + 1
    torch.testing.assert_close(found(x), expected / expected.norm(dim=1, keepdim=True))


def test_texts_come_as_texts_whatever_the_vocabulary(own):
    found = create_map("own", shape=(), words=WORDS, device=CPU, own=own("lengths"))
    assert (found.width, found.shape) == (2, ())
    lengths = torch.tensor([[5.0, 2.0], [11.0, 0.0]])
    features = found(torch.tensor([[2, 3, 0], [4, 4, 4]], dtype=torch.int32))
    torch.testing.assert_close(features, lengths / torch.tensor([[29**0.5], [11.0]]))
    other = create_map("own", shape=(), words=WORDS[:3], device=CPU, own=own("lengths"))
    assert fingerprint(found) == fingerprint(other)


def test_another_function_has_another_checksum(own):
    found = [create_map("own", shape=SHAPE, words=(), device=CPU, own=own(name)) for name in ("rows", "rows", "dark")]
    assert fingerprint(found[0]) == fingerprint(found[1]) != fingerprint(found[2])


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("flat", r"must return features \(8, W\) for pictures \(8, 1, 4, 4\), got \(128,\); flatten or average"),
        ("maps", r"got \(8, 1, 4, 4\); flatten or average"),
        ("nothing", r"got \(8, 0\)"),
        ("numbers", "got ndarray; return a torch.Tensor"),
        ("nans", "finite; those of sample 2 of the batch are not"),
        ("noise", "differ by .* from call to call; it must not draw random numbers"),
        ("batch_norm", r"differ by .* with the other samples of the batch; call `\.eval\(\)`"),
        ("fails", r"fails on pictures \(8, 1, 4, 4\): RuntimeError: no weights in /here"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_what_is_wrong_is_said_before_it_is_used(function, error, own):
    with pytest.raises(ConfigError, match=error):
        create_map("own", shape=SHAPE, words=(), device=CPU, own=own(function))


def test_no_function_is_refused():
    with pytest.raises(ConfigError, match=r'needs a function of each node; write `map = "FILE.py:callable"`'):
        create_map("own", shape=SHAPE, words=(), device=CPU)


def test_what_goes_wrong_later_is_said_too(own):
    white, black = torch.full((3, *SHAPE), 255, dtype=torch.uint8), torch.zeros(3, *SHAPE, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=r"returns 3 features for pictures \(3, 1, 4, 4\) and returned 16"):
        create_map("own", shape=SHAPE, words=(), device=CPU, own=own("bright"))(white)
    with pytest.raises(ConfigError, match="finite; those of sample 0"):
        create_map("own", shape=SHAPE, words=(), device=CPU, own=own("dark"))(black)
