"""The doctor's look at a clock and a link, against a server of our own, and at texts."""

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

from client_app.doctor import _clock, _key, _link, _name, examine
from isoproto.node import NodeConfig


@contextmanager
def server(behind_s: float) -> Iterator[NodeConfig]:
    """A server whose clock is behind ours."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() - behind_s, usegmt=True)

        def log_message(self, *args: object) -> None:
            pass

    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http_server.serve_forever)
    thread.start()
    values = {"superlink": f"127.0.0.1:{http_server.server_port}", "insecure": True, "data": "digits4"}
    try:
        yield NodeConfig.from_mapping(values, Path())
    finally:
        http_server.shutdown()
        thread.join()
        http_server.server_close()


@pytest.mark.parametrize(
    ("ahead", "state", "words"),
    [(0, "ok", "the SuperLink's"), (8, "failed", "ahead of"), (-200, "ok", "behind"), (-320, "failed", "behind")],
)
def test_a_clock_may_be_late_but_hardly_early(ahead, state, words):
    with server(ahead) as config:
        found = _clock(config)
    assert (found.state, words in found.text) == (state, True)
    assert found.details["ahead_s"] == pytest.approx(ahead, abs=1.5)
    assert "NTP" in found.advice or state == "ok"


def test_a_link_without_tls_is_a_warning_and_nobody_there_a_failure():
    with server(0) as config:
        assert (_name(config).state, _link(config).state, _key(config, reached=True).state) == (
            "ok",
            "warning",
            "skipped",
        )
    found = _link(config)
    assert (found.state, "does not answer" in found.text) == ("failed", True)


def test_a_key_is_looked_at_before_it_is_shown(tmp_path):
    from isoproto.keys import make_node_key

    (tmp_path / "ca.pem").write_text("")
    key = make_node_key(tmp_path, "ward")
    values = {"superlink": "127.0.0.1:1", "root-certificates": "ca.pem", "private-key": str(key), "data": "digits4"}
    config = NodeConfig.from_mapping(values, tmp_path)
    assert _key(config, reached=False).state == "warning"
    key.chmod(0o644)
    found = _key(config, reached=True)
    assert (found.state, found.advice) == ("failed", f"chmod 600 {key}")
    key.write_text("no key")
    assert "is no private key" in _key(config, reached=True).text


def test_a_model_that_only_the_run_names_is_not_held_against_a_node_with_texts(tmp_path):
    rows = [f'{{"text": "{word} day", "label": "{word}"}}' for word in ("good", "bad")]
    (tmp_path / "reviews.jsonl").write_text("\n".join(rows * 20))
    values = {"superlink": "127.0.0.1:9", "insecure": True, "data": "jsonl:reviews.jsonl", "state-dir": "state"}
    found = {one.check: one for one in examine(NodeConfig.from_mapping(values, tmp_path))}
    assert (found["data"].state, found["training"].state) == ("ok", "skipped")
    found = {one.check: one for one in examine(NodeConfig.from_mapping({**values, "model": "fasttext"}, tmp_path))}
    assert (found["training"].state, "fasttext, " in found["training"].text) == ("ok", True)
