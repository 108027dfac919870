"""Find the Secrets that a resource names on a machine that has none: a directory for each, with a file for each of its keys.

Strategy: the layout is the one in which Kubernetes mounts a Secret, so nodes read the same files here and there. What is missing
or cannot be used is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queryable_app.config.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import SettingsError
from queryable_app.platform.mounted_files import kafka_secret


class SecretError(Exception):
    """Report a Secret that is missing or cannot be used. The message begins with the field that names it."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The directories of a run's Secrets. An empty text: the run needs none."""

    kafka: str = ""
    auth: str = ""
    tls: str = ""

    def node_settings(self) -> Mapping[str, str]:
        return {"kafka_secret_dir": self.kafka, "auth_secret_dir": self.auth, "tls_dir": self.tls}

    def kafka_config(self, spec: TopicSpec) -> Mapping[str, str]:
        """Return the settings of Kafka's clients, those of the Secret over those of the resource."""
        return {**spec.kafka_config, **(kafka_secret(Path(self.kafka)) if self.kafka else {})}


NO_SECRETS: Final = Secrets()


def find_secrets(document: Mapping[str, Any], spec: TopicSpec, root: Path | None, kafka: str) -> Secrets:
    """Return where the Secrets are. `kafka` is the broker of the run: embedded, file or an address. Raise SecretError."""
    kafka_ref = document["spec"]["kafka"].get("secretRef")
    kafka_dir = auth_dir = tls_dir = ""
    if kafka_ref is not None and (kafka == "file" or (kafka != "embedded" and root is not None)):
        found = _directory(root, "spec.kafka.secretRef", kafka_ref["name"], "a file for each client setting")
        try:
            kafka_secret(found)
        except (SettingsError, OSError) as error:
            raise SecretError(f"spec.kafka.secretRef: {error}") from None
        kafka_dir = str(found)
    if spec.auth is not None and spec.auth.secret_name:
        field, key = "spec.auth.jwt.secretRef", spec.auth.secret_key
        found = _directory(root, field, spec.auth.secret_name, key)
        if not (found / key).is_file():
            raise SecretError(f"{field}: there is no file {key} in {found}")
        auth_dir = str(found)
    if spec.tls is not None:
        field, files = "spec.tls.secretRef", f"{CERTIFICATE_FILE}, {KEY_FILE} and {CA_FILE}"
        if not spec.tls.secret_name:
            raise SecretError(
                f"{field}: is needed here; only the operator makes certificates. Name a Secret with {files}"
            )
        tls_dir = str(_directory(root, field, spec.tls.secret_name, files))
    return Secrets(kafka_dir, auth_dir, tls_dir)


def _directory(root: Path | None, field: str, name: str, content: str) -> Path:
    if root is None:
        raise SecretError(
            f"{field}: there are no Secrets on this machine; put {content} into DIR/{name}, and run with --secrets DIR"
        )
    directory = (root / name).absolute()
    if not directory.is_dir():
        raise SecretError(f"{field}: there is no directory {directory}; put {content} into it")
    return directory
