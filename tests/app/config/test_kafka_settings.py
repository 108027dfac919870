"""Test the translation of Java client settings for aiokafka."""

from __future__ import annotations

import time

import pytest

from queryable_app.config.kafka_settings import KafkaSettingsError, Tls, kafka_connection

JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="al\\"ice" password="p;w d";'
)


def test_plaintext_needs_only_the_servers() -> None:
    """Settings for fetching and batching do not change a connection."""
    connection = kafka_connection("a:1, b:2", {"max.poll.records": "5", "isolation.level": "read_committed"})

    assert connection.arguments == {"bootstrap_servers": ["a:1", "b:2"], "security_protocol": "PLAINTEXT"}
    assert connection.tls is None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "scram-sha-512"])
def test_sasl_takes_user_and_password_from_jaas(mechanism: str) -> None:
    """User and password come from the login line of Java clients, with its quotes and escapes."""
    config = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": JAAS}

    connection = kafka_connection("a:1", config)

    assert connection.arguments["sasl_mechanism"] == mechanism.upper()
    assert connection.arguments["sasl_plain_username"] == 'al"ice'
    assert connection.arguments["sasl_plain_password"] == "p;w d"
    assert connection.tls == Tls()


def test_certificates_are_pem_in_the_settings() -> None:
    """Certificates stand in the settings; an empty algorithm turns off the check of the host name."""
    config = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "authority",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "me",
        "ssl.keystore.key": "mine",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
    }

    assert kafka_connection("a:1", config).tls == Tls(
        "authority", "me", "mine", "secret", check_hostname=False
    )


@pytest.mark.parametrize("name", ["ssl.truststore.location", "ssl.keystore.location", "config.providers"])
@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
def test_setting_that_names_a_file_is_refused(name: str, protocol: str) -> None:
    """A path could be a pipe or a device that blocks its reader; the message says what to write instead."""
    config = {"security.protocol": protocol, "ssl.truststore.type": "PEM", name: "/proc/self/fd/2"}
    with pytest.raises(KafkaSettingsError, match=rf"{name} names a file, which is not read; \w+") as refused:
        kafka_connection("a:1", config)
    assert "/proc" not in str(refused.value)


@pytest.mark.parametrize("text", ["a", "a=", "a ", 'a="\\', "a='b", '="', "a=\"\\a='", " = "])
def test_malformed_login_line_is_read_in_one_pass(text: str) -> None:
    """A megabyte that is no login line is refused within a bounded time."""
    config = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    began = time.process_time()
    with pytest.raises(KafkaSettingsError, match=r"sasl\.jaas\.config has no username"):
        kafka_connection("a:1", {**config, "sasl.jaas.config": text * (1_000_000 // len(text))})
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is not set"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism must be one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config"),
        (
            {"security.protocol": "SSL", "ssl.truststore.certificates": "x"},
            "ssl.truststore.type must be PEM",
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.keystore.certificate.chain": "x",
                "ssl.keystore.type": "PKCS12",
            },
            "ssl.keystore",
        ),
    ],
    ids=["protocol", "no mechanism", "mechanism", "no jaas", "jks", "pkcs12"],
)
def test_unsupported_setting_is_refused_by_name(config: dict[str, str], named: str) -> None:
    """A connection is never less safe than its settings say."""
    with pytest.raises(KafkaSettingsError, match=named):
        kafka_connection("a:1", config)


def test_repr_shows_no_secret() -> None:
    """The repr of a connection has no password in it."""
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS,
        "ssl.key.password": "secret",
    }

    shown = repr(kafka_connection("a:1", config))

    assert "p;w d" not in shown
    assert "secret" not in shown
