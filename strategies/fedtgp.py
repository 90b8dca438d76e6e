"""FedTGP (Zhang et al., AAAI 2024): prototypes that the server trains with an adaptive margin."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FedTGP(PrototypeStrategy):
    r"""Pull features to prototypes that the server trains to be far from each other.

    .. math::
        L = CE + \lambda \frac{1}{B d} \sum_i \|z_i - P_g^{y_i}\|^2

    Clients do as in FedProto. The server does not average their class means: it trains a small network whose outputs
    are the prototypes, so that every class mean is nearest to its own prototype by a margin. See
    ``isoproto.parts.trainable``.
    """

    method = MethodSettings(
        prototypes="trainable", alignment="mse", share="none", lambda_=0.0, gamma=1.0, missing="self"
    )
