"""Convert keys between text or JSON and the Avro or Protobuf bytes of a record key, bare or in the frame of a schema registry.

Strategy: on disk a key has the bytes of the key format of its type, without frame and encoding, so that numbers sort by value
and text by its bytes. A value has one encoding here: a key whose bytes no serializer writes, such as a number that is longer than
it need be, is a bad record, because producers would hash it to another partition than a read does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Protocol

from queryable_app.config.key_schema import KeySchema
from queryable_app.config.topic_spec import KeyFormat
from queryable_app.errors import invalid
from queryable_app.wire.avro_keys import AvroKeys
from queryable_app.wire.protobuf_keys import ProtobufKeys
from queryable_app.wire.serde import KeyCodec, base64url_json, key_codec

_FRAME: Final = struct.Struct(">BI")
_FIRST_MESSAGE: Final = b"\0"
"""What Protobuf's serializers write behind the id: the place of the message in its file."""


class KeyEncoding(Protocol):
    @property
    def name(self) -> str: ...

    def encode(self, key: bytes) -> bytes: ...

    def decode(self, encoded: bytes) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class EncodedKeyCodec(KeyCodec):
    inner: KeyCodec
    """Converts the key without its encoding."""

    encoding: KeyEncoding
    schema_id: int | None
    frame: bytes
    """What precedes the encoding; empty for bare keys."""

    @property
    def text_format(self) -> KeyFormat:
        return self.inner.format

    @property
    def stores_record_keys(self) -> bool:
        return False

    def from_url_bytes(self, raw: bytes) -> bytes:
        return self._encoded(self.inner.from_url_bytes(raw))

    def from_text(self, text: str) -> bytes:
        return self._encoded(self.inner.from_text(text))

    def from_json(self, value: object) -> bytes:
        return self._encoded(self.inner.from_json(value))

    def to_disk(self, record_key: bytes) -> bytes:
        """Return the on-disk key. Raises Failure if the bytes, which a caller gave, are no key of the schema."""
        key = self._decoded(record_key)
        if key is None:
            frame = "" if self.schema_id is None else f" with the schema id {self.schema_id}"
            raise invalid(
                "key",
                f"the bytes are no {self.encoding.name} {self.text_format}{frame}",
                "write the key in its format",
            )
        return self.inner.to_disk(key)

    def to_record(self, disk_key: bytes) -> bytes:
        return self._encoded(self.inner.to_record(disk_key))

    def to_json(self, record_key: bytes) -> tuple[bytes, str | None]:
        key = self._decoded(record_key)
        if key is not None:
            shown, encoding = self.inner.to_json(key)
            if encoding is None:
                return shown, None
        return base64url_json(record_key), "base64url"

    def _encoded(self, key: bytes) -> bytes:
        return self.frame + self.encoding.encode(key)

    def _decoded(self, record_key: bytes) -> bytes | None:
        """Return the key without its encoding; None if the bytes are not as `_encoded` writes a key."""
        key = self.encoding.decode(record_key[len(self.frame) :])
        return key if key is not None and self._encoded(key) == record_key else None


def key_codec_of(format: KeyFormat, schema: KeySchema | None) -> KeyCodec:
    """Return the codec of a view's keys. `schema` is that of Avro and Protobuf keys."""
    if schema is None:
        return key_codec(format)
    inner, frame = key_codec(schema.type), b""
    encoding = AvroKeys(schema.type) if schema.field is None else ProtobufKeys(schema.field)
    if schema.schema_id is not None:
        frame = registry_frame(schema.schema_id) + (b"" if schema.field is None else _FIRST_MESSAGE)
    return EncodedKeyCodec(format, inner.order, inner.width, inner, encoding, schema.schema_id, frame)


def registry_frame(schema_id: int) -> bytes:
    """Return what a registry's serializers write before the encoding of a key or value."""
    return _FRAME.pack(0, schema_id)
