"""Convert keys between text or JSON and the Avro bytes of a record key, bare or in the frame of a schema registry.

Strategy: on disk a key has the bytes of the key format with the same name, without frame and length, so that it sorts by Avro's
order. A value has one encoding here: a key whose numbers are written longer than they need be is a bad record, because
producers would hash it to another partition than a read does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from queryable_app.config.key_schema import KeySchema
from queryable_app.config.topic_spec import KeyFormat
from queryable_app.errors import invalid
from queryable_app.wire.serde import KeyCodec, base64url_json, key_codec

_FRAME: Final = struct.Struct(">BI")
_WHOLE: Final = {"int": (4, 5), "long": (8, 10)}
"""The bytes of a number on disk, and at most in Avro."""


@dataclass(frozen=True, slots=True)
class AvroKeyCodec(KeyCodec):
    inner: KeyCodec
    """Converts the key without its Avro encoding."""

    frame: bytes
    """A zero byte and the id of the schema; empty for bare keys."""

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
            frame = f" with the schema id {_FRAME.unpack(self.frame)[1]}" if self.frame else ""
            raise invalid(
                "key", f"the bytes are no Avro {self.text_format}{frame}", "write the key in its format"
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
        if self.text_format in _WHOLE:
            return self.frame + _varint(int.from_bytes(key, "big", signed=True))
        if self.text_format == "double":
            return self.frame + key[::-1]
        return self.frame + _varint(len(key)) + key

    def _decoded(self, record_key: bytes) -> bytes | None:
        """Return the key without its Avro encoding; None if the bytes are not as `_encoded` writes a key."""
        body = record_key[len(self.frame) :]
        if self.text_format == "double":
            key = body[::-1]
            return key if record_key.startswith(self.frame) and len(key) == 8 else None
        if self.text_format in _WHOLE:
            width, longest = _WHOLE[self.text_format]
            if len(body) > longest:
                return None
            number = _number(body)
            if not -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1:
                return None
            key = number.to_bytes(width, "big", signed=True)
        else:
            start = next((at for at, byte in enumerate(body[:10], 1) if byte < 0x80), len(body))
            key = body[start:]
        return key if self._encoded(key) == record_key else None


def key_codec_of(format: KeyFormat, schema: KeySchema | None) -> KeyCodec:
    """Return the codec of a view's keys. `schema` is that of Avro keys."""
    if schema is None:
        return key_codec(format)
    inner = key_codec(schema.type)
    frame = b"" if schema.schema_id is None else registry_frame(schema.schema_id)
    return AvroKeyCodec("avro", inner.order, inner.width, inner, frame)


def registry_frame(schema_id: int) -> bytes:
    """Return what a registry's serializers write before the encoding of a key or value."""
    return _FRAME.pack(0, schema_id)


def _varint(number: int) -> bytes:
    bits = number << 1 if number >= 0 else ~(number << 1)
    encoded = bytearray()
    while bits > 0x7F:
        encoded.append(bits & 0x7F | 0x80)
        bits >>= 7
    encoded.append(bits)
    return bytes(encoded)


def _number(varint: bytes) -> int:
    bits = 0
    for place, byte in enumerate(varint):
        bits |= (byte & 0x7F) << 7 * place
    return bits >> 1 ^ -(bits & 1)
