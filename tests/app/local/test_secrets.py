"""Test where a run finds the Secrets that a resource names, and what it says about one that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queryable_app.config.topic_spec import parse_spec
from queryable_app.local.secrets import NO_SECRETS, SecretError, Secrets, find_secrets
from tests.integration.system import resource
from tests.support.tokens import SECRET_REF, secret_directory

ALL: dict[str, Any] = {
    "tls": {"secretRef": {"name": "users-tls"}},
    "auth": {"jwt": SECRET_REF, "rules": [{"allow": ["read"]}]},
}
KAFKA = {"secretRef": {"name": "kafka-client"}}


def found(
    root: Path | None, kafka: str = "file", of_kafka: dict[str, Any] | None = None, **spec: Any
) -> Secrets:
    document = resource("users", "kafka:9092", **spec)
    document["spec"]["kafka"].update(of_kafka or {})
    return find_secrets(document, parse_spec(document["spec"]), root, kafka)


def test_each_secret_is_a_directory_of_its_name(tmp_path: Path) -> None:
    """The directories of Kafka's settings, of the key of tokens and of the certificate are below one directory."""
    for name in ("kafka-client", "users-tls"):
        (tmp_path / name).mkdir()
    (tmp_path / "kafka-client" / "sasl.mechanism").write_text("PLAIN\n")
    secret_directory(tmp_path / "jwt")

    secrets = found(tmp_path, of_kafka=KAFKA, **ALL)
    assert secrets == Secrets(*(str(tmp_path / name) for name in ("kafka-client", "jwt", "users-tls")))
    spec = parse_spec(resource("users", "kafka:9092")["spec"])
    assert secrets.kafka_config(spec) == {"sasl.mechanism": "PLAIN"}


def test_view_without_secrets_needs_no_directory() -> None:
    """Nor does the broker of a run need the settings of another one."""
    assert found(None) == NO_SECRETS
    assert found(None, "embedded", KAFKA) == NO_SECRETS
    assert found(None, "other:9092", KAFKA) == NO_SECRETS


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"of_kafka": KAFKA}, r"spec.kafka.secretRef: there are no Secrets .* into DIR/kafka-client, and run with --secrets DIR"),
        ({"auth": ALL["auth"]}, r"spec.auth.jwt.secretRef: .* put hmac into DIR/jwt, and run with --secrets DIR"),
        ({"tls": {}}, r"spec.tls.secretRef: is needed here; only the operator makes certificates"),
        ({"tls": ALL["tls"]}, r"spec.tls.secretRef: .* put tls.crt, tls.key and ca.crt into DIR/users-tls"),
    ],
)  # fmt: skip
def test_missing_directory_of_secrets_is_refused(spec: dict[str, Any], message: str) -> None:
    """The message names the field, the files, and the option."""
    with pytest.raises(SecretError, match=message):
        found(None, **spec)


def test_missing_secret_is_refused(tmp_path: Path) -> None:
    """The message names the directory, or the file, that is not there, or cannot be a setting."""
    with pytest.raises(SecretError, match=rf"spec.auth.jwt.secretRef: there is no directory {tmp_path}/jwt"):
        found(tmp_path, auth=ALL["auth"])
    (tmp_path / "jwt").mkdir()
    with pytest.raises(SecretError, match=rf"there is no file hmac in {tmp_path}/jwt"):
        found(tmp_path, auth=ALL["auth"])
    (tmp_path / "kafka-client").mkdir()
    (tmp_path / "kafka-client" / "no setting").write_text("x")
    with pytest.raises(SecretError, match="does not have the name of a Kafka client setting"):
        found(tmp_path, of_kafka=KAFKA)
