"""The keys of a deployment, as files in one folder: an authority, the SuperLink's certificate, a key for each node.

==================  ==========================================  ========================================
file                what it holds                               who needs it
==================  ==========================================  ========================================
``ca.key``          private key of the authority                this folder alone; it signs certificates
``ca.pem``          its certificate                             every node, and everyone who calls ``flwr``
``server.key``      private key of the SuperLink                the SuperLink
``server.pem``      its certificate                             the SuperLink
``nodes/NAME.key``  private key of a node, OpenSSH's format     that node
``nodes/NAME.pub``  public key of that node                     this folder; enrolling sends it
==================  ==========================================  ========================================

All keys are on the curve P-384, because Flower requires it of nodes. A private key can be read by its owner alone, from
the moment the file exists. An existing file is never replaced, except the SuperLink's certificate when it is renewed.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)

from isoproto.deploy.certificates import (
    OWN_HOSTS,
    authority_certificate,
    hosts_of,
    server_certificate,
    subject_names,
    this_machine,
)
from isoproto.errors import ConfigError, StateError
from isoproto.paths import write_atomically

AUTHORITY_YEARS = 10
SERVER_YEARS = 2
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Credential:
    """One certificate or one key of a node.

    Attributes:
        path: The file.
        expires: When the certificate ends; None for a key of a node, which is valid until it is revoked.
        names: The host names and addresses, the authority, or the node that it belongs to.
        fingerprint: SHA-256, as ``openssl x509 -fingerprint`` and ``ssh-keygen -l`` write it.
        exposed: Whether other users of this machine can read the private key.
    """

    path: Path
    expires: datetime | None
    names: tuple[str, ...]
    fingerprint: str
    exposed: bool


def make_keys(
    folder: Path,
    *,
    nodes: Iterable[str] = (),
    hosts: Iterable[str] = (),
    years: int = SERVER_YEARS,
    authority_years: int = AUTHORITY_YEARS,
) -> None:
    """Make an authority, a certificate for the SuperLink, and a key for each node. The folder must hold none of these.

    Raises:
        ConfigError: If a name of a node or of a host is not allowed. Nothing was written.
        StateError: If one of the files exists. Nothing was written.
    """
    nodes, hosts = list(nodes), list(hosts)
    subject_names(hosts)
    for name in nodes:
        _check_node_name(name)
    if found := [path.relative_to(folder).as_posix() for path in _files(folder)]:
        raise StateError(
            f"{folder} holds keys already ({', '.join(found)}); nothing was changed. Add a node with `isoproto keys "
            "add NODE`, renew the SuperLink's certificate with `isoproto keys renew`, look with `isoproto keys show`, "
            "choose another folder with --keys-dir, or remove this one if it is half made"
        )
    make_authority(folder, years=authority_years)
    make_server_certificate(folder, hosts=hosts, years=years)
    for name in nodes:
        make_node_key(folder, name)


def make_authority(folder: Path, *, years: int = AUTHORITY_YEARS) -> Path:
    """Make the private key and the certificate of an authority, and return the certificate's file.

    Raises:
        StateError: If one of the files exists.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = authority_certificate(key, years)
    _make_folders(folder)
    _write_new(folder / "ca.key", _private_pem(key), private=True)
    return _write_new(folder / "ca.pem", certificate.public_bytes(Encoding.PEM))


def make_server_certificate(folder: Path, *, hosts: Iterable[str] = (), years: int = SERVER_YEARS) -> Path:
    """Make a key and a certificate for the SuperLink, signed by the authority, and return the certificate's file.

    Args:
        folder: The folder of keys, with the authority in it.
        hosts: Names and addresses by which nodes and users call the SuperLink. ``OWN_HOSTS`` and the name of this
            machine are always added.
        years: How long the certificate is valid, but never longer than the authority's.

    Raises:
        ConfigError: If a host is neither a name nor an address.
        StateError: If one of the files exists, or if there is no valid authority.
    """
    names = subject_names([*OWN_HOSTS, *this_machine(), *hosts])
    key = ec.generate_private_key(ec.SECP384R1())
    content = _signed_for(folder, key.public_key(), names, years)
    _write_new(folder / "server.key", _private_pem(key), private=True)
    return _write_new(folder / "server.pem", content)


def renew_server_certificate(folder: Path, *, hosts: Iterable[str] = (), years: int = SERVER_YEARS) -> Path:
    """Sign a new certificate for the SuperLink's key, for the same hosts and further ones. Nodes need nothing new.

    Raises:
        ConfigError: If a host is neither a name nor an address.
        StateError: If there is no valid authority, or no certificate to renew.
    """
    path = folder / "server.pem"
    names = subject_names([*hosts_of(_read_certificate(path)), *hosts])
    key = _read_private(folder / "server.key").public_key()
    write_atomically(path, _signed_for(folder, key, names, years), mode=0o644)
    return path


def make_node_key(folder: Path, name: str) -> Path:
    """Make the two keys by which a SuperLink recognises a node, and return the file of the private key.

    Raises:
        ConfigError: If the name is not allowed.
        StateError: If one of the files exists.
    """
    _check_node_name(name)
    private, public = (folder / "nodes" / f"{name}{suffix}" for suffix in (".key", ".pub"))
    for path in (private, public):
        if path.exists():
            raise StateError(
                f"{path} is there already; nothing was changed. A node that lost its key needs a new one: "
                f"`isoproto keys revoke {name}`, then add it again"
            )
    _make_folders(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()
    _write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), private=True)
    _write_new(public, line)
    return private


