"""FedProto (Tan et al., AAAI 2022): features are pulled to the global prototype of their class."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FedProto(PrototypeStrategy):
    r"""Regularise with the distance to global prototypes.

    .. math::
        L = CE + \lambda \frac{1}{B d} \sum_i \|z_i - P_g^{y_i}\|^2

    A sample whose class has no global prototype adds nothing to the sum but counts in B. The server sends
    the prototypes; clients send back class means.
    """

    # The paper has the instance-level term only, with weight 1.
    method = MethodSettings(prototypes="mean", alignment="mse", share="none", lambda_=0.0, gamma=1.0, missing="self")
