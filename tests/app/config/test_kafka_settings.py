"""Java client settings in aiokafka's terms."""

from __future__ import annotations

import time

import pytest

from queryable_app.config.kafka_settings import KafkaSettingsError, Tls, kafka_connection

JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="al\\"ice" password="p;w d";'
)


def test_plain_text_needs_only_the_servers() -> None:
    """Settings about fetching and batching mean nothing to a connection."""
    connection = kafka_connection("a:1, b:2", {"max.poll.records": "5", "isolation.level": "read_committed"})

    assert connection.arguments == {"bootstrap_servers": ["a:1", "b:2"], "security_protocol": "PLAINTEXT"}
    assert connection.tls is None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "scram-sha-512"])
def test_sasl_takes_user_and_password_from_jaas(mechanism: str) -> None:
    """The module line of Java clients is read, with quotes and escapes."""
    config = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": JAAS}

    connection = kafka_connection("a:1", config)

    assert connection.arguments["sasl_mechanism"] == mechanism.upper()
    assert connection.arguments["sasl_plain_username"] == 'al"ice'
    assert connection.arguments["sasl_plain_password"] == "p;w d"
    assert connection.tls == Tls()


def test_tls_in_pem() -> None:
    """Certificates are in the setting itself; an empty algorithm means no check of the name."""
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
    """A pipe or a device in the place of a certificate would hold up what opens it; the message says what to write."""
    config = {"security.protocol": protocol, "ssl.truststore.type": "PEM", name: "/proc/self/fd/2"}
    with pytest.raises(KafkaSettingsError, match=rf"{name} names a file, which is not read; \w+") as refused:
        kafka_connection("a:1", config)
    assert "/proc" not in str(refused.value)


@pytest.mark.parametrize("text", ["a", "a=", "a ", 'a="\\', "a='b", '="', "a=\"\\a='", " = "])
def test_login_line_that_is_none_takes_no_time(text: str) -> None:
    """A Secret holds a megabyte: the operator reads it once, whatever stands there."""
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
def test_what_cannot_be_followed_is_refused_by_name(config: dict[str, str], named: str) -> None:
    """A connection that is less safe than was asked for must not come about."""
    with pytest.raises(KafkaSettingsError, match=named):
        kafka_connection("a:1", config)


def test_secrets_do_not_show() -> None:
    """Nothing that is logged by accident has a password in it."""
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS,
        "ssl.key.password": "secret",
    }

    shown = repr(kafka_connection("a:1", config))

    assert "p;w d" not in shown
    assert "secret" not in shown
