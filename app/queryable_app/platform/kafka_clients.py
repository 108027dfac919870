"""Build the arguments of every Kafka client, with its certificates."""

from __future__ import annotations

import os
import ssl
import tempfile
from typing import Any

from queryable_app.config.kafka_settings import KafkaConnection, Tls

REQUEST_MS = 5_000
"""The timeout of a request. It is shorter than aiokafka's 40 s, because a read may wait for the answer."""


class KafkaUnavailable(Exception):
    """Report that Kafka did not answer, or does not have the topic."""


def client_arguments(connection: KafkaConnection) -> dict[str, Any]:
    """Return the arguments of any aiokafka client."""
    arguments = {"request_timeout_ms": REQUEST_MS, **connection.arguments}
    if connection.tls is not None:
        arguments["ssl_context"] = _context(connection.tls)
    return arguments


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=tls.trusted_pem or None)
    context.check_hostname = tls.check_hostname
    if tls.certificate_pem:
        # OpenSSL reads a key from a file only. Other users cannot read this one, and it is deleted at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"{tls.key_pem}\n{tls.certificate_pem}\n")
            file.flush()
            # Never None: OpenSSL would prompt for it on the terminal, and wait.
            context.load_cert_chain(file.name, password=tls.key_password)
    return context
