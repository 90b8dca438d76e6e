"""The flagship: hyper-prototypes and class relations for clients of any architecture, and nobody's weights."""

from strategies.base import Point, PrototypeStrategy


class IsoProto(PrototypeStrategy):
    r"""Align the relations between classes, and anchors mapped into each client's own feature space.

    .. math::
        L = CE + \lambda GCSA(P_i, \Gamma) + \gamma GCSA(z, \Gamma)
            + w_{pcl} HPCL(T_k^{-1} S) + w_{pal} HPAL(T_k^{-1} S)

    :math:`\Gamma` are the clients' averaged class relations, pulled half-way towards the simplex; :math:`S` the
    hyper-prototypes in the server's frame, learned by matching the gradients of real samples; :math:`T_k` the
    similarity map of client k into that frame. Messages hold prototypes, per-class feature gradients and counts.
    Joins FedSAF (arXiv:2605.05959) and FedHPro (arXiv:2605.13475); the frame is ours.
    """

    point = Point(prototypes="hyper", alignment="gcsa+hpcl+hpal", share="none")
    defaults = {"frame": "gram", "relation__shrink": 0.5}  # noqa: RUF012 - read only
