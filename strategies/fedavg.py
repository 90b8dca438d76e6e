"""Averaging of whole models (McMahan et al., AISTATS 2017), as a point of ours."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class FedAvg(PrototypeStrategy):
    r"""Average the clients' models: :math:`w = \sum_i n_i w_i / \sum_i n_i`, BatchNorm's buffers included.

    The server sends the averaged model; clients put it in place of theirs, train with cross-entropy, and
    send it back whole. All clients need one architecture, and start from equal weights.
    """

    method = MethodSettings(prototypes="none", alignment="none", share="model")
