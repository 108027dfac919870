"""Check the certificate of a run, and make the HTTP client with which the run calls its nodes.

Strategy: nodes find each other at 127.0.0.1 and verify that name, so a certificate without it is refused before anything starts.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import httpx

from queryable_app.config.tls import CA_FILE
from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import NODE_HEADER
from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.pods import HOST
from queryable_app.platform.certificates import (
    CertificateError,
    check_name,
    client_context,
    expiry,
    read_certificate_files,
)

_TIMEOUT_SECONDS: Final = 2.0


def scheme_of(spec: TopicSpec) -> str:
    return "http" if spec.tls is None else "https"


def check_certificate(directory: Path, field: str) -> None:
    """Raise CertificateError unless nodes of this machine can use the certificate. The message names the field."""
    try:
        files = read_certificate_files(directory)
        expiry(files)
        check_name(files, HOST)
    except CertificateError as error:
        raise CertificateError(f"{field}: {error}; it must be valid for {HOST} by {CA_FILE}") from None


def ca_file(tls_dir: str) -> str | None:
    """Return the file with the CA that clients of the run must trust; None if the system's do."""
    file = Path(tls_dir, CA_FILE)
    return str(file) if tls_dir and file.exists() else None


def node_client(data: DataDirectory, tls_dir: str) -> httpx.Client:
    """Return a client with the nodes' token. With TLS it trusts the CA beside the certificate, and without TLS no CA, since
    it takes long to load the system's. Raises CertificateError."""
    no_ca = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    verify = client_context(read_certificate_files(Path(tls_dir)).ca) if tls_dir else no_ca
    token = {NODE_HEADER: data.internal_token().read_text().strip()}
    return httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False, headers=token, verify=verify)
