"""A client's samples in the common frame: computed once, and kept in the cache folder beside the prepared data."""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from client_app.client import Client
from isoproto.common.classifier import Classifier
from isoproto.common.frame import Frame
from isoproto.common.own import Choice, chosen, own_classifier
from isoproto.common.samples import FrameSamples
from isoproto.data.augment import AUGMENTATIONS
from isoproto.data.folders import Array, cached_array, content_key
from isoproto.maps import FeatureMap, computed, create_map, fingerprint, intact, made_up, sealed, unsealed
from isoproto.own_code import is_own
from isoproto.seeding import torch_generator
from models import ModelSpec, TextSpec

# A new number makes all cached classifiers outdated.
_FORMAT = 4


def frame_name(client: Client) -> tuple[str, int]:
    """Return the name and checksum of the client's feature map, and the number of coordinates; empty without one."""
    if not client.config.framed:
        return "", 0
    feature_map, frame = _frame_of(client)
    return f"{feature_map.name}:{fingerprint(feature_map)}", frame.dim


def in_frame(client: Client, experiment: str) -> FrameSamples | None:
    """Return the client's samples in the common frame; ``None`` if the run has none.

    Args:
        client: The client.
        experiment: Id of the experiment. Checksums of the data are of no use in another one.
    """
    if not client.config.framed:
        return None
    data, classes = client.data, client.num_classes
    (fit, fit_key), (held, held_key), (test, _) = (_coordinates(client, x, copies) for x, copies in _parts(client))
    keys = [f"{fit_key} {_checksum(data.train_y)}", f"{held_key} {_checksum(data.held_y)}"]
    digests = [_digest(experiment, client, key) for key in keys]
    labels = torch.cat([data.train_y, data.held_y])
    choice, own_fit, own = _own(fit, held, data.train_y, labels, classes, keys)
    return FrameSamples(
        fit=fit,
        fit_labels=data.train_y,
        held=held,
        held_labels=data.held_y,
        test=test[:, 0],
        num_classes=classes,
        digests=(digests[0], digests[1]),
        choice=choice,
        own_fit=own_fit,
        own=own,
        shown=client.config.common__predict,
    )


def _parts(client: Client) -> list[tuple[Tensor, int]]:
    """Return the client's training, held-out and test samples, and how many copies of each are made."""
    data = client.data
    copies = 0 if isinstance(client.spec, TextSpec) else client.config.common__copies
    return [(data.train_x, copies), (data.held_x, copies), (data.test_x, 0)]


def _frame_of(client: Client) -> tuple[FeatureMap, Frame]:
    config = client.config
    return _frame(
        "own" if is_own(config.common__map) else config.common__map,
        client.own_map,
        client.spec,
        client.words,
        client.device,
        (config.common__dim, config.common__features, config.common__clip, config.seed),
    )


@functools.lru_cache(maxsize=4)
def _frame(
    name: str,
    own: str,
    spec: ModelSpec | TextSpec,
    words: tuple[str, ...],
    device: torch.device,
    settings: tuple[int, int, float, int],
) -> tuple[FeatureMap, Frame]:
    dim, features, clip, seed = settings
    shape = (spec.channels, spec.height, spec.width) if isinstance(spec, ModelSpec) else ()
    feature_map = create_map(name, shape=shape, words=words, device=device, own=own)
    usual_dim, usual_features = feature_map.usual
    frame = Frame.of(
        made_up(feature_map) if feature_map.standardise else None,
        width=feature_map.width,
        dim=dim or usual_dim,
        features=usual_features if features < 0 else features,
        clip=clip,
        seed=seed,
    )
    return feature_map, frame


def _coordinates(client: Client, x: Tensor, copies: int) -> tuple[Tensor, str]:
    """Return the coordinates of samples and of changed copies of them, ``[n, 1 + copies, D]``, and their checksum."""
    feature_map, frame = _frame_of(client)
    config = client.config
    key = (
        *(fingerprint(feature_map), config.common__dim, config.common__features, config.common__clip, config.seed),
        *(copies, config.common__change),
    )
    content = f"{key} {_checksum(x)}"
    if not len(x):
        return torch.zeros(0, 1 + copies, frame.dim), content
    change = AUGMENTATIONS[config.common__change]

    def versions(batch: Tensor) -> Tensor:
        """Return the coordinates of samples and of their copies, ``[B, (1 + copies) * D]``."""
        generator = torch_generator(config.seed, "copies", _checksum(batch))
        changed = (change(batch, generator) for _ in range(copies))
        return torch.stack([frame(feature_map(some)) for some in (batch, *changed)], 1).flatten(1)

    found = computed(versions, x, key=key, name=feature_map.name)
    return found.view(len(x), 1 + copies, frame.dim), content


def _checksum(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def _digest(experiment: str, client: Client, content: str) -> int:
    """Return a checksum of samples: 62 bits, never the same in two experiments."""
    text = f"{experiment} {client.name} {client.config.common__rank} {client.config.min_class_samples} {content}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 2


def _own(
    fit: Tensor, held: Tensor, fit_labels: Tensor, labels: Tensor, classes: int, keys: Sequence[str]
) -> tuple[Choice, Classifier, Classifier]:
    """Return what the client makes of its own samples alone: its choice, and a classifier without and with ``held``."""

    def make() -> Array:
        choice = chosen(fit, fit_labels, classes)
        both = torch.cat([fit, held])
        found = [own_classifier(x, y, classes, choice) for x, y in ((fit, fit_labels), (both, labels))]
        numbers = torch.cat([torch.tensor(choice).double(), *(c.rows.double().flatten() for c in found)])
        return sealed(numbers.numpy().view(np.uint8))

    key = content_key("own", (_FORMAT, classes, *keys))
    entry = cached_array(key, make, sound=intact, what="classifiers from own samples")
    kept = torch.from_numpy(unsealed(entry).view(np.float64))
    rows = kept[2:].view(2, classes, -1)
    present = [torch.bincount(y, minlength=classes) > 0 for y in (fit_labels, labels)]
    return Choice(*kept[:2].tolist()), Classifier(rows[0], present[0]), Classifier(rows[1], present[1])
