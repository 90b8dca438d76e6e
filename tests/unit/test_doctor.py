"""The doctor's look at a clock and a link, against a server of our own, and at texts."""

import errno
import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

import client_app.doctor
from client_app.doctor import _data, _packages, _sends, _user, examine
from isoproto.cli.node import asked_by_strategies
from isoproto.deploy.checks import check_clock, check_key, check_link, check_name, check_ports, check_superlink
from isoproto.deploy.keys import make_keys, make_node_key
from isoproto.deploy.node import NodeConfig
from isoproto.toml import to_toml
from strategies import STRATEGIES
from strategies.fedavg import FedAvg
from tests.fakes import command_line


@contextmanager
def server(behind_s: float = 0, status: int = 200, tls: Path | None = None) -> Iterator[NodeConfig]:
    """A server, or a proxy before one, whose clock is behind ours; with TLS by the keys of a folder."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status if self.path == "/health" or status != 200 else 502)
            self.end_headers()
            self.wfile.write(b"<html>Bad Gateway</html>")

        do_POST = do_GET  # noqa: N815 - its name in the standard library

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() - behind_s, usegmt=True)

        def log_message(self, *args: object) -> None:
            pass

    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    values = {"superlink": f"127.0.0.1:{http_server.server_port}", "data": "digits4"}
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "server.pem", tls / "server.key")
        http_server.socket = context.wrap_socket(http_server.socket, server_side=True)
        values |= {"root-certificates": str(tls / "ca.pem"), "private-key": str(tls / "nodes" / "ward.key")}
    else:
        values["insecure"] = True
    thread = threading.Thread(target=http_server.serve_forever)
    thread.start()
    try:
        yield NodeConfig.from_mapping(values, Path())
    finally:
        http_server.shutdown()
        thread.join()
        http_server.server_close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, nodes=["ward"])
    return folder


@pytest.mark.parametrize(
    ("ahead", "state", "words"),
    [(0, "ok", "the SuperLink's"), (8, "failed", "ahead of"), (-200, "ok", "behind"), (-320, "failed", "behind")],
)
def test_a_clock_may_be_late_but_hardly_early(ahead, state, words):
    with server(ahead) as config:
        found = check_clock(check_superlink(config)[1])
    assert (found.state, words in found.text) == (state, True)
    assert found.details["ahead_s"] == pytest.approx(ahead, abs=1.5)
    assert "NTP" in found.advice or state == "ok"


def test_a_link_without_tls_is_a_warning_and_nobody_there_a_failure():
    with server(0) as config:
        assert (check_name(config).state, check_link(config).state, check_key(config, reached=True).state) == (
            "ok",
            "warning",
            "skipped",
        )
    found = check_link(config)
    assert (found.state, "does not answer" in found.text) == ("failed", True)


def test_a_key_is_looked_at_before_it_is_shown(tmp_path):
    (tmp_path / "ca.pem").write_text("")
    key = make_node_key(tmp_path, "ward")
    values = {"superlink": "127.0.0.1:1", "root-certificates": "ca.pem", "private-key": str(key), "data": "digits4"}
    config = NodeConfig.from_mapping(values, tmp_path)
    assert check_key(config, reached=False).state == "warning"
    key.write_text("no key")
    assert "is no private key" in check_key(config, reached=True).text
    key.unlink()
    assert check_key(config, reached=True).text == f"cannot read {key}: No such file or directory"


def test_a_model_that_only_the_run_names_is_not_held_against_a_node_with_texts(tmp_path):
    rows = [f'{{"text": "{word} day", "label": "{word}"}}' for word in ("good", "bad")]
    (tmp_path / "reviews.jsonl").write_text("\n".join(rows * 20))
    values = {"superlink": "127.0.0.1:9", "insecure": True, "data": "jsonl:reviews.jsonl", "state-dir": "state"}
    found = {one.check: one for one in examine(NodeConfig.from_mapping(values, tmp_path))}
    assert (found["data"].state, found["training"].state) == ("ok", "skipped")
    found = {one.check: one for one in examine(NodeConfig.from_mapping({**values, "model": "fasttext"}, tmp_path))}
    assert (found["training"].state, "fasttext, " in found["training"].text) == ("ok", True)


@pytest.mark.parametrize("status", [502, 503, 404])
def test_a_proxy_whose_superlink_is_down_is_not_taken_for_one(keys, status):
    with server(status=status, tls=keys) as config:
        assert check_link(config).state == "ok"
        found = {one.check: one for one in examine(config)}
    assert found["superlink"].state == "failed"
    assert f"answers /health with {status} " in found["superlink"].text
    assert (found["clock"].state, found["key"].state) == ("skipped", "warning")


@pytest.mark.filterwarnings("ignore:.verify=<str>. is deprecated:DeprecationWarning")  # Flower's way to call httpx
def test_an_answer_that_is_not_flowers_does_not_make_a_key_good(keys):
    """The proxy's own page stands for /health, and something else, or nothing, behind it."""
    with server(tls=keys) as config:
        found = check_key(config, reached=True)
    assert found.state == "failed", found.text
    assert "answers a node that wants to join with 502 Bad Gateway: '<html>Bad Gateway</html>'" in found.text


def test_a_superlink_that_hangs_up_does_not_serve():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        values = {"superlink": f"127.0.0.1:{listener.getsockname()[1]}", "insecure": True, "data": "digits4"}
        found, answer = check_superlink(NodeConfig.from_mapping(values, Path()))
    assert (found.state, answer) == ("failed", None)
    assert "does not answer /health: " in found.text


