"""Test the mounted files: the resource's spec, and the secret settings of Kafka's clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queryable_app.contract import SettingsError
from queryable_app.platform.mounted_files import kafka_secret, read_spec
from tests.support.node import node_settings


def test_secret_settings_override_those_of_the_spec(tmp_path: Path) -> None:
    """A file overrides the spec's setting of its name; other settings stay."""
    secret = tmp_path / "kafka"
    secret.mkdir()
    (secret / "sasl.mechanism").write_text("PLAIN\n")
    config = {"sasl.mechanism": "GSSAPI", "retries": "3"}
    kafka = {"bootstrapServers": "kafka:9092", "config": config}
    settings = node_settings(tmp_path, settings={"kafka_secret_dir": str(secret)}, kafka=kafka)

    assert read_spec(settings).kafka_config == {"sasl.mechanism": "PLAIN", "retries": "3"}


def test_secret_is_read_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    """Files link into a directory that begins with two dots, which is no setting itself."""
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
def test_last_newline_is_removed(tmp_path: Path, written: str, value: str) -> None:
    """One newline at the end is removed; everything else belongs to the setting."""
    (tmp_path / "client.id").write_bytes(written.encode())
    assert kafka_secret(tmp_path) == {"client.id": value}


def test_error_about_a_secret_shows_no_content(tmp_path: Path) -> None:
    """A message about a wrong file has its name and not its content."""
    for name, content in (("a b", b"hush"), ("not.text", b"hush\xff"), ("large", b"hush" * (1 << 18) + b"h")):
        directory = tmp_path / name.replace(" ", "")
        directory.mkdir()
        (directory / name).write_bytes(content)
        with pytest.raises(SettingsError) as error:
            kafka_secret(directory)
        assert name in str(error.value)
        assert "hush" not in str(error.value)


def test_secret_files_share_one_bound(tmp_path: Path) -> None:
    """All files of a Secret together have one bound, as in Kubernetes."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * 400_000)
    with pytest.raises(SettingsError, match="too large"):
        kafka_secret(tmp_path)


def test_repr_of_a_spec_shows_no_secret(tmp_path: Path) -> None:
    """The repr of a spec has no password."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "sasl.jaas.config").write_text('username="u" password="hush"')
    spec = read_spec(node_settings(tmp_path, settings={"kafka_secret_dir": str(tmp_path / "kafka")}))

    assert "hush" in spec.kafka_config["sasl.jaas.config"]
    assert "hush" not in repr(spec)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"topic": "t"}', '{"kafka": 1, "topic": "t"}', "\xff"])
def test_malformed_spec_file_is_named(tmp_path: Path, text: str) -> None:
    """The error names the file that is no spec."""
    settings = node_settings(tmp_path)
    Path(settings.spec_path).write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"spec.json \(QT_SPEC_PATH\) is not a resource's spec"):
        read_spec(settings)


def test_spec_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """A file larger than any resource is refused."""
    settings = node_settings(tmp_path)
    Path(settings.spec_path).write_text(json.dumps({"topic": "t" * (2 << 20)}))
    with pytest.raises(SettingsError, match="too large"):
        read_spec(settings)
