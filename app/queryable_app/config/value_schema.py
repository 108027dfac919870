"""Parse `spec.value.schemaFrom`: where the schema of Avro, Protobuf or JSON values comes from."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from queryable_app.config.avro_schema import SchemaTextError, parse_avro_schema
from queryable_app.config.key_schema import SCHEMA_ID_MAX
from queryable_app.config.spec_fields import SpecError, whole

REGISTRY_SETTINGS: Final = "schema.registry."
"""What the names of a registry's settings begin with, among those of Kafka's clients."""

BASIC: Final = f"{REGISTRY_SETTINGS}basic.auth.user.info"
TOKEN: Final = f"{REGISTRY_SETTINGS}bearer.auth.token"
_TEXT_CHARACTERS_MAX: Final = 65_536  # as in the CRD; a ConfigMap may hold more
_PATH: Final = "spec.value.schemaFrom"
_MESSAGE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
SchemaFormat = Literal["avro", "protobuf", "json"]
_FORMATS: Final[Mapping[str, SchemaFormat]] = {"avro": "avro", "protobuf": "protobuf", "json": "json"}


@dataclass(frozen=True, slots=True)
class SchemaSource:
    text: str = ""
    """The schema that records are read as, and JSON values are checked against. Empty: each record has its own."""

    registry_url: str = ""
    """The registry of the schemas that records were written with. Empty: they were written with `text`."""

    format: SchemaFormat = "avro"
    message: str = ""
    """The full name of the Protobuf message that each record is. Empty: the only one of `text`, or any of a registry."""

    schema_id: int | None = None
    """The id of `text` in the registry, which records begin with that are written over HTTP. None: none are."""


def parse_schema_source(value: Mapping[str, Any], format: str) -> SchemaSource | None:
    """Return where the schema comes from; None for a format without one."""
    given = value.get("schemaFrom")
    known = _FORMATS.get(format)
    if known is None:
        if given:
            raise SpecError(
                f"{_PATH}: only avro, protobuf and json values have one, and spec.value.format is {format!r}; leave it out"
            )
        return None
    if not given:
        if format == "json":
            return None
        raise SpecError(f"{_PATH}: {format} values need one; give inline, configMapRef or registryUrl")
    if reference := given.get("configMapRef"):  # the operator puts the text into its place
        raise SpecError(
            f"{_PATH}.configMapRef: the ConfigMap {reference['name']} with the key {reference['key']} cannot be read; "
            f"create it, or put its text into {_PATH}.inline"
        )
    text, url, message = given.get("inline", ""), given.get("registryUrl", ""), given.get("message", "")
    if not text and not url:
        raise SpecError(f"{_PATH}: give inline, configMapRef or registryUrl")
    if text:
        _check_length(text)
        if format == "avro":  # a .proto text is read by a library of the JVM
            _check_avro_text(text)
        if format == "json":
            _check_json_text(text)
    if url:
        _check_url(url)
    if message and format != "protobuf":
        raise SpecError(f"{_PATH}.message: only protobuf values have one; leave the field out")
    if message and not _MESSAGE.fullmatch(message):
        raise SpecError(f"{_PATH}.message: write the full name of a message, like shop.v1.Order")
    schema_id = given.get("schemaId")
    if schema_id is not None and not (format == "avro" and text and url):
        raise SpecError(
            f"{_PATH}.schemaId: only avro values with registryUrl and a given schema have one; leave the field out"
        )
    id_ = None if schema_id is None else whole(schema_id, SCHEMA_ID_MAX, f"{_PATH}.schemaId")
    return SchemaSource(text, url, known, message, id_)


def _check_length(text: str) -> None:
    if len(text) > _TEXT_CHARACTERS_MAX:
        raise SpecError(
            f"{_PATH}.inline: the schema has {len(text)} characters, and the limit is {_TEXT_CHARACTERS_MAX}"
        )


def _check_avro_text(text: str) -> None:
    try:
        parse_avro_schema(text)
    except SchemaTextError as error:
        raise SpecError(f"{_PATH}.inline: no Avro schema: {error}") from None


def _check_json_text(text: str) -> None:
    """Refuse what is no JSON. A library of the JVM is the judge of a JSON Schema."""
    try:
        schema = json.loads(text)
    except RecursionError:
        raise SpecError(f"{_PATH}.inline: no JSON Schema: it is nested too deeply") from None
    except ValueError as error:
        raise SpecError(f"{_PATH}.inline: no JSON Schema: it is not JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise SpecError(f"{_PATH}.inline: no JSON Schema: it is no object")


def _check_url(url: str) -> None:
    path = f"{_PATH}.registryUrl"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SpecError(f"{path}: it is no address; write it like http://registry:8081") from None
    if parts.scheme not in ("http", "https") or not host:
        raise SpecError(f"{path}: it is no address; write it like http://registry:8081")
    if "@" in parts.netloc:
        raise SpecError(
            f"{path}: it contains a user; put {BASIC}: user:password into the Secret of spec.kafka.secretRef"
        )
    if parts.query or parts.fragment or any(ord(c) <= 32 or ord(c) > 126 for c in url):
        raise SpecError(
            f"{path}: leave out what follows the path, and spaces; write it like http://registry:8081"
        )


def split_settings(config: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of Kafka's clients, and those of the registry."""
    kafka = {name: value for name, value in config.items() if not name.startswith(REGISTRY_SETTINGS)}
    registry = {name: value for name, value in config.items() if name.startswith(REGISTRY_SETTINGS)}
    if wrong := sorted(registry.keys() - {BASIC, TOKEN}):
        raise SpecError(
            f"spec.kafka.config: {wrong[0]} is no setting of a registry; there are {BASIC} and {TOKEN}"
        )
    if len(registry) > 1:
        raise SpecError(f"spec.kafka.config: give {BASIC} or {TOKEN}, not both")
    return kafka, registry


def authorization(registry: Mapping[str, str]) -> str:
    """Return the header for the registry; empty if it needs none."""
    if BASIC in registry:
        return "Basic " + base64.b64encode(registry[BASIC].strip().encode()).decode()
    return "Bearer " + registry[TOKEN].strip() if TOKEN in registry else ""
