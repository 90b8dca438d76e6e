"""Federated strategies by name."""

from strategies.base import PrototypeStrategy
from strategies.fedavg import FedAvg
from strategies.fedproto import FedProto
from strategies.fedsaf import FedSAF
from strategies.local import Local

__all__ = ["STRATEGIES", "PrototypeStrategy"]

STRATEGIES: dict[str, type[PrototypeStrategy]] = {
    "fedavg": FedAvg,
    "fedproto": FedProto,
    "fedsaf": FedSAF,
    "local": Local,
}
