"""Keys: what is written, who can read it, that nothing is replaced, and what TLS and Flower make of it."""

import contextlib
import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode, _try_setup_client_authentication

from isoproto.deploy import keys
from isoproto.errors import ConfigError, StateError

PUBLIC = (
    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBHl0MyE5Gq0SwF969WymaWty+kEOTp"
    "DLJ++4arvU8wIa87YP+wSIu+csqytoVtGiXuWdMJrRKKgoy9ySXuOcqoFs2/RetCmAFcEK1aXtNNw8O+zjOt100T+8EsQgk9Ptcg== a\n"
)
FINGERPRINT = "SHA256:day5tLgDjbXY0EFE8NcPNW6xItwksHj/YG7hHHSq+FA"
OWN = {"ca.key", "ca.pem", "server.key", "server.pem"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment") / "keys"
    keys.make_keys(folder, nodes=["node-0", "site.b"], hosts=["link.example.org", "10.0.0.7", "[2001:db8::1]"])
    return folder


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


# Files


def test_the_files_and_nothing_else(folder):
    nodes = {f"nodes/{name}{suffix}" for name in ("node-0", "site.b") for suffix in (".key", ".pub")}
    assert set(content(folder)) == OWN | nodes
    assert keys.node_names(folder) == ["node-0", "site.b"]


def test_private_keys_are_their_owners_alone(folder):
    modes = {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}
    assert modes["nodes"] == stat.S_IMODE(folder.stat().st_mode) == 0o700
    private = [name for name, text in content(folder).items() if b"PRIVATE" in text]
    assert sorted(private) == [name for name in sorted(modes) if name.endswith(".key")]


def test_a_private_key_is_closed_from_its_first_moment(tmp_path, monkeypatch):
    seen = []
    fsync = os.fsync

    def look(number):
        seen.append(stat.S_IMODE(os.fstat(number).st_mode))
        fsync(number)

    monkeypatch.setattr(os, "fsync", look)
    before = os.umask(0)
    try:
        keys.make_node_key(tmp_path / "keys", "a")
    finally:
        os.umask(before)
    assert seen == [0o600, 0o644]
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_a_second_time_is_refused_with_what_is_there_and_what_to_do(folder):
    before = content(folder)
    told = (
        r"holds keys already \(ca\.key, ca\.pem, server\.key, server\.pem, nodes/node-0\.key, .*keys renew.*--keys-dir"
    )
    with pytest.raises(StateError, match=told):
        keys.make_keys(folder, nodes=["node-1"])
    for make in (keys.make_authority, keys.make_server_certificate):
        with pytest.raises(StateError, match=r"cannot write .*\.key: File exists"):
            make(folder)
    with pytest.raises(StateError, match=r"site\.b\.key is there already; nothing was changed.*keys revoke site\.b"):
        keys.make_node_key(folder, "site.b")
    assert content(folder) == before


def test_one_file_of_ours_is_enough_to_refuse(tmp_path):
    (tmp_path / "ca.pem").write_text("mine")
    with pytest.raises(StateError, match=r"holds keys already \(ca\.pem\)"):
        keys.make_keys(tmp_path)
    assert content(tmp_path) == {"ca.pem": b"mine"}


@pytest.mark.parametrize(
    "host", ["http://a", "a:8000", "a b", "", "-a.org", "1.2.3.999", "0.0.0.0", "a" * 64, "münchen"]
)
def test_a_host_that_is_none_is_refused_before_anything_is_written(tmp_path, host):
    with pytest.raises(ConfigError, match="is not what nodes can call the SuperLink by: give a host name or an IP"):
        keys.make_keys(tmp_path / "keys", hosts=[host])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden", "-x", "a b", "a\n", "x" * 64])
def test_a_node_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="a node cannot be called"):
        keys.make_keys(tmp_path / "keys", nodes=["fine", name])
    with pytest.raises(ConfigError, match="a node cannot be called"):
        keys.make_node_key(tmp_path / "keys", name)
    assert not (tmp_path / "keys").exists()


