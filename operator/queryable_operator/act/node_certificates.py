"""Make certificates for the nodes of a view, and read and write the Secret that holds them.

No message shows what a Secret holds.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from queryable_app.config.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from queryable_operator.spec.certificates import LIFE_SECONDS, CertificateStep, NodeCertificate

_NEXT_CERTIFICATE: Final = "next.crt"
_NEXT_KEY: Final = "next.key"
_PEM_END: Final = b"-----END CERTIFICATE-----\n"
_CLOCKS_DIFFER: Final = timedelta(minutes=5)
_NOT_OF_A_CA: Final = dict.fromkeys(
    (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    chain: bytes
    """The certificate, and after it that of its CA."""

    key: bytes = field(repr=False)

    @property
    def ca(self) -> bytes:
        return self.chain.split(_PEM_END)[1] + _PEM_END


@dataclass(frozen=True, slots=True)
class StoredCertificates:
    """Hold the contents of the Secret."""

    shown: Certificate
    trusted: tuple[bytes, ...]
    """The certificates of CAs that nodes trust: that of `shown`, and of the one before or after it."""

    following: Certificate | None = None

    @property
    def ca(self) -> bytes:
        return b"".join(self.trusted)

    @property
    def data(self) -> dict[str, str]:
        """Return the Secret's data."""
        files = {CERTIFICATE_FILE: self.shown.chain, KEY_FILE: self.shown.key, CA_FILE: self.ca}
        if self.following is not None:
            files |= {_NEXT_CERTIFICATE: self.following.chain, _NEXT_KEY: self.following.key}
        return {name: base64.b64encode(content).decode() for name, content in files.items()}

    def described(self) -> NodeCertificate:
        leaf = x509.load_pem_x509_certificate(self.shown.chain)
        following = None if self.following is None else x509.load_pem_x509_certificate(self.following.chain)
        return NodeCertificate(
            _made_at(leaf),
            leaf.not_valid_after_utc.timestamp(),
            None if following is None else _made_at(following),
        )


def stored_certificates(secret: Mapping[str, Any]) -> StoredCertificates | None:
    """Parse a Secret. Return None if it has no usable certificate: a user may have edited it."""
    try:
        data = {name: base64.b64decode(text) for name, text in (secret.get("data") or {}).items()}
        shown = Certificate(data[CERTIFICATE_FILE], data[KEY_FILE])
        trusted = tuple(part + _PEM_END for part in data[CA_FILE].split(_PEM_END) if part.strip())
        following = None
        if _NEXT_CERTIFICATE in data:
            following = Certificate(data[_NEXT_CERTIFICATE], data[_NEXT_KEY])
        stored = StoredCertificates(shown, trusted, following)
        stored.described()
        usable = shown.ca in trusted and (following is None or following.ca in trusted)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    return stored if usable else None


def stepped(
    stored: StoredCertificates | None, step: CertificateStep, hosts: Sequence[str], now: float
) -> StoredCertificates:
    """Return what the Secret holds after a step."""
    if step is CertificateStep.PROMOTE and stored is not None and stored.following is not None:
        return StoredCertificates(stored.following, (stored.following.ca, stored.shown.ca))
    made = make_certificate(hosts, now)
    if step is CertificateStep.STAGE and stored is not None:
        return StoredCertificates(stored.shown, (stored.shown.ca, made.ca), made)
    return StoredCertificates(made, (made.ca,))


def make_certificate(hosts: Sequence[str], now: float, life_seconds: float = LIFE_SECONDS) -> Certificate:
    """Make a certificate for these hosts, signed by a CA whose key is forgotten."""
    began = datetime.fromtimestamp(now, UTC).replace(microsecond=0)
    until = began + timedelta(seconds=life_seconds)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Nodes of a queryable topic")])
    ca_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())

    def builder(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(began - _CLOCKS_DIFFER)
            .not_valid_after(until)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id), critical=False
            )
        )

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs_certificates,
            key_cert_sign=signs_certificates,
            crl_sign=False,
            **_NOT_OF_A_CA,
        )

    ca = (
        builder(issuer, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(ca_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    leaf = (
        builder(x509.Name([]), key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    chain = leaf.public_bytes(Encoding.PEM) + ca.public_bytes(Encoding.PEM)
    return Certificate(chain, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _made_at(certificate: x509.Certificate) -> float:
    return (certificate.not_valid_before_utc + _CLOCKS_DIFFER).timestamp()


def host_names(chain: bytes) -> list[str]:
    """Return the names and addresses in the first certificate of a chain."""
    try:
        leaf = x509.load_pem_x509_certificate(chain)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *(str(address) for address in addresses)]
