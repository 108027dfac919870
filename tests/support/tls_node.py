"""Run a node with TLS, and connect to it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from queryable_app.platform.certificates import client_context
from tests.support.certificates import CertificateAuthority, mount_for_localhost
from tests.support.node_cluster import TOKEN
from tests.support.served import Served, served

SPEC = {"secretRef": {"name": "tls"}}


@contextmanager
def tls_node(
    directory: Path,
    ca: CertificateAuthority,
    client_auth: str = "none",
    auth: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Run a node with a certificate for 127.0.0.1, in `directory/secret`, and one row."""
    mount_for_localhost(directory / "secret", ca)
    (directory / "token").write_text(TOKEN)
    settings = {
        "tls_dir": str(directory / "secret"),
        "internal_token_path": str(directory / "token"),
    } | settings
    spec = {"tls": {**SPEC, "clientAuth": client_auth}} | ({"auth": auth} if auth else {})
    with served(directory / "node", settings=settings, **spec) as node:
        node.put(b"a", b'{"n":1}')
        yield node


def trusting(
    ca: CertificateAuthority, cert: tuple[bytes, bytes] | None = None, directory: Path = Path()
) -> ssl.SSLContext:
    context = client_context(ca.pem)
    if cert is not None:
        for name, content in zip(("client.crt", "client.key"), cert, strict=True):
            (directory / name).write_bytes(content)
        context.load_cert_chain(directory / "client.crt", directory / "client.key")
    return context


def connect(node: Served, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", node.port), timeout=20)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def read_key(connection: ssl.SSLSocket) -> bytes:
    connection.sendall(b"GET /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection.recv(1 << 16)
