"""What leaves a device: no path in an error, and a line in the device's own log for each message."""

import contextlib
import logging
import re
from collections.abc import Iterator

from flwr.app import RecordDict

from isoproto import wire
from isoproto.engines.host import Host
from isoproto.errors import IsoprotoError
from isoproto.runs.run_folder import show_log

_log = logging.getLogger("isoproto")

# A quoted path may have blanks. Any other ends at one. What comes before tells a path from a fraction or an address.
_QUOTED = re.compile(r"""(['"])(\w+:)?(?:~|\.{0,2})/(?:[^'"\n]*/)?([^'"\n/]*)/?\1""")
_PLAIN = re.compile(r"""(?<![\w./~…])~?/(?:[^\s'"`:;,()<>\[\]/]+/)*([^\s'"`:;,()<>\[\]/]+)/?""")


def without_paths(text: str) -> str:
    """Return a text in which only the last part of each path is left.

    Example:
        >>> without_paths("cannot read /home/ann/wards/3.csv: no space; give 3/4 of it, see https://x.org/a")
        'cannot read …/3.csv: no space; give 3/4 of it, see https://x.org/a'
        >>> without_paths("data 'imagefolder:/srv/ward 3/photos': nothing found at /srv/x.csv@1")
        "data 'imagefolder:…/photos': nothing found at …/x.csv@1"
    """
    return _PLAIN.sub(r"…/\1", _QUOTED.sub(r"\1\2…/\3\1", text))


def log_what_leaves(broadcast: wire.Broadcast, content: RecordDict) -> None:
    """Write to the device's own log what a reply holds: arrays with their shapes, numbers by name, and all bytes.

    Args:
        broadcast: What the server sent.
        content: The reply.
    """
    show_log()  # Flower starts a process for each message, and shows what it prints
    arrays = [
        f"{name} {list(array.shape)}" for record in content.array_records.values() for name, array in record.items()
    ]
    numbers = [name for record in content.metric_records.values() for name in record]
    _log.info(
        "round %d: sent %s bytes: %s; numbers: %s",
        broadcast.server_round,
        f"{wire.serialised_bytes(content):,}",
        ", ".join(arrays) or "no arrays",
        ", ".join(numbers) or "none",
    )


@contextlib.contextmanager
def errors_without_paths(host: Host) -> Iterator[None]:
    """Take the device's paths out of an error before it leaves. The device's own log has all of it.

    In a simulation errors stay as they are: the researcher owns the machine.
    """
    try:
        yield
    except Exception as err:
        told = without_paths(str(err))
        if host.simulated or told == str(err):
            raise
        _log.warning("%s: %s", type(err).__name__, err)
        if isinstance(err, IsoprotoError):
            err.args = (told, *err.args[1:])
            raise
        raise RuntimeError(f"{type(err).__name__}: {told}") from err
