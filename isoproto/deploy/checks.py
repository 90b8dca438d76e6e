"""Whether a device reaches its SuperLink and may join: local ports, name, link, SuperLink, clock and key."""

import http.client
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from isoproto.deploy.node import NodeConfig
from isoproto.errors import FederationError

State = Literal["ok", "warning", "failed", "skipped"]

_CALL_S = 10.0
# Flower takes a node's signed time if it is at most so far from the SuperLink's clock.
_FAST_S, _SLOW_S = 5.0, 300.0
_NEW_CERTIFICATE = "take ca.pem anew from whoever runs the SuperLink, over a channel you trust"
_ASK_OPERATOR = "the SuperLink is down or starting, or the port is another service's: wait, then ask its operator"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Name of the check.
        state: Whether this check lets the node join.
        text: What was found.
        advice: What to do about it.
        details: Figures, for programs.
    """

    check: str
    state: State
    text: str
    advice: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def skipped(check: str, reason: str) -> Finding:
    """Return that a check was not made, and why."""
    return Finding(check, "skipped", reason)


def examine_network(config: NodeConfig) -> Iterator[Finding]:
    """Check name, link, SuperLink, clock and key; what depends on a check that failed is skipped."""
    name = check_name(config)
    yield name
    link = check_link(config) if name.state == "ok" else None
    yield link or skipped("link", "the name is not known")
    heard: HealthReply | None = None
    if link is None or link.state == "failed":
        yield skipped("superlink", "there is no link")
    else:
        superlink, heard = check_superlink(config)
        yield superlink
    yield check_clock(heard) if heard else skipped("clock", "the SuperLink cannot be asked")
    yield check_key(config, reached=heard is not None)


def check_ports(config: NodeConfig) -> Finding:
    """Check that the node can use its local ports."""
    ports = {"runtime-port": config.runtime_port, "health-port": config.health_port}
    taken = [f"`{key}` {port}: {reason}" for key, port in ports.items() if port and (reason := _taken(port))]
    if not taken:
        return Finding("ports", "ok", f"{', '.join(str(port) for port in ports.values() if port)} can be had")
    text = "; ".join(taken)
    if _runs(config):
        return Finding("ports", "warning", f"{text}: this node is running", "stop it before it is started anew")
    advice = "choose another port, a different one for each node of a machine, or end the program that has it"
    return Finding("ports", "failed", text, advice)


def _taken(port: int) -> str:
    """Return why a program cannot listen at a local port; empty if it can."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are over do not count
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as err:
            return os.strerror(err.errno or 0)
    return ""


def _runs(config: NodeConfig) -> bool:
    """Whether this node's SuperNode runs already. Where the system has no ``/proc``, the answer is no."""
    node_file = os.fsencode(config.node_file)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended since, or is another user's
            if node_file in path.read_bytes().split(b"\0"):
                return True
    return False


def _address(config: NodeConfig) -> tuple[str, int]:
    host, _, port = config.superlink.rpartition(":")
    return host.strip("[]"), int(port)


def check_name(config: NodeConfig) -> Finding:
    """Look the SuperLink's name up."""
    host, port = _address(config)
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as err:
        return Finding(
            "name",
            "failed",
            f"{host} is not known here: {err.strerror or err}",
            "check `superlink` for a typing error, and this device's network and name server",
        )
    return Finding("name", "ok", f"{host} is {', '.join(sorted(found))}")


def _context(config: NodeConfig) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=config.root_certificates)


def check_link(config: NodeConfig) -> Finding:
    """Connect to the SuperLink, and shake hands as a SuperNode does."""
    host, port = _address(config)
    try:
        context = None if config.insecure else _context(config)
    except OSError as err:
        reason = (getattr(err, "reason", None) or err.strerror or str(err)).lower().replace("_", " ")
        text = f"{config.root_certificates} cannot be used as the authority's certificate: {reason}"
        return Finding("link", "failed", text, _NEW_CERTIFICATE)
    try:
        with socket.create_connection((host, port), timeout=_CALL_S) as plain:
            if context is None:
                text, advice = (
                    f"{config.superlink} answers, without TLS",
                    "use `insecure` for trials on one machine only",
                )
                return Finding("link", "warning", text, advice)
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return Finding("link", "ok", f"{config.superlink} answers with {secure.version()}")
    except ssl.SSLCertVerificationError as err:
        reason = err.verify_message
        advice = _NEW_CERTIFICATE
        if "not valid for" in reason or "mismatch" in reason:
            advice = f"its operator adds this name: isoproto keys renew --host {host}"
        elif "not yet valid" in reason or "expired" in reason:
            advice = "set this device's clock; if it is right, the operator calls `isoproto keys renew`"
        return Finding("link", "failed", f"the SuperLink's certificate is refused: {reason}", advice)
    except ssl.SSLError as err:
        reason, advice = (err.reason or str(err)).lower().replace("_", " "), "the port may be another service's"
        if "wrong version number" in reason:
            advice = (
                "it speaks no TLS there: the operator starts it with certificates (docs/keys.md), or the port is wrong"
            )
        return Finding("link", "failed", f"{config.superlink} does not shake hands: {reason}", advice)
    except OSError as err:
        advice = "is the SuperLink running, is the port right, and does a firewall let this device out?"
        return Finding("link", "failed", f"{config.superlink} does not answer: {err.strerror or err}", advice)


