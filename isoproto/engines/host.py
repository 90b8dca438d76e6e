"""What a client's process may know of whoever started it: a simulation, or the owner of a real device."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """Says whether the client of this process is simulated, and by which worker.

    Whoever starts the client hands this in. Nothing that a server sends may decide it: in a simulation, the run config
    is the researcher's and may name code, data and folders; on a real device, only the owner may.

    Attributes:
        simulated: Whether this process simulates clients.
        worker: Id of the worker that answers for several clients of a simulation; 0 if there is no such worker.
    """

    simulated: bool
    worker: int = 0


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

    The id is made of the actor's id. The number of the process would not do: two machines of a cluster may have
    processes of the same number.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not (actor := ray.get_runtime_context().get_actor_id()):
        return 0
    return 1 + int(actor[:9], 16)  # 36 of its random bits
