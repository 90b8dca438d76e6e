"""Errors this project raises on purpose.

* IsoprotoError
  x ConfigError       - a run-config or node-config value is missing, unknown or out of range
  x DataError         - a data set cannot be found, read, or split as asked
  x WireError         - a message does not follow the wire schema
    + SchemaMismatch  - sender and receiver speak different schema versions
    + MoreSamples     - a client reports more samples than it told of when it was asked who it is
  x StateError        - a checkpoint, run folder, client store or key cannot be used
  x DivergenceError   - local training left the finite numbers
  x FrameError        - the relations between classes give no common frame this round
  x FederationError   - a run cannot go on: too few nodes, or nobody answers; or Flower refused a command

Every message stands alone: it says what, which client, what was wanted, what came, and what to do.
A ClientApp's error reaches the server as one string, without a traceback.
"""


class IsoprotoError(Exception):
    """Base class of every error raised on purpose."""


class ConfigError(IsoprotoError, ValueError):
    """A setting is missing, unknown or out of range."""


class DataError(IsoprotoError, ValueError):
    """A data set cannot be found, read, or split as asked."""


class WireError(IsoprotoError, ValueError):
    """A message does not follow the wire schema."""


class SchemaMismatch(WireError):  # noqa: N818 - what it is, not that it is one
    """Sender and receiver speak different schema versions."""


class MoreSamples(WireError):  # noqa: N818 - what it is, not that it is one
    """A client reports more samples than it told of when it was asked who it is."""


class StateError(IsoprotoError, RuntimeError):
    """A checkpoint, run folder, client store or key cannot be used."""


class DivergenceError(IsoprotoError, ArithmeticError):
    """Local training left the finite numbers."""


class FrameError(IsoprotoError, ArithmeticError):
    """The relations between classes give no common frame this round; last round's still serves."""


class FederationError(IsoprotoError, RuntimeError):
    """A run cannot go on, or Flower refused a command."""
