"""Federated strategies by name."""

from strategies.anchors import Anchors
from strategies.base import PrototypeStrategy
from strategies.fedavg import FedAvg
from strategies.feddistill import FedDistill
from strategies.fedhpro import FedHPro
from strategies.fedproto import FedProto
from strategies.fedsaf import FedSAF
from strategies.fedtgp import FedTGP
from strategies.fml import FML
from strategies.isoproto import IsoProto
from strategies.local import Local

__all__ = ["STRATEGIES", "PrototypeStrategy"]

STRATEGIES: dict[str, type[PrototypeStrategy]] = {
    "fedavg": FedAvg,
    "feddistill": FedDistill,
    "fedhpro": FedHPro,
    "fedproto": FedProto,
    "fedsaf": FedSAF,
    "fedtgp": FedTGP,
    "fml": FML,
    "isoproto": IsoProto,
    "isoproto_anchors": Anchors,
    "local": Local,
}
