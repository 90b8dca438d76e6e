"""IsoProto: one classifier from everybody's class statistics in a common frame, beside each client's own network."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class IsoProto(PrototypeStrategy):
    r"""Add up class statistics in features that every node computes for itself, and solve for one classifier.

    .. math::
        w_c = \Sigma^{-1} m_c, \qquad a_c = -\tfrac{1}{2} m_c^\top \Sigma^{-1} m_c, \qquad
        \log p = \alpha_1 \log p_{common} + \alpha_2 \log p_{own} + \alpha_3 \log p_{network}

    Class means :math:`m_c` and scatter :math:`\Sigma` add up exactly over clients, whatever their architectures. Then
    per-class gradients move the classifier on. A client predicts with a mixture of everybody's classifier, its own in
    the same frame, and its network, which it trains alone. No weight and no network's feature travels.

    docs/adr/0011-common-frame.md says why, and docs/common.md what it was measured to bring. The form before it is the
    strategy `isoproto_anchors`.
    """

    method = MethodSettings(prototypes="none", alignment="none", share="none", common__map="standard")
