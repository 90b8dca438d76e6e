"""Turn relations between classes into points. Everything is computed in float64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from isoproto.errors import FrameError
from isoproto.geometry.numerics import decomposing, ratio, standardised
from isoproto.geometry.relations import double_centred


class Embedding(NamedTuple):
    """One point per class.

    Attributes:
        vectors: The points, shape ``[C, d]``, float32. Centred, with root-mean-square length 1; rows of absent
            classes are zero.
        cut: How much of the Gram matrix no points can express: the sum of the sizes of its negative eigenvalues, as a
            share of the sum over all eigenvalues, in [0, 1].
    """

    vectors: Tensor
    cut: float


def embed(gram: Tensor, present: Tensor, width: int, *, onto: Tensor | None = None) -> Embedding:
    r"""Find points that have a given Gram matrix, by classical multidimensional scaling.

    .. math::
        G = V \Lambda V^T, \qquad X = V \sqrt{\max(\Lambda, 0)}

    The ``width`` largest eigenvalues are used. Missing columns are zero if there are fewer.

    Eigenvectors have arbitrary signs, and eigenvectors of equal eigenvalues mix freely. So :math:`X` is turned onto
    earlier points; otherwise the points could jump between rounds. The turn has no scale and no shift. It is a full
    rotation, so classes that the earlier points lack keep their place among the others. The partial isometry of
    ``similarity_map`` would flatten these classes.

    Args:
        gram: Gram matrix of the classes, shape ``[C, C]``. It is centred here. Absent rows and columns are never read.
        present: Classes to embed, shape ``[C]``, bool.
        width: Number of coordinates, d.
        onto: Earlier points, shape ``[C, d]``, with zero rows for classes that had none.

    Returns:
        The points, and how much of the matrix they cannot express.

    Raises:
        FrameError: If the matrix is not finite or its eigenvalues cannot be found.

    Example:
        >>> gram = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        >>> present = torch.tensor([True, True, False])
        >>> earlier = torch.tensor([[0.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
        >>> embed(gram, present, 2, onto=earlier).vectors.round()
        tensor([[ 0.,  1.],
                [ 0., -1.],
                [ 0.,  0.]])
    """
    gram = double_centred(gram.double(), present)
    try:
        values, axes = torch.linalg.eigh(gram)
    except RuntimeError as err:  # LinAlgError: no convergence, or numbers that are not finite
        raise FrameError(
            f"embed: the relations of {int(present.sum())} classes have no eigenvalues ({err}); keep last round's "
            f"frame, and look for a client whose prototypes are not finite or grow without bound"
        ) from err
    cut = float(ratio(values.clamp(max=0).abs().sum(), values.abs().sum()))
    size = min(width, len(values))
    vectors = axes.flip(1)[:, :size] * values.flip(0)[:size].clamp(min=0).sqrt()
    vectors = standardised(vectors, present)
    if onto is None:
        vectors = functional.pad(vectors, (0, width - size))
    else:
        with decomposing("embed"):
            u, _, vh = torch.linalg.svd(vectors.T @ onto.double(), full_matrices=False)  # [size, size], [size, d]
        vectors = vectors @ u @ vh
    return Embedding(vectors.float(), cut)