@pytest.mark.parametrize("content", ["", "hello"])
def test_a_file_that_is_no_certificate_is_named_whoever_answers(keys, tmp_path, content):
    (tmp_path / "ca.pem").write_text(content)
    values = {"root-certificates": str(tmp_path / "ca.pem"), "private-key": str(keys / "nodes" / "ward.key")}
    found = check_link(NodeConfig.from_mapping({**values, "superlink": "127.0.0.1:1", "data": "digits4"}, tmp_path))
    assert found.state == "failed"
    assert found.text.startswith(f"{tmp_path}/ca.pem cannot be used as the authority's certificate: ")
    assert found.advice.startswith("take ca.pem anew")


def local(folder: Path, **others: object) -> NodeConfig:
    values = {"superlink": "127.0.0.1:9", "insecure": True, "data": "digits4", "state-dir": "state", **others}
    return NodeConfig.from_mapping({key.replace("_", "-"): value for key, value in values.items()}, folder)


def test_a_port_of_another_program_keeps_a_node_from_starting(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
        config = local(tmp_path, runtime_port=ports[0], health_port=ports[1])
        found = check_ports(config)
        assert (found.state, "a different one for each node" in found.advice) == ("failed", True)
        assert found.text == (
            f"`runtime-port` {ports[0]}: Address already in use; `health-port` {ports[1]}: Address already in use"
        )
        command = [sys.executable, "-c", "print(flush=True); input()", str(config.node_file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
            node.stdout.readline()  # else it may not be more than a copy of this process yet
            found = check_ports(config)
            node.communicate(b"\n")
        assert (found.state, found.text.endswith(": this node is running")) == ("warning", True)
    assert check_ports(config).state == "ok"


def test_a_port_that_this_user_may_not_have_is_told_of(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise OSError(errno.EACCES, "")

    monkeypatch.setattr("isoproto.deploy.checks.socket.socket.bind", refused)
    assert check_ports(local(tmp_path, runtime_port=80)).text == "`runtime-port` 80: Permission denied"


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.5.0a0+872d972e41.nv24.08", "ok"), ("2.14.1+cpu", "ok"), ("2.6.0rc1", "ok"), ("2.3.0a0+40ec155e58", "failed")],
)
def test_a_build_of_nvidias_is_as_good_as_its_number(monkeypatch, version, state):
    real = client_app.doctor.importlib.metadata.version
    monkeypatch.setattr(
        "client_app.doctor.importlib.metadata.version", lambda name: version if name == "torch" else real(name)
    )
    assert _packages().state == state


@pytest.mark.parametrize(("user", "state"), [(0, "warning"), (999, "ok")])
def test_root_is_told_that_the_nodes_user_may_less(monkeypatch, user, state):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found = _user()
    assert (found.state, "sudo -u isoproto" in found.advice) == (state, user == 0)


def test_data_that_cannot_be_read_are_a_finding(tmp_path, monkeypatch):
    (tmp_path / "x.npz").write_bytes(b"")
    (tmp_path / "photos" / "cat").mkdir(parents=True)

    def refused(path: object, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for data, function in (("npz:x.npz", "pathlib.Path.open"), ("imagefolder:photos", "os.listdir")):
        with monkeypatch.context() as patch:
            patch.setattr(function, refused)
            client, found = _data(local(tmp_path, data=data), 16)
        assert (client, found.state) == (None, "failed")
        where = tmp_path / data.partition(":")[2]
        assert (
            found.text
            == f"data '{data}': cannot read {where}: Permission denied; give this user the right to read it, or mend it"
        )


SENDS = {
    "": "class means and counts alone; runs of fedavg, feddistill, fedhpro, fml, isoproto, isoproto_anchors ask for "
    "more and leave this node out",
    "gradients,statistics": "class means, counts, gradients and statistics; runs of fedavg, feddistill, fedhpro, fml "
    "ask for more and leave this node out",
    "head,base": "class means, counts, base and head; runs of feddistill, fedhpro, fml, isoproto, isoproto_anchors ask "
    "for more and leave this node out",
    "base,gradients,head": "class means, counts, base, gradients and head; runs of feddistill, fml, isoproto ask for "
    "more and leave this node out",
    "base,gradients,head,logits,statistics,twin": "class means, counts, base, gradients, head, logits, statistics and "
    "twin",
}


@pytest.mark.parametrize("allowed", SENDS)
def test_what_a_node_lets_go_is_said_with_the_strategies_that_need_more(allowed):
    values = {"superlink": "127.0.0.1:9", "insecure": True, "data": "digits4", "may-send": allowed}
    found = _sends(NodeConfig.from_mapping(values, Path()), asked_by_strategies())
    assert (found.state, found.text) == ("ok", SENDS[allowed])


def test_a_strategy_that_is_new_is_among_those_that_ask_for_more(tmp_path, monkeypatch, capsys):
    """The command line reads what strategies ask for from the strategies."""
    monkeypatch.setitem(STRATEGIES, "newest", type("Newest", (FedAvg,), {}))
    values = {"superlink": "127.0.0.1:9", "insecure": True, "data": "digits4", "device": "tpu"}
    (tmp_path / "node.toml").write_text(to_toml(values))
    _, out, _ = command_line(monkeypatch, capsys)("doctor", "--json", "--config", str(tmp_path / "node.toml"))
    (found,) = [one for one in json.loads(out)["findings"] if one["check"] == "sends"]
    assert found["details"]["left_out_by"] == [
        *("fedavg", "feddistill", "fedhpro", "fml", "isoproto", "isoproto_anchors", "newest")
    ]