def node_names(folder: Path) -> list[str]:
    """Return the names of the nodes that have a key in the folder."""
    return sorted(path.stem for path in (folder / "nodes").glob("*.pub"))


def public_key(folder: Path, name: str) -> Path:
    """Return the file of a node's public key.

    Raises:
        StateError: If there is no such file.
    """
    path = folder / "nodes" / f"{name}.pub"
    if not path.is_file():
        raise StateError(
            f"there is no key of a node {name!r} in {folder}, which has {', '.join(node_names(folder)) or 'none'}; "
            f"make one with `isoproto keys add {name}`"
        )
    return path


def public_pem(path: Path) -> bytes:
    """Read a node's public key, and return it in the format in which a SuperLink keeps it (PEM).

    Raises:
        StateError: If the file cannot be read.
    """
    try:
        return load_ssh_public_key(path.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    except (OSError, ValueError, UnsupportedAlgorithm) as err:
        raise StateError(f"{path} is no public key in OpenSSH's format: {err}; restore or remove it") from err


def check_certificate(path: Path) -> bytes:
    """Check that a file holds a certificate, and return the certificate as PEM.

    Raises:
        StateError: If the file holds no certificate.
    """
    return _read_certificate(path).public_bytes(Encoding.PEM)


def open_folders(folder: Path) -> list[Path]:
    """Return those of the folder and its sub-folder ``nodes`` that other users of this machine can write to."""
    return [path for path in (folder, folder / "nodes") if path.is_dir() and path.stat().st_mode & 0o022]


def describe(folder: Path) -> list[Credential]:
    """Return what is in a folder: the authority, the SuperLink's certificate, and the nodes' keys by name.

    Raises:
        StateError: If the folder holds no keys, or if a file cannot be read.
    """
    found = [_describe_certificate(folder / name) for name in ("ca.pem", "server.pem") if (folder / name).exists()]
    found += [_describe_node(public_key(folder, name)) for name in node_names(folder)]
    if not found:
        raise StateError(f"there are no keys in {folder}; make some with `isoproto keys init`, or see --keys-dir")
    return found


def _describe_certificate(path: Path) -> Credential:
    certificate = _read_certificate(path)
    hosts = hosts_of(certificate) or [str(part.value) for part in certificate.subject]
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex(":").upper()
    return Credential(path, certificate.not_valid_after_utc, tuple(hosts), fingerprint, _exposed(path))


def _describe_node(path: Path) -> Credential:
    try:
        blob = base64.b64decode(path.read_text("utf8").split()[1], validate=True)
    except (OSError, ValueError, IndexError) as err:
        raise StateError(f"{path} is no public key in OpenSSH's format: {err}; restore or remove it") from err
    fingerprint = "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return Credential(path, None, (path.stem,), fingerprint, _exposed(path))


def _exposed(public: Path) -> bool:
    private = public.with_suffix(".key")
    return private.exists() and bool(private.stat().st_mode & 0o077)


def _files(folder: Path) -> list[Path]:
    """Return the files of keys that exist in a folder."""
    found = [folder / name for name in ("ca.key", "ca.pem", "server.key", "server.pem")]
    return [path for path in [*found, *sorted((folder / "nodes").glob("*"))] if path.exists()]


def _check_node_name(name: str) -> None:
    if not _NODE_NAME.fullmatch(name):
        raise ConfigError(
            f"a node cannot be called {name!r}: its name is that of a file and of a line in reports; use up to 63 "
            "letters, digits, '.', '_' and '-', first a letter or digit"
        )


def _signed_for(folder: Path, key: ec.EllipticCurvePublicKey, names: list[x509.GeneralName], years: int) -> bytes:
    """Return a certificate for a server's key, as PEM, signed by the authority in the folder."""
    authority, authority_key = _read_certificate(folder / "ca.pem"), _read_private(folder / "ca.key")
    end = authority.not_valid_after_utc
    if end <= datetime.now(UTC):
        raise StateError(
            f"the authority {folder / 'ca.pem'} has ended on {end:%Y-%m-%d}, and nobody trusts what it signs; nothing "
            "was changed. Make all keys anew: move the folder away, then `isoproto keys init`"
        )
    until = min(datetime.now(UTC) + timedelta(days=365 * years), end)
    certificate = server_certificate(key, names, until, authority=authority, authority_key=authority_key)
    return certificate.public_bytes(Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_new(path: Path, content: bytes, *, private: bool = False) -> Path:
    write_atomically(path, content, mode=0o600 if private else 0o644, overwrite=False)
    return path


def _make_folders(folder: Path) -> None:
    """Make the folder of keys and its sub-folder ``nodes``, closed to other users, unless they exist."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for path in (folder, folder / "nodes"):
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as err:
        raise StateError(f"cannot make the folder {folder}: {err.strerror}; choose another with --keys-dir") from err
    if found := open_folders(folder):
        raise StateError(
            f"others can put files into {found[0]} (mode {found[0].stat().st_mode & 0o777:04o}), such as keys of their "
            f"own under names of nodes; nothing was changed. Look what is in there and call `chmod 700 {found[0]}`, or "
            "choose another folder with --keys-dir"
        )


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as err:
        raise StateError(f"cannot read the certificate {path}: {err}; restore it, or make all keys anew") from err


def _read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as err:  # TypeError: the key is encrypted
        raise StateError(f"cannot read the private key {path}: {err}; restore it, or make all keys anew") from err
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StateError(f"{path}: wanted a key on an elliptic curve, got {type(key).__name__}")
    return key
