"""Health checks: ask a SuperLink or a SuperNode whether it works, by gRPC's health protocol (``grpc.health.v1``).

Flower's processes answer at ``--health-server-address``, without TLS. Root certificates are only needed for another
server, or a proxy, that has TLS.
"""

import enum
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

# The process to check is on this machine or near it. An HTTP proxy from the environment would only get in the way.
_OPTIONS = (("grpc.enable_http_proxy", 0),)
_NO_CONTACT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Status(enum.IntEnum):
    """The result of a check. The numbers are the exit statuses of ``isoproto health``."""

    SERVING = 0
    NOT_SERVING = 1
    UNREACHABLE = 2


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a check and, if the server does not serve, the reason."""

    status: Status
    reason: str = ""


def check(address: str, root_certificates: bytes | None = None, service: str = "", timeout_s: float = 5.0) -> Health:
    """Ask a server whether it serves.

    Args:
        address: ``HOST:PORT``.
        root_certificates: PEM certificate of the authority that signed the server's certificate; None: without TLS.
        service: Name of one service of the server. Empty: the server as a whole; Flower's processes know nothing else.
        timeout_s: Seconds to wait for an answer. After that the server counts as unreachable.

    Returns:
        Serving, not serving (the server answers something else), or unreachable.
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
