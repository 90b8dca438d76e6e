"""Read the weights in a reply, and refuse weights that would spoil the average for all other clients."""

from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from isoproto.errors import WireError
from isoproto.wire.codec import (
    COUNT_LIMIT,
    MODEL,
    Spec,
    check_finite,
    read_tensor,
    record_of,
)

# Largest root mean square of a weight tensor, of running means, and of the roots of running variances. Networks have
# about 1. Far larger weights make the training of all clients diverge.
_WEIGHT_LIMIT = 100.0


def read_shared(content: RecordDict, spec: Spec) -> dict[str, Tensor]:
    """Decode and check the weights in a reply."""
    if not spec:
        if MODEL in content:
            raise WireError("the reply carries weights, but this strategy shares none")
        return {}
    record = record_of(content, MODEL, ArrayRecord)
    if set(record) != set(spec):
        differing = sorted(set(record) ^ set(spec))
        raise WireError(f"shared weights: names differ from the federation's: {differing!r:.200}")
    shared = {name: read_tensor(record, name, dtype, shape) for name, (dtype, shape) in spec.items()}
    check_finite(shared, "among the shared weights")
    for name, tensor in shared.items():
        _check_size(name, tensor)
    return shared


def _check_size(name: str, weights: Tensor) -> None:
    """Refuse weights larger than those of any network, and negative variances."""
    if not weights.is_floating_point():
        if weights.numel() and max(abs(int(weights.min())), abs(int(weights.max()))) > COUNT_LIMIT:
            raise WireError(f"array {name!r:.200} among the shared weights: expected numbers up to {COUNT_LIMIT}")
        return
    variance = name.endswith("running_var")
    if variance and bool((weights < 0).any()):
        raise WireError(f"array {name!r:.200} among the shared weights: {float(weights.min()):.3g} is no variance")
    limit = _WEIGHT_LIMIT**2 if variance else _WEIGHT_LIMIT
    size = float(weights.double().norm()) / max(1, weights.numel()) ** 0.5
    if size > limit:
        raise WireError(
            f"array {name!r:.200} among the shared weights: root mean square {size:.3g}, at most {limit:.3g} is taken; "
            "the model has diverged"
        )
