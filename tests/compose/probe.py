"""Run in the nodes' network: what answers there, as one line of JSON."""

import contextlib
import http.client
import json
import socket
import ssl
import sys

PROXY = ("superlink", 8443)
OTHER = (
    "/",
    "/v1/control/list-runs",
    "/v1/control/register-supernode",
    "/v1/control/start-run",
    "/v1/runtime/pull-task",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "//v1/control/list-runs",
    "/docs",
)


def answer(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> str:
    with contextlib.suppress(OSError):  # refused while it was still being sent
        connection.request(method, path, body, {"Content-Type": "application/protobuf"})
    reply = connection.getresponse()
    return f"{reply.status} {reply.read().decode(errors='replace').strip()[:200]}"


def secure() -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection(*PROXY, timeout=20, context=ssl.create_default_context(cafile="/ca.pem"))


def reachable(address: str) -> str:
    try:
        socket.create_connection((address, 8000), timeout=5).close()
    except OSError:
        return "unreachable"
    return "reachable"


if __name__ == "__main__":
    found = {
        "plain": answer(http.client.HTTPConnection(*PROXY, timeout=20), "GET", "/health"),
        "direct": reachable(sys.argv[1]),
        "health": answer(secure(), "GET", "/health"),
        "fleet": answer(secure(), "POST", "/v1/fleet/pull-messages"),
        "big": answer(secure(), "POST", "/v1/fleet/push-object", b"\0" * (17 * 2**20)),
        "other": {path: answer(secure(), "POST", path) for path in OTHER},
    }
    sys.stdout.write(json.dumps(found) + "\n")
