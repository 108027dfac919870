"""Kafka client settings as Java clients name them, in the terms of aiokafka.

Strategy: Spark's consumer takes the settings as they are, so the Java names are the contract. Here those that decide how to
connect are translated; one that aiokafka cannot follow is refused by name, for a connection that is less safe than was
asked for must not come about. Settings of how a Java client fetches or batches mean nothing here and are left out.
Certificates are PEM in the setting itself. A path is refused: it means another file in the operator, in a node and on your
machine, and the author of a resource may not choose what the operator opens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Possessive: a text of a megabyte that is no list of options takes no longer than to read it once.
_JAAS_OPTION: Final = re.compile(
    r"""\b(\w++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)'|([^\s;"']++))""", re.DOTALL
)
_CONTENTS: Final = {
    "ssl.truststore.location": "put the certificates themselves into ssl.truststore.certificates",
    "ssl.keystore.location": "put the PEM itself into ssl.keystore.certificate.chain and ssl.keystore.key",
    "config.providers": "write the values themselves, or put them into the Secret",
}
"""Settings that make a client open a file, and what to write instead."""

_ESCAPED: Final = re.compile(r"\\(.)")


class KafkaSettingsError(Exception):
    """A setting cannot be followed; the message names it. It never holds a value that may be secret."""


@dataclass(frozen=True, slots=True)
class Tls:
    """What an SSL context is made of. Empty: the system's certificates, and no certificate of our own."""

    trusted_pem: str = ""
    certificate_pem: str = field(default="", repr=False)
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """How to reach Kafka: arguments of any aiokafka client, and `tls` when it is encrypted."""

    arguments: Mapping[str, Any] = field(repr=False)
    tls: Tls | None = None


def refuse_paths(config: Mapping[str, str]) -> None:
    """Raise KafkaSettingsError for a setting that names a file. The operator, every node and `qtopic` follow the same rule."""
    for name, instead in _CONTENTS.items():
        if name in config:
            raise KafkaSettingsError(f"{name} names a file, which is not read; {instead}")


def kafka_connection(bootstrap_servers: str, config: Mapping[str, str]) -> KafkaConnection:
    refuse_paths(config)
    protocol = _one_of(config, "security.protocol", _PROTOCOLS)
    arguments: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in bootstrap_servers.split(",") if server.strip()],
        "security_protocol": protocol,
    }
    if "client.id" in config:
        arguments["client_id"] = config["client.id"]
    if protocol.startswith("SASL"):
        arguments |= _sasl(config)
    return KafkaConnection(arguments, _tls(config) if protocol.endswith("SSL") else None)


def _sasl(config: Mapping[str, str]) -> dict[str, Any]:
    if "sasl.mechanism" not in config:  # Java's default is GSSAPI
        raise KafkaSettingsError(f"sasl.mechanism is not set; use one of {', '.join(_MECHANISMS)}")
    mechanism = _one_of(config, "sasl.mechanism", _MECHANISMS)
    options = {
        name: _ESCAPED.sub(r"\1", double or single or bare)
        for name, double, single, bare in _JAAS_OPTION.findall(config.get("sasl.jaas.config", ""))
    }
    if "username" not in options or "password" not in options:
        raise KafkaSettingsError(
            "sasl.jaas.config has no username and password; write: org.apache.kafka.common.security.plain.PlainLoginModule "
            'required username="..." password="...";'
        )
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": options["username"],
        "sasl_plain_password": options["password"],
    }


def _tls(config: Mapping[str, str]) -> Tls:
    for store in ("ssl.truststore", "ssl.keystore"):
        given = any(f"{store}.{what}" in config for what in ("certificates", "certificate.chain"))
        if given and config.get(f"{store}.type", "JKS") != "PEM":
            raise KafkaSettingsError(f"{store}.type must be PEM, other kinds are not read by this node")
    algorithm = config.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm not in ("", "https"):
        raise KafkaSettingsError("ssl.endpoint.identification.algorithm must be https, or empty for no check")
    return Tls(
        trusted_pem=config.get("ssl.truststore.certificates", ""),
        certificate_pem=config.get("ssl.keystore.certificate.chain", ""),
        key_pem=config.get("ssl.keystore.key", ""),
        key_password=config.get("ssl.key.password", ""),
        check_hostname=algorithm == "https",
    )


def _one_of(config: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = config.get(name, allowed[0]).upper()
    if value not in allowed:
        raise KafkaSettingsError(f"{name} must be one of {', '.join(allowed)}")
    return value
