"""The errors that this project raises on purpose, as a family tree.

* IsoprotoError
  x ConfigError       - a run-config or node-config value is missing, unknown or out of range
  x DataError         - a data set cannot be found, read, or split as asked
  x WireError         - a message does not follow the wire schema
    + SchemaMismatch  - sender and receiver speak different schema versions
    + MoreSamples     - a reply claims more samples than the client declared in its query reply
  x StateError        - a checkpoint, run folder, client store or key cannot be used
  x DivergenceError   - local training left the finite numbers
  x FrameError        - the relations between classes give no common frame this round
  x FederationError   - a run cannot go on (too few nodes, or no replies), or Flower refused a command
    + SecureSumError  - a secure sum cannot go on; it names the clients at fault, if any

Every message stands alone: it says what went wrong and for which client, what was wanted, what came, and what to do.
The reason is that a ClientApp's error reaches the server as one string, without a traceback.
"""

from __future__ import annotations


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
    """A reply claims more samples than the client declared in its query reply."""


class StateError(IsoprotoError, RuntimeError):
    """A checkpoint, run folder, client store or key cannot be used."""


class DivergenceError(IsoprotoError, ArithmeticError):
    """Local training left the finite numbers."""


class FrameError(IsoprotoError, ArithmeticError):
    """The relations between classes give no common frame this round; the last round's frame stays in use."""


class FederationError(IsoprotoError, RuntimeError):
    """A run cannot go on, or Flower refused a command."""


class SecureSumError(FederationError):
    """A secure sum cannot go on.

    Attributes:
        clients: The clients at fault, as far as they are known.
    """

    def __init__(self, message: str, *clients: int) -> None:
        super().__init__(message)
        self.clients = clients

    def __reduce__(self) -> tuple[type[SecureSumError], tuple[object, ...]]:
        # Ray pickles errors, and by default an error is made again from its message alone.
        return type(self), (str(self), *self.clients)
