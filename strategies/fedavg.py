"""FedAvg (McMahan et al., AISTATS 2017): average whole models."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FedAvg(PrototypeStrategy):
    r"""Average the clients' models: :math:`w = \sum_i n_i w_i / \sum_i n_i`, BatchNorm's buffers included.

    The server sends the averaged model. Each client replaces its model by it, trains with cross-entropy, and sends the
    whole model back. All clients need one architecture, and start from equal weights.
    """

    method = MethodSettings(prototypes="none", alignment="none", share="model")