class HealthReply(NamedTuple):
    """The SuperLink's answer to a request for its health, with the times that compare two clocks.

    Attributes:
        before: When it was asked, by our clock, in seconds.
        after: When it answered, by our clock.
        date: Its own time, as the answer's header ``Date`` gives it.
    """

    before: float
    after: float
    date: str | None


def check_superlink(config: NodeConfig) -> tuple[Finding, HealthReply | None]:
    """Ask the SuperLink whether it serves.

    A link does not show that, because a proxy before the SuperLink shakes hands also while the SuperLink is down.
    """
    host, port = _address(config)
    if config.insecure:
        connection: http.client.HTTPConnection = http.client.HTTPConnection(host, port, timeout=_CALL_S)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=_CALL_S, context=_context(config))
    try:
        before = time.time()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        heard = HealthReply(before, time.time(), answer.headers["Date"])
    except (OSError, http.client.HTTPException) as err:
        reason = f"{config.superlink} does not answer /health: {err}"
        return Finding("superlink", "failed", reason, _ASK_OPERATOR), None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        reason = f"{config.superlink} answers /health with {answer.status} {answer.reason}"
        return Finding("superlink", "failed", reason, _ASK_OPERATOR), None
    return Finding("superlink", "ok", "it serves"), heard


def check_clock(answer: HealthReply) -> Finding:
    """Compare this clock with the ``Date`` of an HTTP answer, which is accurate to a second."""
    try:
        theirs = parsedate_to_datetime(answer.date or "").timestamp() + 0.5  # the header has whole seconds, cut
    except (TypeError, ValueError) as err:
        return Finding("clock", "warning", f"the SuperLink does not tell its time: {err}", "keep this clock on NTP")
    ahead, error = (answer.before + answer.after) / 2 - theirs, (answer.after - answer.before) / 2 + 0.5
    side = "ahead of" if ahead > 0 else "behind"
    text = f"{abs(ahead):.1f} s {side} the SuperLink's (known to {error:.1f} s)"
    advice = (
        f"it takes up to {_FAST_S:g} s ahead and {_SLOW_S:g} s behind: set the clock, and keep it on NTP (timedatectl)"
    )
    details = {"ahead_s": round(ahead, 2), "error_s": round(error, 2)}
    if ahead - error > _FAST_S or -ahead - error > _SLOW_S:
        return Finding("clock", "failed", text, advice, details)
    if ahead + error > _FAST_S or -ahead + error > _SLOW_S:
        return Finding("clock", "warning", text, advice, details)
    return Finding("clock", "ok", text, details=details)


def check_key(config: NodeConfig, *, reached: bool) -> Finding:
    """Read the key, and ask the SuperLink whether it is enrolled.

    The question is a request to be activated with an invalid heartbeat. The SuperLink refuses it in any case: for the
    heartbeat if the key is enrolled, for the key if it is not. Nothing changes at the SuperLink.
    """
    if config.insecure:
        return skipped("key", "without TLS there is none")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    path = Path(config.private_key)
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as err:
        return Finding("key", "failed", f"cannot read {path}: {err.strerror}", "give it to the node's user: chown")
    except Exception as err:
        return Finding("key", "failed", f"{path} is no private key: {err}", "copy it anew, or ask for another one")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return Finding("key", "failed", f"{path} is not an elliptic-curve key", "use one of `isoproto keys add NODE`")
    if not reached:
        return Finding("key", "warning", "readable; whether it is enrolled is not known", "mend the link first")
    try:
        code = _asked_for_activation(config, key)
    except FederationError as err:
        return Finding("key", "failed", str(err), _ASK_OPERATOR)
    except Exception as err:
        text = f"whether it is enrolled cannot be told: {str(err).splitlines()[0]}"
        return Finding("key", "warning", text, "is this Flower's SuperLink, 1.42?")
    if code == "enrolled":
        return Finding("key", "ok", "enrolled")
    if code == "unknown":
        advice = f"the operator calls `isoproto keys enrol {path.stem}`; a key that was revoked needs a successor"
        return Finding("key", "failed", "the SuperLink does not know this key", advice)
    return Finding("key", "failed", "the SuperLink refuses its signature", "is this device's clock right?")


def _asked_for_activation(config: NodeConfig, key: Any) -> Literal["enrolled", "unknown", "refused"]:  # noqa: ANN401
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.error import ApiErrorCode
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    public = key.public_key()
    request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=-1.0)
    proof: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, public)]
    address, authority = config.superlink, config.root_certificates
    try:
        with FleetHttpClient.from_server_address(address, False, authority, interceptors=proof) as client:
            client.ActivateNode(request)
    except httpx.HTTPStatusError as err:
        answer = err.response
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return "refused"
        with suppress(ValueError, AttributeError):  # a proxy answered with a page of its own
            code = answer.json().get("code")
            if code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
                return "enrolled"
            if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
                return "unknown"
        raise FederationError(
            f"{address} answers a node that wants to join with {answer.status_code} {answer.reason_phrase}: "
            f"{' '.join(answer.text.split())!r:.100}"
        ) from err
    raise RuntimeError("the SuperLink took a heartbeat that no node can have")
