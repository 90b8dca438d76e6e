"""Augmentation of batches against the same thing done picture by picture."""

import math

import pytest
import torch
from torch.nn import functional
from torchvision.transforms import InterpolationMode, autoaugment

from client_app.training import LocalSettings, train
from isoproto.data import ClientData
from isoproto.data.augment import AUGMENTATIONS
from models import ModelSpec, create_model

SETTINGS = {
    "epochs": 2,
    "batch_size": 8,
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "proto_source": "post-eval",
}


def pictures(samples=200, channels=3, side=12):
    return torch.randint(0, 256, (samples, channels, side, side), generator=seeded(9)).to(torch.uint8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_shape_and_type_stay_and_the_pictures_given_are_not_changed(name, channels):
    x = pictures(channels=channels)
    before = x.clone()
    changed = AUGMENTATIONS[name](x, seeded())
    assert (changed.shape, changed.dtype) == (x.shape, torch.uint8)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_equal_generators_give_equal_pictures_and_no_other_is_touched(name):
    x, before = pictures(), torch.get_rng_state()
    first = AUGMENTATIONS[name](x, seeded(1))
    assert torch.equal(first, AUGMENTATIONS[name](x, seeded(1)))
    assert torch.equal(first, AUGMENTATIONS[name](x, seeded(2))) == (name == "none")
    assert torch.equal(torch.get_rng_state(), before)


def test_none_draws_nothing():
    generator = seeded()
    x = pictures()
    assert AUGMENTATIONS["none"](x, generator) is x
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_flip_mirrors_about_half_of_the_pictures():
    x = pictures(1000)
    changed = AUGMENTATIONS["flip"](x, seeded())
    mirrored = (changed == x.flip(3)).flatten(1).all(1)
    assert ((changed == x).flatten(1).all(1) ^ mirrored).all()
    assert 420 < mirrored.sum() < 580  # five standard deviations


def test_crop_takes_a_window_of_its_own_for_each_picture():
    x = pictures(500)
    padded = functional.pad(x, [4] * 4)
    windows = torch.stack([padded[:, :, t : t + 12, u : u + 12] for t in range(9) for u in range(9)])  # [81, B, ...]
    windows = torch.cat([windows, windows.flip(4)])
    found = (windows == AUGMENTATIONS["crop_flip"](x, seeded())).flatten(2).all(2)  # [162, B]
    assert (found.sum(0) == 1).all()
    assert found.any(1).sum() > 130  # of 162; 1 - (161/162)^500 of them, 155, are expected


def test_a_batch_is_cropped_and_mirrored_as_one():
    x = pictures(50)
    for seed in range(5):
        changed = AUGMENTATIONS["crop_flip_batch"](x, seeded(seed))
        # Each picture alone, by the draw of the whole batch.
        assert torch.equal(changed, torch.cat([AUGMENTATIONS["crop_flip_batch"](one[None], seeded(seed)) for one in x]))


@pytest.mark.parametrize("channels", [1, 3])
def test_autoaugment_is_torchvisions_picture_by_picture(channels):
    x = pictures(400, channels)
    policy = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
    space = policy._augmentation_space(10, (12, 12))
    generator = seeded(3)
    which = torch.randint(25, (len(x),), generator=generator)
    chance, sign = (torch.rand(len(x), 2, generator=generator) for _ in range(2))
    wanted = []
    for i, picture in enumerate(x):
        for step, (name, probability, level) in enumerate(policy.policies[which[i]]):
            magnitudes, signed = space[name]
            magnitude = 0.0 if level is None else float(magnitudes[level])
            if signed and sign[i, step] < 0.5:
                magnitude = -magnitude
            if chance[i, step] < probability:
                picture = autoaugment._apply_op(picture, name, magnitude, InterpolationMode.NEAREST, None)
        wanted.append(picture)
    assert torch.equal(AUGMENTATIONS["autoaugment"](x, seeded(3)), torch.stack(wanted))


def test_warp_is_a_turn_a_scale_and_a_shift_picture_by_picture():
    """Each pixel is looked up in a loop: the source of an offset from the centre, between its four neighbours."""
    x, side = pictures(4, 1, 9), 9
    turns, across, down, sizes = (2 * torch.rand(4, 4, generator=seeded(5)) - 1).tolist()
    changed = AUGMENTATIONS["warp"](x, seeded(5)).float()
    for i in range(4):
        angle, scale = math.radians(15 * turns[i]), 1 + 0.15 * sizes[i]
        for row in range(side):
            for column in range(side):
                u, v = column - 4, row - 4  # from the centre, in pixels
                source_u = (u * math.cos(angle) - v * math.sin(angle)) / scale + 0.1 * side * across[i] + 4
                source_v = (u * math.sin(angle) + v * math.cos(angle)) / scale + 0.1 * side * down[i] + 4
                source_u, source_v = min(max(source_u, 0), side - 1), min(max(source_v, 0), side - 1)
                left, top = min(int(source_u), side - 2), min(int(source_v), side - 2)
                part_u, part_v = source_u - left, source_v - top
                near = x[i, 0, top : top + 2, left : left + 2].tolist()
                upper, lower = ((1 - part_u) * one + part_u * other for one, other in near)
                wanted = (1 - part_v) * upper + part_v * lower
                assert abs(float(changed[i, 0, row, column]) - wanted) < 0.51


def test_warp_keeps_constant_pictures_and_channels_together():
    flat = torch.full((50, 3, 16, 16), 255, dtype=torch.uint8)
    assert torch.equal(AUGMENTATIONS["warp"](flat, seeded()), flat)
    grey = pictures(20, 1, 16).expand(-1, 3, -1, -1)
    changed = AUGMENTATIONS["warp"](grey, seeded())
    assert torch.equal(changed[:, :1].expand_as(changed), changed)


def test_warp_flip_mirrors_about_half_of_the_warped_pictures():
    x = pictures(400, side=16)
    warped, changed = (AUGMENTATIONS[name](x, seeded(2)) for name in ("warp", "warp_flip"))
    mirrored = (changed == warped.flip(3)).flatten(1).all(1)
    assert ((changed == warped).flatten(1).all(1) ^ mirrored).all()
    assert 150 < mirrored.sum() < 250  # five standard deviations


def trained(augment, x):
    y = torch.arange(len(x)) % 4
    data = ClientData(x, y, x[:0], y[:0], tuple("abcd"))
    model = create_model("cnn4", ModelSpec(3, 32, 32, 8, 4), seed=0)
    train(model, data, LocalSettings(**SETTINGS, augment=augment), [], seeded())
    return torch.cat([t.detach().flatten() for t in model.parameters()])


def test_training_sees_augmented_pictures_in_the_order_of_plain_ones():
    # Of pictures that are their own mirror images a flip changes nothing, whatever was drawn.
    x = pictures(40, side=32)
    symmetric = torch.cat([x[..., :16], x[..., :16].flip(3)], dim=3)
    assert torch.equal(trained("flip", symmetric), trained("none", symmetric))
    assert not torch.equal(trained("flip", x), trained("none", x))
    assert torch.equal(trained("crop_flip", x), trained("crop_flip", x))
