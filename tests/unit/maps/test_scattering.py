"""Scattering of pictures: worked numbers, what changes nothing, and sizes of all kinds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoproto.errors import ConfigError
from isoproto.maps import create_map
from isoproto.maps.base import made_up_pictures
from isoproto.maps.scattering import Scattering

CPU = torch.device("cpu")
SIZES = [(1, 8, 8), (1, 16, 16), (1, 28, 28), (3, 32, 32), (2, 64, 64), (3, 90, 70), (1, 20, 100), (4, 11, 7)]


def scattering(*shape):
    return Scattering(shape, CPU)


def averages(shape, pictures):
    """Return the averages before the logarithm, ``[B, channels, 81, 16]``."""
    return (scattering(*shape)(pictures).exp() - 0.01).view(len(pictures), shape[0], 81, 16)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("value", [0, 51, 255])
def test_a_constant_picture_has_no_edges_even_at_its_borders(shape, value):
    found = averages(shape, torch.full((2, *shape), value, dtype=torch.uint8))
    torch.testing.assert_close(found[:, :, 0], torch.full((2, shape[0], 16), value / 255), rtol=1e-5, atol=1e-6)
    assert float(found[:, :, 1:].abs().max()) < 1e-6


@pytest.mark.parametrize("shape", SIZES)
def test_pictures_of_all_sizes_have_features_that_differ(shape):
    found = scattering(*shape)(made_up_pictures(shape, 5))
    assert found.shape == (5, scattering(*shape).width) == (5, 1296 * shape[0])
    assert found.dtype == torch.float32
    assert bool(found.isfinite().all())
    assert len(found.unique(dim=0)) == 5


@pytest.mark.parametrize("shape", SIZES)
def test_no_pictures_have_features_of_the_right_width(shape):
    assert scattering(*shape)(torch.zeros(0, *shape, dtype=torch.uint8)).shape == (0, 1296 * shape[0])


@given(st.integers(1, 70), st.integers(1, 70))
def test_other_pictures_of_the_batch_change_nothing(count, cut):
    pictures = made_up_pictures((1, 32, 32), count)
    found = scattering(1, 32, 32)
    parts = [found(part) for part in pictures.split(cut)]
    torch.testing.assert_close(torch.cat(parts), found(pictures), rtol=1e-5, atol=1e-5)


def test_channels_are_worked_each_by_itself():
    pictures = made_up_pictures((3, 32, 32), 4)
    alone = [scattering(1, 32, 32)(pictures[:, channel : channel + 1]) for channel in range(3)]
    torch.testing.assert_close(scattering(3, 32, 32)(pictures), torch.cat(alone, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("axis", "direction"), [(3, 0), (2, 4)])
def test_a_wave_is_found_in_its_own_direction(axis, direction):
    """Stripes of the fine scale's frequency, 0.55 pi a pixel: the filter of their direction answers most."""
    line = ((torch.arange(32) * 0.55 * torch.pi).cos() * 100 + 128).round().byte()
    stripes = (line.view(1, 1, 1, 32) if axis == 3 else line.view(1, 1, 32, 1)).expand(1, 1, 32, 32)
    strength = averages((1, 32, 32), stripes)[0, 0, 1:9].mean(1)
    assert int(strength.argmax()) == direction
    # A wave of amplitude a gives a / 2 through a filter of gain 1 at its frequency: 100 / 255 / 2.
    assert float(strength[direction]) == pytest.approx(0.196, rel=0.05)


def test_a_mirrored_picture_has_mirrored_features():
    """Mirroring left to right takes direction l to 8 - l and cell (r, c) to (r, 3 - c). Moduli do not see the sign."""
    pictures = made_up_pictures((1, 32, 32), 3)
    here, there = (averages((1, 32, 32), x)[:, 0].view(3, 81, 4, 4) for x in (pictures, pictures.flip(3)))
    other = [-angle % 8 for angle in range(8)]
    torch.testing.assert_close(here[:, 1:9], there[:, 1:9][:, other].flip(3), rtol=1e-3, atol=1e-5)


def test_large_pictures_are_averaged_down():
    small = made_up_pictures((1, 64, 64), 3)
    large = small.repeat_interleave(3, 2).repeat_interleave(3, 3)
    torch.testing.assert_close(scattering(1, 192, 192)(large), scattering(1, 64, 64)(small), rtol=1e-4, atol=1e-4)


def test_equal_maps_are_equal():
    assert scattering(1, 8, 8) == scattering(1, 8, 8) != scattering(1, 8, 9)
    assert hash(scattering(1, 8, 8)) == hash(scattering(1, 8, 8))


def test_texts_are_refused():
    with pytest.raises(ConfigError, match=r"'scattering' is a map of pictures; the samples are texts\. Use 'words'"):
        create_map("scattering", shape=(), words=("", "?", "a "), device=CPU)
