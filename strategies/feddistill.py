"""FedDistill, also called FD (Jeong et al., 2018): clients exchange the mean logits of each class."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FedDistill(PrototypeStrategy):
    r"""Distil from the average logits that all clients give to samples of a class.

    .. math::
        L = CE + \lambda \, CE(h(z), \mathrm{softmax}(L_g^y))

    Each client sends the mean logits of its classes, and the server sends back their averages. :math:`\lambda` is
    ``logits.weight``. See ``isoproto.parts.logits``.
    """

    method = MethodSettings(prototypes="none", alignment="logits", share="none")
