"""The data sets that all other code sees: pictures as bytes or texts as token ids, with labels and domains."""

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isoproto.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A labelled set of samples of equal shape, checked when it is made; subclasses say what a sample is.

    Attributes:
        x: Samples, shape ``[N, ...]``.
        y: The class of each sample, shape ``[N]``, int64, in ``[0, C)``.
        test: Whether a sample belongs to the official test part, shape ``[N]``, bool.
        classes: Names of the ``C`` classes; label ``i`` in ``y`` means ``classes[i]``.
        domain: The domain of each sample, shape ``[N]``, int64; ``None`` if the set has no domains.
        domains: Names of the domains; empty if the set has none.
        source: The file or folder that the set was read from, for error texts and logs.
        notes: Facts that change how results on the set must be read, such as that another set stands in for it. Each
            is a sentence.

    Raises:
        DataError: If a shape, type or range differs from this list, or two classes or domains have the same name.
    """

    x: Tensor
    y: Tensor
    test: Tensor
    classes: tuple[str, ...]
    domain: Tensor | None = None
    domains: tuple[str, ...] = ()
    source: str = "data set"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_samples()
        self._check_tensor("the official-test mask", self.test, torch.bool, dims=1)
        self._check_names("classes", self.classes)
        self._check_names("domains", self.domains)
        self._check_index("labels", self.y, len(self.classes))
        if (self.domain is None) != (not self.domains):
            raise DataError(
                f"{self.source}: the domain of each sample and the domain names come together or not at all"
            )
        if self.domain is not None:
            self._check_index("domains", self.domain, len(self.domains))

    def _check_samples(self) -> None:
        raise NotImplementedError

    def _check_names(self, what: str, names: tuple[str, ...]) -> None:
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise DataError(
                f"{self.source}: names of {what} must differ, got {twice[0]!r} twice; rename one of the two"
            )

    def _check_tensor(self, what: str, tensor: Tensor, dtype: torch.dtype, dims: int) -> None:
        if tensor.dtype != dtype or tensor.dim() != dims or len(tensor) != len(self.x):
            wanted = f"{dtype} of {dims} dimension(s), {len(self.x)} long"
            raise DataError(f"{self.source}: {what} must be {wanted}, got {tensor.dtype} {tuple(tensor.shape)}")

    def _check_index(self, what: str, index: Tensor, limit: int) -> None:
        self._check_tensor(what, index, torch.int64, dims=1)
        wrong = torch.nonzero((index < 0) | (index >= limit)).flatten()
        if len(wrong):
            first = int(wrong[0])
            raise DataError(
                f"{self.source}: {what} must be in [0, {limit}), got {int(index[first])} for sample {first}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class ImageDataset(Dataset):
    """Pictures of equal size: ``x`` is uint8, shape ``[N, channels, H, W]``, with one or three channels.

    Example:
        >>> pictures, part = torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([False, True])
        >>> ImageDataset(pictures, torch.tensor([0, 2]), part, ("cat", "dog"), source="pets.npz")
        Traceback (most recent call last):
        isoproto.errors.DataError: pets.npz: labels must be in [0, 2), got 2 for sample 1
    """

    def _check_samples(self) -> None:
        self._check_tensor("pictures", self.x, torch.uint8, dims=4)
        count, channels = self.x.shape[:2]
        if count == 0:
            raise DataError(f"{self.source}: holds no picture; at least one is needed")
        if channels not in (1, 3):
            shape = tuple(self.x.shape)
            raise DataError(f"{self.source}: pictures must have 1 or 3 channels, got {channels} (shape {shape})")


@dataclass(frozen=True, slots=True, eq=False)
class TextDataset(Dataset):
    """Texts as token ids: ``x`` is int32, shape ``[N, L]``; shorter texts end in zeros.

    Attributes:
        words: The characters that each token id adds when a text is printed. Padding (0) adds nothing, the unknown
            token (1) adds a sign, and a word adds itself and a space.

    Example:
        >>> tokens, part = torch.tensor([[2, 3, 0], [2, 1, 4]], dtype=torch.int32), torch.tensor([False, True])
        >>> known = ("", "? ", "very ", "nice ")
        >>> TextDataset(tokens, torch.tensor([0, 1]), part, ("good", "bad"), source="reviews.csv", words=known)
        Traceback (most recent call last):
        isoproto.errors.DataError: reviews.csv: token ids must be in [0, 4), got 0 to 4
    """

    words: tuple[str, ...] = field(kw_only=True)

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return len(self.words)

    def _check_samples(self) -> None:
        self._check_tensor("token ids", self.x, torch.int32, dims=2)
        if not self.x.numel():
            raise DataError(f"{self.source}: holds no text; at least one is needed")
        low, high = int(self.x.min()), int(self.x.max())
        if low < 0 or high >= self.vocabulary:
            raise DataError(f"{self.source}: token ids must be in [0, {self.vocabulary}), got {low} to {high}")


@dataclass(frozen=True, slots=True, eq=False)
class ClientData:
    """The samples that one client trains on and those that it is tested on; either part may be empty.

    Attributes:
        train_x: Training samples: ``n`` rows of the data set's ``x``.
        train_y: Classes of the training samples, shape ``[n]``, int64.
        test_x: Test samples: ``m`` rows of the data set's ``x``.
        test_y: Classes of the test samples, shape ``[m]``, int64.
        classes: Names of all ``C`` classes of the federation, including those that the client lacks.
        held_x: Training samples that are held out: nothing is trained on them. None by default.
        held_y: Their classes.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    held_x: Tensor = field(default_factory=lambda: torch.zeros(0))
    held_y: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


def to_float(x: Tensor, layout: torch.memory_format = torch.preserve_format) -> Tensor:
    """Return samples in the form that models take.

    Bytes of pictures are mapped to ``[-1, 1]`` by ``(x / 255 - 0.5) / 0.5``; token ids stay as they are.

    Args:
        x: Pictures of any shape, uint8; or token ids, int32.
        layout: Memory layout of the result for pictures ``[B, channels, height, width]``.

    Returns:
        A tensor of the same shape; float32 for pictures.

    Example:
        >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([-1.0000, -0.6000,  1.0000])
        >>> to_float(torch.tensor([[5, 0]], dtype=torch.int32))
        tensor([[5, 0]], dtype=torch.int32)
    """
    if x.dtype == torch.int32:
        return x
    return x.to(torch.float32, memory_format=layout).div_(255).sub_(0.5).div_(0.5)
