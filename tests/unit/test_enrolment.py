"""Enrolling and revoking against a SuperLink that answers as Flower 1.42's does."""

import sys
from pathlib import Path

import pytest

from isoproto import enrolment, keys
from isoproto.enrolment import Outcome, ask_flower, enrol, enrolled_as, revoke
from isoproto.errors import FederationError, StateError


class Link:
    """A SuperLink: each public key is registered at most once, and stays known after it was unregistered."""

    def __init__(self):
        self.nodes = {}
        self.asked = []

    def __call__(self, words):
        self.asked.append(words)
        _, verb, *more = words
        return getattr(self, verb)(*more)

    def register(self, path, connection, _option, name):
        key = Path(path).read_text()
        if any(node["key"] == key for node in self.nodes.values()):
            raise FederationError("`flwr supernode register`: Public key already in use.")
        number = 18_000_000_000_000_000_000 + len(self.nodes)
        self.nodes[str(number)] = {"key": key, "name": name, "at": connection, "status": "registered"}
        return {"success": True, "node-id": number}

    def unregister(self, number, _connection):
        if self.nodes.get(number, {}).get("status", "unregistered") == "unregistered":
            raise FederationError("`flwr supernode unregister`: Node ID not found for account.")
        self.nodes[number]["status"] = "unregistered"
        return {"success": True}

    def list(self, _connection):
        return {"nodes": [{"node-id": number, "status": node["status"]} for number, node in self.nodes.items()]}


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        keys.make_node_key(tmp_path, name)
    return tmp_path


def test_nodes_are_enrolled_by_name_once(link, folder):
    first = list(enrol(folder, ["a", "b"], "here", link))
    assert [(found.node, found.done) for found in first] == [("a", True), ("b", True)]
    assert first[0].text == "enrolled as node 18000000000000000000"
    assert [(node["name"], node["at"]) for node in link.nodes.values()] == [("a", "here"), ("b", "here")]
    assert enrolled_as(folder, "b") == "node 18000000000000000001 at here"
    again = list(enrol(folder, ["a", "b"], "here", link))
    assert [found.text for found in again] == [
        "was enrolled already, as node 18000000000000000000",
        "was enrolled already, as node 18000000000000000001",
    ]
    assert len(link.nodes) == 2


def test_a_superlink_that_forgot_or_another_one_is_told_again(link, folder):
    list(enrol(folder, ["a"], "here", link))
    fresh = Link()
    assert [found.text for found in enrol(folder, ["a"], "here", fresh)] == ["enrolled as node 18000000000000000000"]
    assert len(fresh.nodes) == 1
    (outcome,) = enrol(folder, ["a"], "there", Link())
    assert outcome.done
    assert enrolled_as(folder, "a").endswith("at there")


def test_one_refusal_does_not_stop_the_others(link, folder):
    link.register(folder / "nodes" / "a.pub", "here", "--name", "a")
    refused, fine = enrol(folder, ["a", "b"], "here", link)
    assert refused == Outcome("a", False, "`flwr supernode register`: Public key already in use.")
    assert fine.done
    assert enrolled_as(folder, "a") == ""


def test_a_node_without_key_stops_before_anything_is_asked(link, folder):
    with pytest.raises(StateError, match="no key of a node 'c'"):
        list(enrol(folder, ["a", "c"], "here", link))
    assert link.asked == []


def test_a_revoked_node_is_refused_and_its_key_gone(link, folder):
    list(enrol(folder, ["a", "b"], "here", link))
    outcome = revoke(folder, "a", link)
    assert outcome == Outcome("a", True, "node 18000000000000000000 is refused from now on; its key is removed")
    assert [node["status"] for node in link.nodes.values()] == ["unregistered", "registered"]
    assert sorted(path.name for path in (folder / "nodes").iterdir()) == ["b.json", "b.key", "b.pub"]
    keys.make_node_key(folder, "a")
    assert [found.done for found in enrol(folder, ["a"], "here", link)] == [True]
    assert len(link.nodes) == 3


def test_revoking_what_the_superlink_forgot_removes_the_key(link, folder):
    list(enrol(folder, ["a"], "here", link))
    outcome = revoke(folder, "a", Link())
    assert outcome == Outcome("a", True, "the SuperLink knew no node 18000000000000000000; its key is removed")
    assert keys.node_names(folder) == ["b"]


def test_a_key_that_the_superlink_keeps_is_kept_here(link, folder):
    def complain(*_):
        raise FederationError("no")

    list(enrol(folder, ["a"], "here", link))
    link.unregister = complain
    assert revoke(folder, "a", link) == Outcome("a", False, "no")
    assert (folder / "nodes" / "a.key").exists()
    assert enrolled_as(folder, "a")


def test_revoking_needs_a_record(link, folder):
    with pytest.raises(StateError, match=r"no record in .* that 'a' was enrolled; .*flwr supernode unregister NUMBER"):
        revoke(folder, "a", link)
    assert link.asked == []


@pytest.mark.parametrize("content", ["", "[]", '{"connection": "here"}', '{"other": 1}'])
def test_a_record_that_cannot_be_read_is_told_of(link, folder, content):
    (folder / "nodes" / "a.json").write_text(content)
    with pytest.raises(StateError, match=r"cannot read .*a\.json: .*restore or remove it"):
        revoke(folder, "a", link)


# Flower's command


@pytest.fixture
def flwr(tmp_path, monkeypatch):
    """Put a script in place of ``flwr`` and return a function that gives it its body."""

    def says(body):
        path = tmp_path / "flwr"
        path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
        path.chmod(0o755)
        monkeypatch.setattr(enrolment, "tool", lambda name: str(tmp_path / name))

    return says


def test_flower_is_asked_for_json_where_no_app_is(flwr, tmp_path, monkeypatch):
    flwr("print(json.dumps({'success': True, 'said': [sys.argv[1:], os.listdir(), os.environ['FLWR_HOME']]}))")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", "mine")
    assert ask_flower(["supernode", "list"])["said"] == [
        ["supernode", "list", "--format", "json"],
        [],
        str(tmp_path / "mine"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        "print(json.dumps({'success': False, 'error-message': 'no\\n  way'}))",
        "print('no way', file=sys.stderr); sys.exit(3)",
        "print(json.dumps(['no way']))",
    ],
    ids=["an answer", "an exit", "a list"],
)
def test_a_failure_has_flowers_reason(flwr, body):
    flwr(body)
    with pytest.raises(FederationError, match=r"`flwr supernode list`: .*no way"):
        ask_flower(["supernode", "list"])


def test_flower_may_not_take_for_ever(flwr, monkeypatch):
    flwr("import time; time.sleep(60)")
    monkeypatch.setattr(enrolment, "_LIMIT_S", 0.1)
    with pytest.raises(FederationError, match=r"did not end within 0\.1 s"):
        ask_flower(["supernode", "list"])
