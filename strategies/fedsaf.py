"""FedSAF (arXiv:2605.05959): align the structure between classes, not coordinates."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FedSAF(PrototypeStrategy):
    r"""Align the relations between classes with those of the global prototypes.

    .. math::
        L = CE + \lambda L(P_i, P_g) + \gamma L(z, \tilde z), \quad
        \tilde z_j = P_g^{y_j}, \quad L \in \{GCSA, RCSA, MSE, Cosine\}

    Reference: Eq. 19. The server sends the global prototypes (Eq. 3); the client adds both terms to its
    loss, and sends back the means of the classes it holds. ``alignment`` chooses the loss, GCSA by default.
    """

    method = MethodSettings(prototypes="mean", alignment="gcsa", share="none")
