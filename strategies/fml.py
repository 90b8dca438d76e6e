"""FML (Shen et al., 2020): federated mutual learning of each client's model and a small shared model."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FML(PrototypeStrategy):
    r"""Share a small model. On each client it and the client's own model learn from each other.

    .. math::
        L = \alpha CE(\ell, y) + (1 - \alpha) KL(\ell_g \| \ell), \qquad
        L_g = \beta CE(\ell_g, y) + (1 - \beta) KL(\ell \| \ell_g)

    The shared model has the first architecture that ``models`` names. The client's own model never leaves the client,
    and it is the model that is evaluated. See ``isoproto.parts.twin``.
    """

    method = MethodSettings(prototypes="none", alignment="twin", share="none")