def test_a_folder_that_cannot_be_made_is_told_of(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"cannot make the folder .*/file/keys: File exists.*--keys-dir"):
        keys.make_keys(tmp_path / "file" / "keys")


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_to_gets_no_keys(tmp_path, mode):
    folder = tmp_path / "keys"
    (folder / "nodes").mkdir(parents=True, mode=0o700)
    for path in (folder, folder / "nodes"):
        path.chmod(mode)
        with pytest.raises(StateError, match=rf"others can put files into {path} \(mode 0{mode:o}\).*chmod 700 {path}"):
            keys.make_keys(folder)
        with pytest.raises(StateError, match="others can put files into"):
            keys.make_node_key(folder, "a")
        path.chmod(0o750)
    keys.make_node_key(folder, "a")
    assert set(content(folder)) == {"nodes/a.key", "nodes/a.pub"}


# Certificates


def test_the_authority_signs_servers_and_no_further_authority(folder):
    made = certificate(folder / "ca.pem")
    constraints = made.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = made.extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.digital_signature) == (True, False)


def test_the_server_goes_by_all_its_names(folder):
    made = certificate(folder / "server.pem").extensions
    names = made.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "superlink", "link.example.org"} <= set(names.get_values_for_type(x509.DNSName))
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == [
        "127.0.0.1",
        "::1",
        "10.0.0.7",
        "2001:db8::1",
    ]
    assert list(made.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not made.get_extension_for_class(x509.BasicConstraints).value.ca


def test_this_machines_name_is_among_them_if_it_is_one(tmp_path, monkeypatch):
    for number, (name, there) in enumerate([("Edge-7", True), ("not a name", False)]):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        keys.make_keys(tmp_path / str(number))
        (_, server) = keys.describe(tmp_path / str(number))
        assert (name.lower() in server.names) is there


def verify(folder, name, authority=None, when=None):
    builder = PolicyBuilder().store(Store([certificate((authority or folder) / "ca.pem")]))
    builder = builder.time(when or datetime.now(UTC))
    return builder.build_server_verifier(name).verify(certificate(folder / "server.pem"), [])


def test_the_chain_holds_by_the_rules_of_the_web(folder):
    assert len(verify(folder, x509.DNSName("superlink"))) == 2
    with pytest.raises(VerificationError):
        verify(folder, x509.DNSName("elsewhere.example.org"))
    with pytest.raises(VerificationError):
        verify(folder, x509.DNSName("superlink"), when=datetime.now(UTC) + timedelta(days=3 * 365))


def test_years_are_years_but_no_longer_than_the_authority(tmp_path):
    keys.make_keys(tmp_path / "a", years=1, authority_years=3)
    keys.make_keys(tmp_path / "b", years=9, authority_years=3)
    for name, days in (("a", 365), ("b", 3 * 365)):
        authority, server = keys.describe(tmp_path / name)
        assert abs(authority.expires - datetime.now(UTC) - timedelta(days=3 * 365)) < timedelta(minutes=5)
        assert abs(server.expires - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=5)


def handshake(server_folder, trusted_folder, name):
    """Shake hands on loopback and return what the client saw of the server."""
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(server_folder / "server.pem", server_folder / "server.key")
    calling = ssl.create_default_context(cafile=trusted_folder / "ca.pem")
    calling.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            # What goes wrong is the client's to tell.
            with connection, contextlib.suppress(ssl.SSLError, ConnectionError):
                accepting.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as raw,
                calling.wrap_socket(raw, server_hostname=name) as secure,
            ):
                return secure.getpeercert()
        finally:
            thread.join(10)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "superlink", "link.example.org", "10.0.0.7", "2001:db8::1"])
def test_a_client_that_trusts_the_authority_gets_through(folder, name):
    assert handshake(folder, folder, name)["subject"] == ((("commonName", "isoproto SuperLink"),),)


