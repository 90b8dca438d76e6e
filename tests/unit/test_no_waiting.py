"""A training step never waits for a GPU: no number of its own comes back to Python, no copy is waited for.

Seen without a GPU: every operation that a step dispatches is looked at, on a CPU, and on `meta`, a device without data.
"""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed.settings import plain_settings
from client_app.training import train
from isoproto.data import ClientData
from isoproto.data.augment import AUGMENTATIONS
from isoproto.losses import LOSSES
from isoproto.losses.anchors import Anchors
from isoproto.parts.alignment import AlignmentTerm
from isoproto.parts.anchors import AnchorTerm
from models import ModelSpec, create_model

CLASSES, WIDTH, BATCH = 5, 16, 4
ON_DEVICE = sorted(set(AUGMENTATIONS) - {"autoaugment"})  # which is torchvision's, operation by operation


class Waits(TorchDispatchMode):
    """Counts what would make Python wait for a device."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, kwargs = function.name(), kwargs or {}
        indices = args[1] if name in ("aten::index.Tensor", "aten::index_put_") else []
        if any(word in name for word in ("local_scalar", "nonzero", "masked_select", "unique")):
            self.found[name] += 1
        if any(i is not None and i.dtype == torch.bool for i in indices):
            self.found[f"{name} by a mask"] += 1
        there = kwargs.get("device")
        if name == "aten::_to_copy" and there not in (None, args[0].device) and not kwargs.get("non_blocking"):
            self.found["copy that is waited for"] += 1
        return function(*args, **kwargs)


def goals():
    prototypes = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    present = torch.arange(CLASSES) < CLASSES - 1
    for name, loss in LOSSES.items():
        target = loss.target(prototypes, present)
        yield name, AlignmentTerm(loss=loss, target=target, present=present, lambda_=1.0, gamma=1.0)
    anchors = Anchors.of(prototypes, prototypes, present, margin=0.1)
    yield "anchors", AnchorTerm(anchors=anchors, pcl=1.0, pal=1.0)


def waits(steps, augment, amp, goal):
    x = torch.randint(0, 256, (steps * BATCH, 3, 16, 16), dtype=torch.uint8)
    y = torch.arange(len(x)) % CLASSES
    settings = plain_settings(BATCH, 0.01, amp=amp, augment=augment)
    model = create_model("cnn", ModelSpec(3, 16, 16, WIDTH, CLASSES), seed=0)
    with Waits() as seen:
        train(model, ClientData(x, y, x[:0], y[:0], tuple("abcde")), settings, [goal], torch.Generator())
    return seen.found


@pytest.mark.parametrize(("augment", "amp"), [("none", "off"), ("crop_flip", "bf16")])
@pytest.mark.parametrize(("name", "goal"), [*goals()])
def test_what_is_waited_for_does_not_grow_with_the_steps(name, goal, augment, amp):
    assert waits(2, augment, amp, goal) == waits(5, augment, amp, goal)


def test_waiting_is_seen():
    with Waits() as seen:
        x = torch.arange(4)
        float(x[x > 1].sum())
        x.to("meta")
    assert set(seen.found) >= {"aten::_local_scalar_dense", "aten::index.Tensor by a mask", "copy that is waited for"}


@pytest.mark.parametrize("augment", ON_DEVICE)
def test_what_an_augmentation_draws_is_not_waited_for(augment):
    """It draws on the CPU, where a generator gives the same everywhere."""
    x = torch.zeros(8, 3, 16, 16, dtype=torch.uint8, device="meta")
    with Waits() as seen:
        AUGMENTATIONS[augment](x, torch.Generator())
    assert not seen.found
