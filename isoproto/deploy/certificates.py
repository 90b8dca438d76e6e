"""The certificates of a deployment: the authority's and the SuperLink's. Nothing here reads or writes files."""

import ipaddress
import re
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isoproto.errors import ConfigError

# Names and addresses of the SuperLink on its machine and in a compose file.
OWN_HOSTS = ("localhost", "127.0.0.1", "::1", "superlink")
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*(?!\d+$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
)
_CLOCKS_DIFFER = timedelta(hours=1)


def authority_certificate(key: ec.EllipticCurvePrivateKey, years: int) -> x509.Certificate:
    """Return the certificate with which an authority vouches for itself.

    It can sign certificates of servers, but none of further authorities (path length 0).
    """
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"isoproto authority {identifier.digest.hex()[:8]}")
    return (
        _draft(name, key.public_key(), name, until=datetime.now(UTC) + timedelta(days=365 * years))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    key: ec.EllipticCurvePublicKey,
    names: list[x509.GeneralName],
    until: datetime,
    *,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """Return the certificate of a server's key, signed by an authority.

    Args:
        key: The server's key.
        names: Names and addresses that the server may be called by, see :func:`subject_names`.
        until: When it ends.
        authority: The certificate of the authority.
        authority_key: The private key of the authority.
    """
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _draft(_name("isoproto SuperLink"), key, authority.subject, until=until)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def this_machine() -> list[str]:
    """Return this machine's name as a list; the list is empty if a certificate cannot hold the name."""
    name = socket.gethostname().lower()
    return [name] if _HOST_NAME.fullmatch(name) else []


def subject_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Return each host once, as the name or the address that a certificate holds.

    Raises:
        ConfigError: If a host is neither a name nor an address.
    """
    return list(dict.fromkeys(_subject_name(host) for host in hosts))


def _subject_name(host: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        address = None
    if address and not address.is_unspecified:
        return x509.IPAddress(address)
    if not address and _HOST_NAME.fullmatch(host.lower()):
        return x509.DNSName(host.lower())
    raise ConfigError(
        f"--host {host!r} is not what nodes can call the SuperLink by: give a host name or an IP address, without "
        "scheme and port"
    )


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses that a certificate is for; an authority's certificate has none."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _draft(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name, *, until: datetime
) -> x509.CertificateBuilder:
    """Return the part that all certificates share. It is valid from an hour ago, for nodes whose clocks are late."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCKS_DIFFER)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return what a key may be used for: to sign certificates, or to prove an identity in a TLS handshake."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
