"""Enrolling and revoking against a SuperLink that answers as Flower 1.42's does."""

import re
import sys
from pathlib import Path

import pytest

from isoproto.deploy import enrolment, keys
from isoproto.deploy.enrolment import Known, Outcome, ask_flower, enrolled_as, enrolled_names, known_keys
from isoproto.errors import FederationError, StateError
from tests.e2e.processes import free_port


class Link:
    """A SuperLink: each public key is registered at most once, and stays known after it was unregistered."""

    def __init__(self, first=18_000_000_000_000_000_000):
        self.nodes = {}
        self.asked = []
        self.first = first

    def ask(self, words):
        self.asked.append(words)
        _, verb, *more = words
        return getattr(self, verb)(*more)

    def register(self, path, _connection, _option="", name=""):
        key = keys.public_pem(Path(path))
        if key in self.nodes:
            raise FederationError("`flwr supernode register`: Public key already in use.")
        number = self.first + len(self.nodes)
        self.nodes[key] = {"number": str(number), "name": name, "accepted": True}
        return {"success": True, "node-id": number}

    def unregister(self, number, _connection):
        (node,) = [one for one in self.nodes.values() if one["number"] == number and one["accepted"]]
        node["accepted"] = False
        return {"success": True}

    def look(self, _connection):
        return {key: Known(one["number"], one["accepted"]) for key, one in self.nodes.items()}

    def accepted(self):
        return [one["number"] for one in self.nodes.values() if one["accepted"]]


class Net:
    """SuperLinks that can be asked, by connection."""

    def __init__(self, **links):
        self.links = links

    def ask(self, words):
        return self.links[words[3]].ask(words)

    def look(self, connection):
        if connection not in self.links:
            raise FederationError(f"{connection} does not answer")
        return self.links[connection].look(connection)


def enrol(folder, names, connection, link):
    return list(enrolment.enrol(folder, names, connection, link.ask, link.look))


def revoke(folder, name, link):
    return enrolment.revoke(folder, name, link.ask, link.look)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        keys.make_node_key(tmp_path, name)
    return tmp_path


def test_nodes_are_enrolled_by_name_once(link, folder):
    first = enrol(folder, ["a", "b"], "here", link)
    assert [(found.node, found.done) for found in first] == [("a", True), ("b", True)]
    assert first[0].text == "enrolled as node 18000000000000000000"
    assert [node["name"] for node in link.nodes.values()] == ["a", "b"]
    assert link.asked[0] == ["supernode", "register", str(folder / "nodes" / "a.pub"), "here", "--name", "a"]
    assert enrolled_as(folder, "b") == "node 18000000000000000001 at here"
    assert enrolled_names(folder, "here") == {"18000000000000000000": "a", "18000000000000000001": "b"}
    assert enrolled_names(folder, "there") == {}
    again = enrol(folder, ["a", "b"], "here", link)
    assert [found.text for found in again] == [
        "was enrolled already, as node 18000000000000000000",
        "was enrolled already, as node 18000000000000000001",
    ]
    assert len(link.nodes) == 2


def test_a_superlink_that_forgot_or_another_one_is_told_again(link, folder):
    enrol(folder, ["a"], "here", link)
    fresh = Link(5)
    assert [found.text for found in enrol(folder, ["a"], "here", fresh)] == ["enrolled as node 5"]
    assert enrolled_as(folder, "a") == "node 5 at here"
    (outcome,) = enrol(folder, ["a"], "there", Link(7))
    assert outcome.done
    assert enrolled_as(folder, "a") == "node 5 at here, node 7 at there"


def test_a_record_of_before_there_were_several_is_one_of_them(link, folder):
    (folder / "nodes" / "a.json").write_text('{"connection": "old", "node_id": "3"}')
    enrol(folder, ["a"], "here", link)
    assert enrolled_as(folder, "a") == "node 3 at old, node 18000000000000000000 at here"


def test_one_refusal_does_not_stop_the_others(link, folder):
    def refuse(path, *more):
        if path.endswith("a.pub"):
            raise FederationError("no")
        return Link.register(link, path, *more)

    link.register = refuse
    refused, fine = enrol(folder, ["a", "b"], "here", link)
    assert refused == Outcome("a", False, "no")
    assert fine.done
    assert enrolled_as(folder, "a") == ""


def test_a_key_that_was_refused_for_good_needs_a_successor(link, folder):
    link.register(folder / "nodes" / "a.pub", "here")
    link.unregister("18000000000000000000", "here")
    (outcome,) = enrol(folder, ["a"], "here", link)
    assert not outcome.done
    assert re.match(
        r"its key was node 180+ and is refused for good; .*keys revoke a`, `isoproto keys add a`", outcome.text
    )
    assert revoke(folder, "a", link).done


