"""Whether a client's process belongs to a simulation or to a real device."""

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """Says whether the client of this process is simulated, and by which worker.

    The code that starts the client passes this value in. Nothing that a server sends may decide it. In a simulation the
    run config is the researcher's, and may name code, data and folders. On a real device only the owner may name them.

    Attributes:
        simulated: Whether this process simulates clients.
        worker: Id of the worker that answers for several clients of a simulation; 0 if there is no such worker.
    """

    simulated: bool
    worker: int = 0


def beside_proxies() -> dict[str, str]:
    """Return environment variables by which no call to this machine itself goes through a proxy.

    Example:
        >>> beside_proxies()["NO_PROXY"].endswith("localhost,127.0.0.1,::1")
        True
    """
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    here = [name for name in ("localhost", "127.0.0.1", "::1") if name not in given.split(",")]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(filter(None, [given, *here])))


REAL_DEVICE = Host(simulated=False)


def flower_host() -> Host:
    """Return the host of a client that Flower started: one of Ray's workers, or else a real device.

    The function takes no argument. So neither the message nor the context can make a device believe that it is
    simulated.
    """
    worker = _ray_worker()
    return Host(simulated=True, worker=worker) if worker else REAL_DEVICE


def _ray_worker() -> int:
    """Return the id of this process among Ray's workers, or 0 if Ray did not start it.

    The id is made of the actor's id. Process ids would not be unique, because two machines of a cluster may use the
    same one.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not (actor := ray.get_runtime_context().get_actor_id()):
        return 0
    return 1 + int(actor[:9], 16)  # 36 of its random bits