def test_another_authority_or_another_name_is_refused(folder, tmp_path):
    keys.make_keys(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        handshake(folder, tmp_path / "other", "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(folder, folder, "elsewhere.example.org")


def test_renewal_keeps_key_and_hosts_and_adds_more(tmp_path):
    keys.make_keys(tmp_path, hosts=["old.example.org"])
    before, old = content(tmp_path), certificate(tmp_path / "server.pem")
    keys.renew_server_certificate(tmp_path, hosts=["new.example.org", "localhost"], years=4)
    after, new = content(tmp_path), certificate(tmp_path / "server.pem")
    assert {name for name in before if before[name] != after[name]} == {"server.pem"}
    assert (new.public_key(), new.issuer) == (old.public_key(), old.issuer)
    assert new.not_valid_after_utc > old.not_valid_after_utc
    names = keys.describe(tmp_path)[1].names
    assert {"old.example.org", "new.example.org"} <= set(names)
    assert len(names) == len(set(names))
    assert handshake(tmp_path, tmp_path, "new.example.org")


def test_renewal_without_what_it_needs_says_so(tmp_path):
    with pytest.raises(StateError, match=r"cannot read the certificate .*server\.pem: .*No such file"):
        keys.renew_server_certificate(tmp_path)
    keys.make_keys(tmp_path)
    other = tmp_path / "other"
    keys.make_keys(other, nodes=["a"])
    (tmp_path / "ca.key").write_bytes((other / "nodes" / "a.pub").read_bytes())
    with pytest.raises(StateError, match=r"cannot read the private key .*ca\.key: "):
        keys.renew_server_certificate(tmp_path)


def test_an_authority_that_has_ended_signs_nothing(tmp_path):
    keys.make_keys(tmp_path / "keys")
    keys.make_authority(tmp_path / "old", years=0)
    for name in ("ca.key", "ca.pem"):
        (tmp_path / "old" / name).replace(tmp_path / "keys" / name)
    before = content(tmp_path / "keys")
    with pytest.raises(StateError, match=r"authority .*/keys/ca\.pem has ended on \d{4}-\d\d-\d\d.*keys init"):
        keys.renew_server_certificate(tmp_path / "keys")
    assert content(tmp_path / "keys") == before


# Nodes


def test_flower_takes_the_keys(folder):
    words = ["--auth-supernode-private-key", str(folder / "nodes" / "node-0.key")]
    private, public = _try_setup_client_authentication(_parse_args_run_supernode().parse_args(words))
    registered = bytes_to_public_key(try_load_public_key(keys.public_key(folder, "node-0")))
    assert private.curve.name == "secp384r1"
    assert registered == public == private.public_key()
    other = bytes_to_public_key(try_load_public_key(keys.public_key(folder, "site.b")))
    assert other != registered


def test_a_node_without_key_is_told_of(folder):
    with pytest.raises(StateError, match=r"no key of a node 'node-9' in .*, which has node-0, site\.b; make one with"):
        keys.public_key(folder, "node-9")


# Looking


def test_what_is_there(folder):
    authority, server, first, second = keys.describe(folder)
    assert authority.names[0].startswith("isoproto authority ")
    assert server.path.name == "server.pem"
    assert (first.names, first.expires, second.names) == (("node-0",), None, ("site.b",))
    assert server.fingerprint.replace(":", "").lower() == certificate(server.path).fingerprint(hashes.SHA256()).hex()
    assert not any(found.exposed for found in (authority, server, first, second))


def test_a_nodes_fingerprint_is_that_of_ssh(tmp_path):
    """Made once with ``ssh-keygen -l``."""
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "a.pub").write_text(PUBLIC)
    assert [found.fingerprint for found in keys.describe(tmp_path)] == [FINGERPRINT]


def test_a_private_key_that_lies_open_is_seen(tmp_path):
    keys.make_keys(tmp_path, nodes=["a", "b"])
    (tmp_path / "nodes" / "b.key").chmod(0o640)
    assert [found.path.name for found in keys.describe(tmp_path) if found.exposed] == ["b.pub"]


def test_nothing_and_nonsense_are_told_of(tmp_path):
    with pytest.raises(StateError, match=r"there are no keys in .*isoproto keys init"):
        keys.describe(tmp_path)
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "a.pub").write_text("nonsense")
    with pytest.raises(StateError, match=r"a\.pub is no public key in OpenSSH's format"):
        keys.describe(tmp_path)
    (tmp_path / "ca.pem").write_text("nonsense")
    with pytest.raises(StateError, match=r"cannot read the certificate .*ca\.pem"):
        keys.describe(tmp_path)
    with pytest.raises(StateError, match=r"cannot read the certificate .*ca\.pem"):
        keys.check_certificate(tmp_path / "ca.pem")
