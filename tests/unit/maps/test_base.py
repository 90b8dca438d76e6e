"""Checksums of maps agree where machines round differently, and differ where maps do."""

import dataclasses

import pytest
import torch

from isoproto.errors import ConfigError
from isoproto.maps import MAPS, create_map, fingerprint, made_up, made_up_pictures
from isoproto.maps.base import fixed_pictures
from isoproto.maps.scattering import Scattering
from isoproto.seeding import torch_generator

CPU = torch.device("cpu")
SHAPES = [(1, 8, 8), (1, 28, 28), (1, 32, 32), (3, 32, 32), (3, 64, 64)]


@dataclasses.dataclass(frozen=True)
class Given:
    """A map whose features of the fixed samples are given."""

    features: torch.Tensor = dataclasses.field(compare=False)
    name: str = "given"

    def __hash__(self):
        return id(self)

    @property
    def width(self):
        return self.features.shape[1]

    def probed(self):
        return self.features


def checksum(features, name="given"):
    return fingerprint(Given(features, name))


@pytest.mark.parametrize("shape", SHAPES)
def test_last_bits_change_no_checksum(shape):
    features = Scattering(shape, CPU).probed()
    for seed in range(20):
        noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(seed))
        assert checksum(features + 1e-5 * features.std() * noise) == checksum(features)


@pytest.mark.parametrize("shape", SHAPES)
def test_threads_and_batches_change_no_checksum(shape):
    found, threads = Scattering(shape, CPU), torch.get_num_threads()
    pictures = fixed_pictures(shape)
    one_by_one = torch.cat([found(picture[None]) for picture in pictures])
    try:
        torch.set_num_threads(2)
        other = found.probed()
    finally:
        torch.set_num_threads(threads)
    assert checksum(one_by_one) == checksum(other) == checksum(found.probed())


def test_other_features_and_names_have_other_checksums():
    features = Scattering((1, 32, 32), CPU).probed()
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
    others = [features + 0.1 * features.std() * noise, features.flip(1), features.exp(), features[:, 1:], -features]
    found = {checksum(features), checksum(features, "other"), *(checksum(other) for other in others)}
    assert len(found) == 2 + len(others)


def test_scale_and_offset_of_all_features_change_no_checksum():
    """They do not matter: what follows centres features and scales them."""
    features = Scattering((1, 32, 32), CPU).probed()
    assert checksum(3 * features + 1) == checksum(features)


def test_checksums_are_twelve_hex_digits_and_differ_by_shape():
    found = {fingerprint(Scattering(shape, CPU)) for shape in SHAPES}
    assert len(found) == len(SHAPES)
    assert all(len(text) == 12 and int(text, 16) >= 0 for text in found)


@pytest.mark.parametrize("shape", [*SHAPES, (2, 5, 11), (1, 1, 1)])
def test_pictures_of_a_checksum_are_sums_of_squares_of_three_sizes(shape):
    """Whole numbers from the generator, added up in a loop: nothing that a processor could round."""
    channels, height, width = shape
    generator = torch_generator(0, "fixed pictures")
    wanted = [[[[0] * width for _ in range(height)] for _ in range(channels)] for _ in range(8)]
    for side in (1, 3, 9):
        size = (8, channels, -(-height // side), -(-width // side))
        blocks = torch.randint(0, 86, size, generator=generator).tolist()
        for picture, of_picture in zip(wanted, blocks, strict=True):
            for channel, of_channel in zip(picture, of_picture, strict=True):
                for row in range(height):
                    for column in range(width):
                        channel[row][column] += of_channel[row // side][column // side]
    assert fixed_pictures(shape).tolist() == wanted
    assert fixed_pictures(shape).dtype == torch.uint8


def test_made_up_samples_are_always_the_same_and_vary_in_every_feature():
    found = Scattering((1, 28, 28), CPU)
    assert torch.equal(made_up_pictures((1, 28, 28)), made_up_pictures((1, 28, 28)))
    assert made_up(found).shape == (400, 1296)
    assert float(made_up(found).std(0).min()) > 0.05


def test_the_standard_map_is_that_of_the_samples():
    assert create_map("standard", shape=(1, 8, 8), words=(), device=CPU).name == "scattering"
    assert create_map("standard", shape=(), words=("", "?", "a ", "cat "), device=CPU).name == "words"


def test_unknown_maps_are_refused_with_the_choices():
    with pytest.raises(ConfigError, match=f"common.map.*'wavelets'.*{'.*'.join(sorted(MAPS)[:1])}"):
        create_map("wavelets", shape=(1, 8, 8), words=(), device=CPU)
