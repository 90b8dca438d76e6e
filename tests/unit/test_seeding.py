import itertools
import random

import numpy as np
import torch

from isoproto.seeding import derive, numpy_generator, torch_generator


def test_seeds_are_fixed_for_all_time():
    """A change here changes every figure ever recorded: SHA-256 of "0", "batches", "1", "3", first 63 bits."""
    assert derive(0, "batches", 1, "3") == 6642727916117237813


def test_streams_differ_in_every_part():
    parts = itertools.product((0, 1), ("batches", "model"), (1, 11, 12, 2), ("1", "12", "2"))
    seeds = [derive(*p) for p in parts]
    assert len(set(seeds)) == len(seeds)


def test_seeds_fit_every_generator():
    for seed in range(100):
        assert 0 <= derive(seed, "x") < 2**63
    torch.Generator().manual_seed(2**63 - 1)


def test_generators_repeat_and_touch_nothing_global():
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    assert torch.equal(
        torch.rand(3, generator=torch_generator(5, "a")), torch.rand(3, generator=torch_generator(5, "a"))
    )
    assert (numpy_generator(5, "a").random(3) == numpy_generator(5, "a").random(3)).all()
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]
