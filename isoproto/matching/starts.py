"""Where hyper-prototypes start: a function of the seed and the prototypes, which server and clients evaluate alike."""

from dataclasses import dataclass

from torch import Tensor

from isoproto.matching.hyperproto import draw_spread, initial_vectors, spread_about
from isoproto.seeding import torch_generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How hyper-prototypes are drawn before any of them is learned.

    Attributes:
        seed: The run's seed.
        size: Vectors per class.
        noise: Whether they are noise, as in the paper, or lie about the prototypes.
        spread: Their distance from the prototypes, in radii of the prototypes.
    """

    seed: int
    size: int
    noise: bool
    spread: float

    def vectors(self, prototypes: Tensor, present: Tensor, *stream: str) -> Tensor:
        """Return the hyper-prototypes, shape ``[C, I, d]``, float32.

        Args:
            prototypes: Shape ``[C, d]``; their values are not read where hyper-prototypes start from noise.
            present: Which classes have one, shape ``[C]``, bool.
            *stream: Further parts of the random stream's name; none for the federation's own vectors.

        Example:
            >>> import torch
            >>> start = Start(seed=0, size=5, noise=False, spread=0.0)
            >>> start.vectors(torch.eye(2), torch.tensor([True, False])).mean(1)
            tensor([[1., 0.],
                    [0., 0.]])
        """
        generator = torch_generator(self.seed, "hyper", *stream)
        shape = (len(present), self.size, prototypes.shape[1])
        if self.noise:
            return initial_vectors(*shape, generator)
        return spread_about(prototypes, present, draw_spread(*shape, generator), self.spread)
