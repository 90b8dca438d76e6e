"""FedHPro (arXiv:2605.13475): the server learns hyper-prototypes by gradient matching."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FedHPro(PrototypeStrategy):
    r"""Contrast with, and pull towards, hyper-prototypes that the server fits to the clients' gradients.

    .. math::
        L = CE + HPCL + HPAL

    Reference: Eqs. (7) to (15). The server averages models (``share = model``; ``head`` for the paper's heterogeneous
    setting) and the clients' per-class feature gradients (Eq. 6), and moves its hyper-prototypes so that the averaged
    head's gradients at them point the same way (Eqs. 7 to 9). They start from noise and are sent from round 1 on.
    """

    method = MethodSettings(
        prototypes="hyper",
        alignment="hpcl+hpal",
        share="model",
        hyper__init="normal",
        hyper__optimizer="sgd",
        hyper__learning_rate=0.1,
        hyper__margin="literal",
        hyper__form="paper_mean",  # the literal sum kills small networks (docs/adr/0006-flagship.md)
        hyper__pcl=1.0,
        hyper__pal=1.0,
    )
