"""Make certificates for tests: a CA, what it signs, and directories as Kubernetes mounts a Secret."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCALHOST = ("127.0.0.1",)
_DAY = timedelta(days=1)
_USES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
_versions = count()


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class CertificateAuthority:
    """A CA that signs anything."""

    def __init__(self, name: str = "tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key(), now - _DAY, now + 99 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(Encoding.PEM)

    def sign(
        self,
        names: Sequence[str] = LOCALHOST,
        *,
        starts_in: timedelta = -_DAY,
        ends_in: timedelta = 30 * _DAY,
        subject: str = "node",
    ) -> tuple[bytes, bytes]:
        """Return a certificate for hosts, and its key, both in PEM."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        subject_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        certificate = (
            _builder(subject_name, self._name, key.public_key(), now + starts_in, now + ends_in)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), False)
            .add_extension(x509.ExtendedKeyUsage(_USES), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM), key_pem(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def mount(directory: Path, ca: bytes | None, certificate: bytes, key: bytes) -> Path:
    """Write a Secret as the kubelet does: into a new directory, which a link then names."""
    files = {"tls.crt": certificate, "tls.key": key} | ({} if ca is None else {"ca.crt": ca})
    data = directory / f"..version-{next(_versions)}"
    data.mkdir(parents=True)
    for name, content in files.items():
        (data / name).write_bytes(content)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    link = directory / "..data_tmp"
    link.symlink_to(data.name)
    os.replace(link, directory / "..data")
    return directory


def mount_for_localhost(directory: Path, ca: CertificateAuthority | None = None) -> CertificateAuthority:
    """Mount a good certificate for 127.0.0.1, and return its CA."""
    ca = ca or CertificateAuthority()
    mount(directory, ca.pem, *ca.sign())
    return ca
