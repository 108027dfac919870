"""What every client of Kafka is made with: its arguments, and its certificates."""

from __future__ import annotations

import os
import ssl
import tempfile
from typing import Any

from queryable_app.config.kafka_settings import KafkaConnection, Tls

REQUEST_MS = 5_000
"""After that a request counts as lost. Shorter than aiokafka's 40 s: someone waits for the answer."""


class KafkaUnavailable(Exception):
    """Kafka did not answer, or did not know the topic."""


def client_arguments(connection: KafkaConnection) -> dict[str, Any]:
    """Arguments of any aiokafka client."""
    arguments = {"request_timeout_ms": REQUEST_MS, **connection.arguments}
    if connection.tls is not None:
        arguments["ssl_context"] = _context(connection.tls)
    return arguments


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=tls.trusted_pem or None)
    context.check_hostname = tls.check_hostname
    if tls.certificate_pem:
        # OpenSSL reads a key from a file alone; this one is ours to read, and gone at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"{tls.key_pem}\n{tls.certificate_pem}\n")
            file.flush()
            # Never None: OpenSSL would ask for it on the terminal, and wait.
            context.load_cert_chain(file.name, password=tls.key_password)
    return context
