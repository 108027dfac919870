"""Read a certificate as Kubernetes mounts it, check it, and make the contexts of TLS connections.

Strategy: a certificate is used only after a handshake in memory, in which OpenSSL itself checks that the key fits and that the
certificate is valid now. A message names a file and never shows its content. The key stays in memory: OpenSSL reads keys from
files only, so it gets one that has no name and no disk.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from queryable_app.config.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, ClientAuth

ALPN: Final = ("http/1.1",)

_FILE_BYTES_MAX: Final = 1 << 20  # as a Secret
_PEM_END: Final = b"-----END CERTIFICATE-----"
_VERIFY_MODES: Final = {
    "none": ssl.CERT_NONE,
    "request": ssl.CERT_OPTIONAL,
    # The HTTP protocol refuses a request without one: the kubelet's probes have none.
    "require": ssl.CERT_OPTIONAL,
}


class CertificateError(Exception):
    """Report a certificate that cannot be used; the message names the file and says why."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Hold the contents of a Secret with a certificate."""

    certificate: bytes
    """The chain, leaf first."""

    key: bytes = field(repr=False)
    ca: bytes = b""
    """The certificates that sign those of the other side. Empty: the system's."""

    where: str = ""
    """The directory, for messages."""


def read_certificate_files(directory: Path) -> CertificateFiles:
    """Read `tls.crt`, `tls.key` and, if it is there, `ca.crt`. Raises CertificateError."""
    return CertificateFiles(
        _read(directory / CERTIFICATE_FILE), _read(directory / KEY_FILE), read_ca(directory), str(directory)
    )


def read_ca(directory: Path) -> bytes:
    """Read `ca.crt`, or return nothing if it is not there. Raises CertificateError."""
    return _read(directory / CA_FILE) if (directory / CA_FILE).exists() else b""


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateError(f"{file} cannot be read: {error.strerror or error}") from None
    if len(content) > _FILE_BYTES_MAX:
        raise CertificateError(f"{file} is larger than {_FILE_BYTES_MAX} bytes")
    return content


def expiry(files: CertificateFiles) -> float:
    """Return when the certificate expires, in seconds since 1970. Raises CertificateError if it cannot be used now."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(server, files)
    leaf = files.certificate.partition(_PEM_END)[0] + _PEM_END + b"\n"
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the leaf alone is checked
    _trust(client, leaf, f"{files.where}/{CERTIFICATE_FILE}")
    shown = _handshake(server, client, None, f"{files.where}/{CERTIFICATE_FILE}")
    return float(ssl.cert_time_to_seconds(shown))


def check_name(files: CertificateFiles, host: str) -> None:
    """Check that the other nodes will accept the certificate for this host. Raises CertificateError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(server, files)
    _handshake(server, client_context(files.ca), host, f"{files.where}/{CERTIFICATE_FILE}")


def server_context(files: CertificateFiles, client_auth: ClientAuth = "none") -> ssl.SSLContext:
    """Return the context of connections that a node accepts. Raises CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(ALPN)
    _load_chain(context, files)
    context.verify_mode = _VERIFY_MODES[client_auth]
    if client_auth != "none":
        if not files.ca:
            raise CertificateError(
                f"{files.where}/{CA_FILE} is missing; spec.tls.clientAuth {client_auth} needs the CA of the clients in it"
            )
        _trust(context, files.ca, f"{files.where}/{CA_FILE}")
    return context


def client_context(ca: bytes = b"", files: CertificateFiles | None = None) -> ssl.SSLContext:
    """Return the context of connections to nodes, which verifies their name and CA. `files` are the client's own certificate.
    Without a CA the system's are trusted. Raises CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    if ca:
        _trust(context, ca, CA_FILE)
    else:
        context.load_default_certs()
    if files is not None:
        _load_chain(context, files)
    return context


def _trust(context: ssl.SSLContext, pem: bytes, name: str) -> None:
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise CertificateError(f"{name} holds no certificate in PEM") from None


def _load_chain(context: ssl.SSLContext, files: CertificateFiles) -> None:
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(files.key + b"\n" + files.certificate)
        # Never None: OpenSSL would prompt for a password on the terminal, and wait.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    except ssl.SSLError as error:
        why = "the key does not fit the certificate" if error.reason == "KEY_VALUES_MISMATCH" else None
        why = why or "they are no certificate and key in PEM, or the key has a password"
        raise CertificateError(f"{files.where}: {CERTIFICATE_FILE} and {KEY_FILE}: {why}") from None
    finally:
        os.close(descriptor)


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None, name: str) -> str:
    """Let a client meet a server in memory. Return when the server's certificate expires, as OpenSSL writes it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    of_client = client.wrap_bio(to_client, to_server, server_hostname=host)
    of_server = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(2):
            for side in (of_client, of_server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(f"{name} is refused: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise CertificateError(f"{name} cannot be used: {error.reason or error}") from None
    shown = of_client.getpeercert()
    return str(shown["notAfter"]) if shown else ""
