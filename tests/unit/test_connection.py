"""Flower's config.toml: the entry is written, and nothing else changes."""

import stat
import tomllib
from pathlib import Path

import pytest
from flwr.cli.constant import DEFAULT_FLOWER_CONFIG_TOML
from flwr.cli.flower_config import read_superlink_connection

from isoproto.deploy.connection import check_address, with_connection, write_connection
from isoproto.errors import ConfigError

CA = Path("/keys/ca.pem")
FULL = """# mine
[superlink]
default = "isoproto"  # why not

[superlink.other]   # a comment
address = "10.0.0.1:9093"
root-certificates = '/x.pem'

[superlink.isoproto]
# the hospital's
address = "10.0.0.7:8000"
insecure = true
federation = "@me/ours"
# kept too

[superlink.isoproto.options]
num-supernodes = 4

["odd one".x]
address = "untouched"
"""


def test_a_new_entry_comes_last():
    assert with_connection(FULL, "new", "h:1", CA) == (
        FULL + '\n[superlink.new]\naddress = "h:1"\nroot-certificates = "/keys/ca.pem"\n'
    )
    assert with_connection("a = 1", "new", "h:1", None) == (
        'a = 1\n\n[superlink.new]\naddress = "h:1"\ninsecure = true\n'
    )


def test_an_entry_that_says_so_already_is_left_alone():
    assert with_connection(FULL, "isoproto", "10.0.0.7:8000", None) == FULL
    assert with_connection(FULL, "other", "10.0.0.1:9093", Path("/x.pem")) == FULL


def test_an_entry_changes_in_its_own_lines_only():
    wanted = FULL.replace(
        '# the hospital\'s\naddress = "10.0.0.7:8000"\ninsecure = true\n',
        'address = "10.0.0.7:8000"\nroot-certificates = "/keys/ca.pem"\n# the hospital\'s\n',
    )
    assert wanted != FULL
    assert with_connection(FULL, "isoproto", "10.0.0.7:8000", CA, replace=True) == wanted


@pytest.mark.parametrize(
    ("name", "address", "certificate"),
    [
        ("isoproto", "h:1", None),
        ("isoproto", "10.0.0.7:8000", CA),
        ("other", "10.0.0.1:9093", CA),
        ("other", "10.0.0.1:9093", None),
    ],
    ids=["address", "TLS", "certificate", "no TLS"],
)
def test_another_address_or_other_trust_needs_consent(name, address, certificate):
    with pytest.raises(ConfigError, match=rf"'{name}' says .*'address': .*, not .*'{address}'.*; .*--replace"):
        with_connection(FULL, name, address, certificate)


def test_consent_changes_the_entry():
    changed = with_connection(FULL, "isoproto", "h:1", None, replace=True)
    assert changed == FULL.replace(
        '# the hospital\'s\naddress = "10.0.0.7:8000"\ninsecure = true\n',
        ('address = "h:1"\ninsecure = true\n# the hospital\'s\n'),
    )


@pytest.mark.parametrize(
    "text",
    [
        'superlink = { isoproto = { address = "a:1" } }\n',
        '[superlink]\nisoproto.address = "a:1"\n',
        "[superlink]\nisoproto = 3\n",
        "superlink = 3\n",
        '[superlink.isoproto]\nfederation = """\naddress = 1\n"""\naddress = "a:1"\n',
        '[superlink.isoproto]\naddress = """\na:1"""\n',
    ],
    ids=["inline", "dotted", "number", "no table", "in a text", "long text"],
)
def test_an_unusual_layout_is_left_to_its_owner(text):
    tomllib.loads(text)
    with pytest.raises(
        ConfigError, match=r"laid out in an unusual way; write it by hand:\n\[superlink\.isoproto\]\nadd"
    ):
        with_connection(text, "isoproto", "h:1", CA, replace=True)


def test_lines_of_windows_stay_as_they_are():
    text = FULL.replace("\n", "\r\n")
    changed = with_connection(text, "isoproto", "h:1", None, replace=True)
    assert changed.replace("\r\n", "\n") == with_connection(FULL, "isoproto", "h:1", None, replace=True)
    assert changed.count("\r\n") == text.count("\r\n") - 2


@pytest.mark.parametrize("name", ["", "default", "a.b", "a b", 'a"', "a]"])
def test_a_name_that_flower_could_not_read_is_refused(name):
    with pytest.raises(ConfigError, match="a connection cannot be called"):
        with_connection("", name, "h:1", None)


@pytest.mark.parametrize(
    "address", ["", "h", "h:", ":1", "https://h:1", "h:1/v1", "::1:8000", "h:port", "h:123456", "h h:1"]
)
def test_an_address_needs_host_and_port(address):
    with pytest.raises(ConfigError, match="is not an address; give HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize("address", ["h:1", "10.0.0.7:8000", "[::1]:8000", "a-b.example.org:65535"])
def test_addresses(address):
    assert check_address(address) == address


# The file


def test_flower_reads_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    path = tmp_path / "flwr" / "config.toml"
    assert write_connection(path, DEFAULT_FLOWER_CONFIG_TOML, "isoproto", "127.0.0.1:8000", CA)
    assert path.read_text().startswith(DEFAULT_FLOWER_CONFIG_TOML)
    found = read_superlink_connection("isoproto")
    assert (found.address, found.root_certificates, found.insecure) == ("127.0.0.1:8000", str(CA), False)
    assert read_superlink_connection().name == "local"
    assert not write_connection(path, DEFAULT_FLOWER_CONFIG_TOML, "isoproto", "127.0.0.1:8000", CA)
    assert write_connection(path, DEFAULT_FLOWER_CONFIG_TOML, "isoproto", "127.0.0.1:8000", None, replace=True)
    assert read_superlink_connection("isoproto").insecure


def test_relative_certificates_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f'"{tmp_path}/ca.pem"' in with_connection("", "a", "h:1", Path("ca.pem"))


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path):
    real, link = tmp_path / "real.toml", tmp_path / "config.toml"
    real.write_text("")
    real.chmod(0o600)
    link.symlink_to(real)
    assert write_connection(link, "unused = 1\n", "a", "h:1", None)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert real.read_text() == '[superlink.a]\naddress = "h:1"\ninsecure = true\n'


@pytest.mark.parametrize(
    ("content", "told"), [(b"a = ", "is not TOML"), (b"\xff", r"cannot read .*config\.toml: 'utf-8'")]
)
def test_a_file_that_cannot_be_read_is_left_alone(tmp_path, content, told):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        write_connection(path, "", "a", "h:1", None)
    assert path.read_bytes() == content


@pytest.mark.parametrize("address", ["link:0", "link:65536", "link:99999", "a..b:80", f"{'x' * 64}.org:80", "link:²"])
def test_an_address_that_nothing_can_have_is_refused(address):
    with pytest.raises(ConfigError, match="is not an address; give HOST:PORT"):
        check_address(address)
    assert check_address("bücher.example:65535")
