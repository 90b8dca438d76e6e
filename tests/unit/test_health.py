"""The health check against real gRPC servers in this process."""

import time
from concurrent import futures

import grpc
import pytest
from flwr.supercore.grpc_health import run_health_server_grpc_no_tls
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from isoproto.deploy import keys
from isoproto.deploy.health import Health, Status, check
from tests.e2e.processes import free_port

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def server():
    """A server without services yet, and its port for each kind of credentials."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    yield server
    server.stop(None).wait()


@pytest.fixture
def servicer(server):
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return servicer


def opened(server):
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return f"127.0.0.1:{port}"


def test_it_says_what_the_server_says(server, servicer):
    address = opened(server)
    servicer.set("", SERVING)
    servicer.set("fleet", NOT_SERVING)
    assert check(address) == Health(Status.SERVING)
    assert check(address, service="fleet") == Health(Status.NOT_SERVING, "NOT_SERVING")
    unknown = check(address, service="nothing")
    assert unknown.status is Status.NOT_SERVING
    assert unknown.reason.startswith("NOT_FOUND: ")
    servicer.set("", NOT_SERVING)
    assert check(address) == Health(Status.NOT_SERVING, "NOT_SERVING")


def test_flowers_own_server_is_understood():
    address = f"127.0.0.1:{free_port()}"
    server = run_health_server_grpc_no_tls(address)
    assert check(address) == Health(Status.SERVING)
    server.stop(None).wait()
    assert check(address, timeout_s=1).status is Status.UNREACHABLE


def test_a_server_without_health_service_does_not_serve(server):
    found = check(opened(server))
    assert found.status is Status.NOT_SERVING
    assert found.reason.startswith("UNIMPLEMENTED: ")


def test_nobody_there():
    found = check(f"127.0.0.1:{free_port()}", timeout_s=2)
    assert found.status is Status.UNREACHABLE
    assert found.reason.startswith("UNAVAILABLE: ")


def test_a_server_that_is_silent_is_given_up(server, servicer, monkeypatch):
    monkeypatch.setattr(servicer, "Check", lambda *_: time.sleep(1))
    fresh = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, fresh)
    found = check(opened(fresh), timeout_s=0.2)
    fresh.stop(None).wait()
    assert found.status is Status.UNREACHABLE
    assert found.reason.startswith("DEADLINE_EXCEEDED: ")


def test_with_tls_only_the_right_authority_will_do(server, servicer, tmp_path):
    for name in ("right", "wrong"):
        keys.make_keys(tmp_path / name)
    pair = [(tmp_path / "right" / name).read_bytes() for name in ("server.key", "server.pem")]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([tuple(pair)]))
    server.start()
    servicer.set("", SERVING)
    address = f"127.0.0.1:{port}"
    assert check(address, keys.check_certificate(tmp_path / "right" / "ca.pem")) == Health(Status.SERVING)
    assert check(address, (tmp_path / "wrong" / "ca.pem").read_bytes(), timeout_s=2).status is Status.UNREACHABLE
    assert check(address, timeout_s=2).status is Status.UNREACHABLE


def test_a_proxy_of_the_environment_is_not_asked(server, servicer, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    servicer.set("", SERVING)
    assert check(opened(server), timeout_s=2).status is Status.SERVING
