"""Anchors: hyper-prototypes and class relations, for clients of any architecture, without averaging weights."""

from isoproto.config import MethodSettings
from strategies.base import PrototypeStrategy


class Anchors(PrototypeStrategy):
    r"""Align the relations between classes, and pull towards anchors that give all feature spaces common coordinates.

    .. math::
        L = CE + \lambda GCSA(P_i, \Gamma) + \gamma GCSA(z, \Gamma) + w_{pcl} HPCL(S) + w_{pal} HPAL(S)

    :math:`\Gamma` are the clients' averaged class relations, pulled half-way towards the simplex. :math:`S` are the
    hyper-prototypes. They start as random directions, and the server learns them by matching the gradients of real
    samples through a head made of the averaged prototypes. Messages hold prototypes, feature gradients of each class,
    and counts. With another ``frame`` the anchors start at the prototypes in the server's frame, and are mapped into
    each client's space.

    It was `isoproto` before the common frame. The method joins FedSAF (arXiv:2605.05959) and FedHPro
    (arXiv:2605.13475). docs/adr/0009-common-anchors.md says why.
    """

    method = MethodSettings(
        prototypes="hyper",
        alignment="gcsa+hpcl+hpal",
        share="none",
        frame="shared",
        relation__shrink=0.5,
        hyper__init="normal",
        hyper__margin="literal",
        hyper__form="paper_mean",
        hyper__pcl=1.0,
        hyper__pal=1.0,
    )
