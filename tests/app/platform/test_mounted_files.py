"""The files that a node is given: the resource's spec, and the secret settings of Kafka's clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queryable_app.contract import SettingsError
from queryable_app.platform.mounted_files import kafka_secret, read_spec
from tests.support.node import node_settings


def test_secret_settings_are_laid_over_those_of_the_spec(tmp_path: Path) -> None:
    """A file wins over a setting of the same name; the others stay."""
    secret = tmp_path / "kafka"
    secret.mkdir()
    (secret / "sasl.mechanism").write_text("PLAIN\n")
    config = {"sasl.mechanism": "GSSAPI", "retries": "3"}
    kafka = {"bootstrapServers": "kafka:9092", "config": config}
    settings = node_settings(tmp_path, settings={"kafka_secret_dir": str(secret)}, kafka=kafka)

    assert read_spec(settings).kafka_config == {"sasl.mechanism": "PLAIN", "retries": "3"}


def test_a_secret_is_read_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    """Files are links into a directory that begins with two dots; that directory is no setting, and neither is its link."""
    written = tmp_path / "..2026_01_01"
    written.mkdir()
    (written / "ssl.key.password").write_text("secret")
    (tmp_path / "..data").symlink_to(written.name)
    (tmp_path / "ssl.key.password").symlink_to("..data/ssl.key.password")

    assert kafka_secret(tmp_path) == {"ssl.key.password": "secret"}


@pytest.mark.parametrize(
    ("written", "value"),
    [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("", ""), ("a\nb\n", "a\nb"), ("ä ", "ä ")],
    ids=ascii,
)
def test_one_newline_at_the_end_is_the_editors(tmp_path: Path, written: str, value: str) -> None:
    """It is taken away; everything else belongs to the setting."""
    (tmp_path / "client.id").write_bytes(written.encode())
    assert kafka_secret(tmp_path) == {"client.id": value}


def test_what_is_wrong_with_a_secret_is_said_without_its_words(tmp_path: Path) -> None:
    """A message names the file."""
    for name, content in (("a b", b"hush"), ("not.text", b"hush\xff"), ("large", b"hush" * (1 << 18) + b"h")):
        directory = tmp_path / name.replace(" ", "")
        directory.mkdir()
        (directory / name).write_bytes(content)
        with pytest.raises(SettingsError) as error:
            kafka_secret(directory)
        assert name in str(error.value)
        assert "hush" not in str(error.value)


def test_secrets_are_bounded_together(tmp_path: Path) -> None:
    """As in Kubernetes, where all files of a Secret share one bound."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * 400_000)
    with pytest.raises(SettingsError, match="too large"):
        kafka_secret(tmp_path)


def test_a_spec_does_not_show_its_secrets(tmp_path: Path) -> None:
    """Whoever prints it prints no password."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "sasl.jaas.config").write_text('username="u" password="hush"')
    spec = read_spec(node_settings(tmp_path, settings={"kafka_secret_dir": str(tmp_path / "kafka")}))

    assert "hush" in spec.kafka_config["sasl.jaas.config"]
    assert "hush" not in repr(spec)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"topic": "t"}', '{"kafka": 1, "topic": "t"}', "\xff"])
def test_a_file_that_is_no_spec_is_named(tmp_path: Path, text: str) -> None:
    """It is the fault of whoever starts the node, who reads which file it is."""
    settings = node_settings(tmp_path)
    Path(settings.spec_path).write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"spec.json \(QT_SPEC_PATH\) is not a resource's spec"):
        read_spec(settings)


def test_a_spec_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """No resource is."""
    settings = node_settings(tmp_path)
    Path(settings.spec_path).write_text(json.dumps({"topic": "t" * (2 << 20)}))
    with pytest.raises(SettingsError, match="too large"):
        read_spec(settings)
