"""Certificates for a NATS of one's own: a small authority, and a server's certificate by it. Files, PEM, 0600.

Agents get `ca.crt` when they join (`enrolment.py`); browsers never see it: the HTTPS side's certificate is Caddy's.
Called by `init.py`; the days that are left are read by `doctor.py`.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared.private_file import create_private

CA_FOR: Final = timedelta(days=3653)
SERVER_FOR: Final = timedelta(days=1826)

_EARLIER: Final = timedelta(days=1)
"""Valid from a day ago: a Mac whose clock is behind is let in too."""


def make_authority(folder: Path) -> list[str]:
    """Make `ca.crt` and `ca.key` in a folder, and return what was made; what is there stays."""
    if (folder / "ca.crt").exists():
        return []
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tandem")])
    made = (
        _begun(name, name, key.public_key(), CA_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.key").unlink(missing_ok=True)  # of an authority whose certificate was lost
    _keep_key(folder / "ca.key", key)
    create_private(folder / "ca.crt", made.public_bytes(Encoding.PEM))
    return ["ca.crt", "ca.key"]


def make_server(folder: Path, name: str, hosts: Sequence[str]) -> list[str]:
    """Make `<name>.crt` and `<name>.key` for these names and addresses, by the authority there; as `make_authority`."""
    if (folder / f"{name}.crt").exists():
        return []
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        msg = f"{folder / 'ca.key'} is not an elliptic curve's key"
        raise TypeError(msg)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    made = (
        _begun(subject, authority.subject, key.public_key(), SERVER_FOR)
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        # of clients too: three servers show each other what they show to agents
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / f"{name}.key").unlink(missing_ok=True)
    _keep_key(folder / f"{name}.key", key)
    create_private(folder / f"{name}.crt", made.public_bytes(Encoding.PEM))
    return [f"{name}.crt", f"{name}.key"]


def forget_ending(folder: Path, name: str, *, within: timedelta) -> None:
    """Remove `<name>.crt` if it ends so soon, so that `make_server` makes another."""
    path = folder / f"{name}.crt"
    if (
        path.exists()
        and x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc < datetime.now(UTC) + within
    ):
        path.unlink()


def ends_at(certificate: bytes) -> datetime:
    """Return when a certificate (DER) ends."""
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_for: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _EARLIER,
        not_valid_after=now + valid_for,
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _keep_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    create_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
