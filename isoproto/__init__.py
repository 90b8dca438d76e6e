"""isoproto: federated learning across architectures by exchanging class prototypes."""

__version__ = "0.1.0"
