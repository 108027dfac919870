"""Parse `/v1/placement`, and map a key to the addresses of its replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast, get_args
from urllib.parse import urlsplit

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.config.key_schema import PROTOBUF_TYPES, SCHEMA_ID_MAX, KeySchema, TypedKey
from queryable_app.config.protobuf_key import FIELD_NUMBER_MAX, ProtobufField
from queryable_app.config.topic_spec import KeyFormat
from queryable_app.errors import shown
from queryable_app.wire.encoded_keys import key_codec_of
from queryable_app.wire.partitioners import ALGORITHMS, SCATTER, Partitioning
from queryable_app.wire.serde import KeyCodec

_PARTITIONS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class PlacementMap:
    """Hold where a view's partitions are."""

    epoch: int
    application_id: str
    partitioner: str  # one of ALGORITHMS, or SCATTER
    codec: KeyCodec
    owners: tuple[tuple[str, ...], ...]  # by partition: addresses in the order to try them
    nodes: tuple[str, ...]  # all addresses

    def partition_of(self, record_key: bytes) -> int | None:
        """Return the key's partition; None if any may hold it, and every node searches all of them."""
        return Partitioning(self.partitioner, len(self.owners)).partition_of(record_key)

    def owners_of(self, record_key: bytes) -> tuple[str, ...]:
        """Return the addresses of the key's replicas; none if every node serves the key equally well."""
        partition = self.partition_of(record_key)
        return () if partition is None else self.owners[partition]


def parse_placement(raw: Any) -> PlacementMap:
    """Return the placement in a decoded body. Raises ValueError, KeyError or TypeError."""
    partitions = raw["partitions"]
    if not isinstance(partitions, list) or not 0 < len(partitions) <= _PARTITIONS_MAX:
        raise ValueError("partitions")
    if [entry["partition"] for entry in partitions] != list(range(len(partitions))):
        raise ValueError("partitions are not in order")
    key_format, partitioner = raw["keyFormat"], raw["partitioner"]
    if key_format not in get_args(KeyFormat) or partitioner not in (*ALGORITHMS, SCATTER):
        raise ValueError("keyFormat or partitioner")
    owners = tuple(tuple(checked_address(a) for a in entry["addresses"]) for entry in partitions)
    return PlacementMap(
        int(raw["epoch"]),
        str(raw["applicationId"]),
        partitioner,
        key_codec_of(cast(KeyFormat, key_format), _key_schema(raw, key_format)),
        owners,
        tuple(sorted({address for addresses in owners for address in addresses})),
    )


def _key_schema(raw: Any, key_format: str) -> KeySchema | None:
    if key_format not in ("avro", "protobuf"):
        return None
    schema = raw["keySchema"]
    type_, schema_id = schema["type"], schema["schemaId"]
    known = schema_id is None or (isinstance(schema_id, int) and 0 <= schema_id <= SCHEMA_ID_MAX)
    if type_ not in get_args(TypedKey) or not known:
        raise ValueError("keySchema")
    if key_format == "avro":
        return KeySchema(type_, schema_id)
    kind, number, always_written = (schema["field"][name] for name in ("type", "number", "alwaysWritten"))
    if (
        PROTOBUF_TYPES.get(kind) != type_
        or not isinstance(number, int)
        or not isinstance(always_written, bool)
    ):
        raise ValueError("keySchema")
    if not 1 <= number <= FIELD_NUMBER_MAX:
        raise ValueError("keySchema")
    return KeySchema(type_, schema_id, ProtobufField(kind, number, always_written))


def checked_address(text: object) -> str:
    """Return the address without a slash at its end. Raises InvalidRequest."""
    if not isinstance(text, str) or not _is_address(text):
        raise InvalidRequest(
            f"url: {shown(text)} is not an address", "write it like http://users.example:8080, without a path"
        )
    return text.rstrip("/")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if it is not valid
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and not any(c in text for c in "?#@ ")
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname)
