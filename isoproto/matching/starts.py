"""Where hyper-prototypes start: a function of the seed and the prototypes, which server and clients evaluate alike."""

from torch import Tensor

from isoproto.config import RunConfig
from isoproto.matching.hyperproto import draw_spread, initial_vectors, spread_about
from isoproto.seeding import torch_generator


def hyper_start(config: RunConfig, prototypes: Tensor, present: Tensor, *stream: str) -> Tensor:
    """Return the hyper-prototypes before any was learned, shape ``[C, I, d]``, float32.

    Args:
        config: ``seed`` and the keys ``hyper.*``, resolved.
        prototypes: Shape ``[C, d]``; not read where they start from noise.
        present: Which classes have one, shape ``[C]``, bool.
        *stream: Parts of the random stream's name besides; none for the federation's own.
    """
    generator = torch_generator(config.seed, "hyper", *stream)
    shape = (len(present), config.hyper__size, prototypes.shape[1])
    if config.hyper__init == "normal":
        return initial_vectors(*shape, generator)
    return spread_about(prototypes, present, draw_spread(*shape, generator), config.hyper__spread)
