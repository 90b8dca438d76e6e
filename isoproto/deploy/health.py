"""Asking a SuperLink or a SuperNode whether it serves, by gRPC's standard health protocol (``grpc.health.v1``).

Both answer where ``--health-server-address`` says, without TLS; root certificates are for a server, or a proxy
before one, that has TLS.
"""

import enum
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

# A check asks a process nearby. An HTTP proxy named by the environment would answer for itself, or not at all.
_OPTIONS = (("grpc.enable_http_proxy", 0),)
_NO_CONTACT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Status(enum.IntEnum):
    """What came of a check; the numbers are the exit statuses of ``isoproto health``."""

    SERVING = 0
    NOT_SERVING = 1
    UNREACHABLE = 2


@dataclass(frozen=True, slots=True)
class Health:
    """A status and, when it is not serving, the reason."""

    status: Status
    reason: str = ""


def check(address: str, root_certificates: bytes | None = None, service: str = "", timeout_s: float = 5.0) -> Health:
    """Ask a server whether it serves.

    Args:
        address: ``HOST:PORT``.
        root_certificates: PEM of the authority that vouches for the server; None for a connection without TLS.
        service: Name of one of its services; empty for the server as a whole, which is all that Flower's knows.
        timeout_s: Seconds after which it counts as unreachable.

    Returns:
        Serving, not serving (it answers, but otherwise), or unreachable.
    """
    if root_certificates is None:
        channel = grpc.insecure_channel(address, options=_OPTIONS)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(root_certificates), options=_OPTIONS)
    request = health_pb2.HealthCheckRequest(service=service)
    with channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.RpcError as err:
            status = Status.UNREACHABLE if err.code() in _NO_CONTACT else Status.NOT_SERVING
            return Health(status, f"{err.code().name}: {err.details()}")
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return Health(Status.SERVING)
    return Health(Status.NOT_SERVING, health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
