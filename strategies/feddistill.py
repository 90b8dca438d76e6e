"""FedDistill, also called FD (Jeong et al., 2018): the mean logits of each class travel."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FedDistill(PrototypeStrategy):
    r"""Distil from the average answer of all clients to the samples of a class.

    .. math::
        L = CE + \lambda \, CE(h(z), \mathrm{softmax}(L_g^y))

    Each client sends the mean logits of its classes, and the server sends back their averages. :math:`\lambda` is
    ``logits.weight``. See ``isoproto.parts.logits``.
    """

    method = MethodSettings(prototypes="none", alignment="logits", share="none")