@pytest.mark.parametrize("landed", [True, False])
def test_an_enrolment_that_was_cut_off_can_be_mended(link, folder, landed):
    """Whether or not the SuperLink has taken the key: by enrolling again, or by revoking."""

    def cut_off(words):
        if landed:
            link.ask(words)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(enrolment.enrol(folder, ["a"], "here", cut_off, link.look))
    assert enrolled_as(folder, "a") == ""
    outcome = revoke(folder, "a", link)
    assert outcome.done is landed
    if not landed:
        assert [found.text for found in enrol(folder, ["a"], "here", link)] == ["enrolled as node 18000000000000000000"]
        assert revoke(folder, "a", link).done
    assert link.accepted() == []


def test_a_key_that_flower_was_told_of_is_found(link, folder):
    link.register(folder / "nodes" / "a.pub", "here")
    assert [found.text for found in enrol(folder, ["a"], "here", link)] == [
        "was enrolled already, as node 18000000000000000000"
    ]
    assert enrolled_as(folder, "a") == "node 18000000000000000000 at here"


def test_a_node_without_key_stops_before_anything_is_asked(link, folder):
    with pytest.raises(StateError, match="no key of a node 'c'"):
        enrol(folder, ["a", "c"], "here", link)
    assert link.asked == []


def test_a_revoked_node_is_refused_and_its_key_gone(link, folder):
    enrol(folder, ["a", "b"], "here", link)
    outcome = revoke(folder, "a", link)
    told = "node 18000000000000000000 at here is refused from now on; its key is removed"
    assert outcome == Outcome("a", True, told)
    assert link.accepted() == ["18000000000000000001"]
    assert sorted(path.name for path in (folder / "nodes").iterdir()) == ["b.json", "b.key", "b.pub"]
    keys.make_node_key(folder, "a")
    assert [found.done for found in enrol(folder, ["a"], "here", link)] == [True]
    assert len(link.nodes) == 3


def test_every_superlink_that_took_a_key_refuses_it(folder):
    one, two = Link(1), Link(2)
    net = Net(one=one, two=two)
    for connection in ("one", "two"):
        enrol(folder, ["a"], connection, net)
    del net.links["two"]
    outcome = revoke(folder, "a", net)
    assert not outcome.done
    assert outcome.text.startswith(
        "node 1 at one is refused from now on; two does not answer; its key is kept here: try"
    )
    assert keys.node_names(folder) == ["a", "b"]
    net.links["two"] = two
    outcome = revoke(folder, "a", net)
    told = "node 1 at one is refused from now on; node 2 at two is refused from now on; its key is removed"
    assert outcome == Outcome("a", True, told)
    assert one.accepted() == two.accepted() == []


def test_a_key_that_has_another_number_by_now_is_refused_all_the_same(folder):
    enrol(folder, ["a"], "here", Link(101))
    fresh = Link(501)  # its database was lost, and flwr told it of the key
    fresh.register(folder / "nodes" / "a.pub", "here")
    outcome = revoke(folder, "a", fresh)
    assert outcome == Outcome("a", True, "node 501 at here is refused from now on; its key is removed")
    assert fresh.accepted() == []


def test_a_key_is_kept_if_who_took_it_cannot_be_found(link, folder):
    """The entry leads to another SuperLink by now, or its database was lost."""
    enrol(folder, ["a"], "here", link)
    outcome = revoke(folder, "a", Link())
    assert not outcome.done
    assert re.search(
        r"'here' knows no such key: .* or 'here' leads to another one than before, .*remove .*/a\.\* if", outcome.text
    )
    assert sorted(path.name for path in (folder / "nodes").glob("a.*")) == ["a.json", "a.key", "a.pub"]


def test_a_key_that_the_superlink_keeps_is_kept_here(link, folder):
    def complain(*_):
        raise FederationError("no")

    enrol(folder, ["a"], "here", link)
    link.unregister = complain
    outcome = revoke(folder, "a", link)
    assert (outcome.done, outcome.text[:26]) == (False, "no; its key is kept here: ")
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


def test_a_superlink_that_does_not_tell_its_keys_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{free_port()}"\ninsecure = true\n')
    with pytest.raises(FederationError, match=r"SuperLink of 'here' does not tell which keys it knows: .*"):
        known_keys("here")
    with pytest.raises(FederationError, match=r"'there' does not tell .* SuperLink connection 'there' not found"):
        known_keys("there")
