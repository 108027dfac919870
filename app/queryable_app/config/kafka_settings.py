"""Translate the connection settings of Java's Kafka clients for aiokafka.

Strategy: Spark's consumer takes the settings as they are, so the Java names are the contract. A connection setting that aiokafka
cannot apply is refused by name: the connection would be less safe than the settings say. Settings for fetching and batching have
no meaning here and are ignored. Certificates are PEM in the setting itself. A path is refused: it means another file in the
operator, in a node and on your machine, and the author of a resource must not choose what the operator opens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Possessive quantifiers: the regex reads any text once, also a megabyte that is no list of options.
_JAAS_OPTION: Final = re.compile(
    r"""\b(\w++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)'|([^\s;"']++))""", re.DOTALL
)
_INSTEAD_OF_PATHS: Final = {
    "ssl.truststore.location": "put the certificates themselves into ssl.truststore.certificates",
    "ssl.keystore.location": "put the PEM itself into ssl.keystore.certificate.chain and ssl.keystore.key",
    "config.providers": "write the values themselves, or put them into the Secret",
}
"""Settings that make a client open a file, each with what to write instead."""

_ESCAPED: Final = re.compile(r"\\(.)")


class KafkaSettingsError(Exception):
    """Report a setting that cannot be applied. The message names it and never holds a value, which may be secret."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Configure an SSL context. Empty: trust the system's certificates, and send none."""

    trusted_pem: str = ""
    certificate_pem: str = field(default="", repr=False)
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Configure a connection: arguments of any aiokafka client, and `tls` if it is encrypted."""

    arguments: Mapping[str, Any] = field(repr=False)
    tls: Tls | None = None


def refuse_paths(config: Mapping[str, str]) -> None:
    """Raise KafkaSettingsError for a setting that names a file."""
    for name, instead in _INSTEAD_OF_PATHS.items():
        if name in config:
            raise KafkaSettingsError(f"{name} names a file, which is not read; {instead}")


def kafka_connection(bootstrap_servers: str, config: Mapping[str, str]) -> KafkaConnection:
    """Return how to connect, or raise KafkaSettingsError."""
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
            raise KafkaSettingsError(f"{store}.type must be PEM, this node reads no other type")
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
