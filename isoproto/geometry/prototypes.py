"""Global prototypes, the weighted mean of the clients' class means."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class ClassRows(NamedTuple):
    """One row for each class that a client holds: class means, or another vector per class such as a gradient.

    Attributes:
        class_ids: The classes, strictly increasing, shape ``[P]``, int64.
        rows: One row per class, shape ``[P, d]``.
        counts: Number of samples behind each row, shape ``[P]``, int64, >= 1.
        samples: Number of training samples of the client.
    """

    class_ids: Tensor
    rows: Tensor
    counts: Tensor
    samples: int


class GlobalPrototypes(NamedTuple):
    """One vector for each class that at least one client holds.

    Attributes:
        vectors: The vectors, shape ``[C, d]``, float32. Rows of classes that are not present are zero.
        present: Classes that have a vector, shape ``[C]``, bool.
        holders: How many clients contributed to each class this round, shape ``[C]``, int64.
    """

    vectors: Tensor
    present: Tensor
    holders: Tensor


def average_prototypes(
    contributions: Sequence[ClassRows], num_classes: int, width: int, *, weighting: str = "class_samples"
) -> GlobalPrototypes:
    r"""Average the clients' class means.

    .. math::
        P_g^c = \frac{\sum_{i: c \in C_i} \omega_i^c P_i^c}{\sum_{i: c \in C_i} \omega_i^c}

    Reference: FedSAF, Eq. (3). The sum is over the clients that hold the class. The paper prints a sum over all
    clients, in which absent classes would count as zero vectors.

    Args:
        contributions: The clients' class means, in a fixed order (sorted by client), so that the sum is the same to
            the last bit.
        num_classes: Number of classes C.
        width: Number of coordinates d.
        weighting: What :math:`\omega_i^c` is. ``class_samples``: the client's samples of the class, :math:`n_i^c`.
            ``client_samples``: all the client's samples, :math:`n_i`. ``uniform``: 1.

    Returns:
        The means in float32, summed in float64.

    Example:
        Three clients have the means (1, 2), (3, -1) and (0, 4), of 10, 30 and 60 samples:

        >>> one = torch.tensor([0])
        >>> rows = [([1.0, 2.0], 10), ([3.0, -1.0], 30), ([0.0, 4.0], 60)]
        >>> sent = [ClassRows(one, torch.tensor([p]), torch.tensor([n]), n) for p, n in rows]
        >>> average_prototypes(sent, 1, 2).vectors
        tensor([[1.0000, 2.3000]])
        >>> average_prototypes(sent, 1, 2, weighting="uniform").vectors
        tensor([[1.3333, 1.6667]])
    """
    total = torch.zeros(num_classes, width, dtype=torch.float64)
    weight = torch.zeros(num_classes, dtype=torch.float64)
    holders = torch.zeros(num_classes, dtype=torch.int64)
    if contributions:
        ids = torch.cat([c.class_ids for c in contributions])
        means = torch.cat([c.rows for c in contributions]).double()
        omega = torch.cat([_weights(c, weighting) for c in contributions])
        total.index_add_(0, ids, means * omega.unsqueeze(1))
        weight.index_add_(0, ids, omega)
        holders = torch.bincount(ids, minlength=num_classes)
    vectors = total / torch.where(weight > 0, weight, 1.0).unsqueeze(1)
    return GlobalPrototypes(vectors.float(), weight > 0, holders)


def _weights(contribution: ClassRows, weighting: str) -> Tensor:
    """Return the weight of each of a client's rows, shape ``[P]``, float64."""
    if weighting == "class_samples":
        return contribution.counts.double()
    value = 1.0 if weighting == "uniform" else float(contribution.samples)
    return torch.full_like(contribution.counts, value, dtype=torch.float64)


def average_tensors(states: Sequence[dict[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    r"""Average the weights of models, tensor by tensor: :math:`w = \sum_i n_i w_i / \sum_i n_i`.

    Buffers are averaged too. A whole-number buffer, such as BatchNorm's counter of batches, takes the largest value,
    since a mean of counters has no meaning.

    Args:
        states: For each model its tensors by name. All have the same names and shapes; there is at least one.
        weights: For each model a number :math:`n_i` > 0.

    Example:
        >>> average_tensors([{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}], [3, 1])
        {'w': tensor([1.])}
    """
    share = torch.tensor(weights, dtype=torch.float64)
    share /= share.sum()
    average = {}
    for name, first in states[0].items():
        stacked = torch.stack([state[name] for state in states])
        if first.is_floating_point():
            average[name] = torch.tensordot(share, stacked.double(), dims=1).to(first.dtype)
        else:
            average[name] = stacked.amax(dim=0)
    return average
