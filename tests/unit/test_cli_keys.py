"""``isoproto keys``, ``connect`` and ``health`` as they are typed, and their exit statuses."""

import re

import pytest
from flwr.supercore.grpc_health import run_health_server_grpc_no_tls

from isoproto.deploy import enrolment, keys
from isoproto.errors import FederationError
from tests.e2e.processes import free_port
from tests.fakes import command_line


@pytest.fixture
def isoproto(tmp_path, monkeypatch, capsys):
    """Return a function that types a command and returns its exit status, output and error output."""
    monkeypatch.setenv("ISOPROTO_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    return command_line(monkeypatch, capsys)


def test_init_shows_what_it_made_and_does_it_once(isoproto, tmp_path):
    status, out, _ = isoproto("keys", "init", "--nodes", "2", "--host", "10.0.0.7", "--years", "1")
    assert status == 0
    assert re.search(r"server\.pem: good until \d{4}-\d\d-\d\d \(364 days\), for localhost, .*, 10\.0\.0\.7\n", out)
    assert "nodes/node-1.pub: not enrolled\n    SHA256:" in out
    assert keys.node_names(tmp_path / "keys") == ["node-0", "node-1"]
    assert isoproto("keys", "show")[:2] == (0, out)
    status, _, err = isoproto("keys", "init")
    assert status == 1
    assert "holds keys already" in err


def test_the_folder_can_be_another(isoproto, tmp_path):
    assert isoproto("keys", "init", "--keys-dir", str(tmp_path / "other"))[0] == 0
    assert (tmp_path / "other" / "ca.pem").exists()
    status, _, err = isoproto("keys", "show")
    assert status == 1
    assert "there are no keys in" in err


def test_add_says_which_file_the_node_needs(isoproto, tmp_path):
    nodes = tmp_path / "keys" / "nodes"
    assert isoproto("keys", "add", "a", "b")[:2] == (0, f"{nodes / 'a.key'}\n{nodes / 'b.key'}\n")


def test_show_fails_on_what_has_ended_or_lies_open(isoproto, tmp_path):
    keys.make_keys(tmp_path / "keys", nodes=["a"], years=0)
    status, out, _ = isoproto("keys", "show")
    assert status == 1
    assert re.search(r"server\.pem: .*; call `isoproto keys renew`\n", out)
    assert "make all keys anew" not in out
    assert isoproto("keys", "renew")[0] == 0
    assert isoproto("keys", "show")[0] == 0
    (tmp_path / "keys" / "ca.key").chmod(0o644)
    status, out, _ = isoproto("keys", "show")
    assert status == 1
    assert f"others can read its private key: chmod 600 {tmp_path}/keys/ca.key" in out
    (tmp_path / "keys" / "ca.key").chmod(0o600)
    (tmp_path / "keys" / "nodes").chmod(0o770)
    status, out, _ = isoproto("keys", "show")
    assert status == 1
    assert f"others can put files into {tmp_path}/keys/nodes: chmod 700 {tmp_path}/keys/nodes\n" in out


def test_connect_writes_what_flower_reads(isoproto, tmp_path):
    isoproto("keys", "init")
    status, out, _ = isoproto("connect")
    assert status == 0
    assert out == f"{tmp_path}/flwr/config.toml: isoproto leads to 127.0.0.1:8000; `flwr run . isoproto --stream`\n"
    text = (tmp_path / "flwr" / "config.toml").read_text()
    assert f'[superlink.isoproto]\naddress = "127.0.0.1:8000"\nroot-certificates = "{tmp_path}/keys/ca.pem"\n' in text
    assert 'default = "local"' in text
    assert "led already" in isoproto("connect")[1]
    status, _, err = isoproto("connect", "--address", "10.0.0.7:8000", "--insecure")
    assert status == 1
    assert "--replace" in err
    assert (tmp_path / "flwr" / "config.toml").read_text() == text
    status, _, err = isoproto("connect", "--insecure")
    assert status == 1
    assert "--replace" in err
    status, _, err = isoproto("connect", "--address", "10.0.0.7:8000", "--insecure", "--replace")
    assert (status, err[:48]) == (0, "warning: without TLS, what goes to 10.0.0.7:8000")
    assert 'address = "10.0.0.7:8000"\ninsecure = true\n' in (tmp_path / "flwr" / "config.toml").read_text()


def test_connect_needs_a_certificate_or_none(isoproto, tmp_path):
    status, _, err = isoproto("connect")
    assert status == 1
    assert "cannot read the certificate" in err
    status, _, err = isoproto("connect", "--insecure", "--root-certificates", "x.pem")
    assert status == 1
    assert "exclude each other" in err
    assert not (tmp_path / "flwr").exists()


def test_enrol_and_revoke_tell_of_each_node(isoproto, tmp_path, monkeypatch):
    def ask(words):
        if "register" in words and "node-1" in words:
            raise FederationError("Public key already in use.")
        accepted[keys.public_pem(nodes / "node-0.pub")] = enrolment.Known("7", accepted=True)
        return {"node-id": 7}

    accepted, nodes = {}, tmp_path / "keys" / "nodes"
    for function in (enrolment.enrol, enrolment.revoke):
        monkeypatch.setattr(function, "__defaults__", (ask, lambda connection: accepted))
    assert "there is no key of a node in" in isoproto("keys", "enrol")[2]
    isoproto("keys", "init", "--nodes", "2")
    assert isoproto("keys", "enrol") == (
        1,
        "node-0: enrolled as node 7\n",
        "node-1: Public key already in use.\n",
    )
    assert isoproto("keys", "enrol", "node-0")[:2] == (0, "node-0: was enrolled already, as node 7\n")
    assert "nodes/node-0.pub: node 7 at isoproto\n" in isoproto("keys", "show")[1]
    status, out, _ = isoproto("keys", "revoke", "node-0")
    assert status == 0
    assert out.startswith("node-0: node 7 at isoproto is refused from now on")


def test_health(isoproto):
    address = f"127.0.0.1:{free_port()}"
    status, out, err = isoproto("health", address, "--timeout", "1")
    assert (status, out) == (2, "")
    assert err.startswith(f"{address}: unreachable (UNAVAILABLE: ")
    server = run_health_server_grpc_no_tls(address)
    try:
        assert isoproto("health", address) == (0, f"{address}: serving\n", "")
    finally:
        server.stop(None).wait()
    status, _, err = isoproto("health", "localhost")
    assert status == 1
    assert "give HOST:PORT" in err
