"""Encode keys in Protobuf: a message with one scalar field, as the key format of that field's type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from queryable_app.config.protobuf_key import ProtobufField
from queryable_app.wire.varints import VARINT_BYTES_MAX, from_zigzag, read_varint, varint, zigzag

_VARINT, _EIGHT_BYTES, _COUNTED, _FOUR_BYTES = 0, 1, 2, 5
_WIRE_TYPES: Final = {
    "string": _COUNTED,
    "bytes": _COUNTED,
    "double": _EIGHT_BYTES,
    "sfixed64": _EIGHT_BYTES,
    "sfixed32": _FOUR_BYTES,
}
_WIDTHS: Final = {"int32": 4, "sint32": 4, "sfixed32": 4, "int64": 8, "sint64": 8, "sfixed64": 8, "double": 8}


@dataclass(frozen=True, slots=True)
class ProtobufKeys:
    field: ProtobufField
    name: ClassVar[str] = "Protobuf"

    def encode(self, key: bytes) -> bytes:
        if key == bytes(_WIDTHS.get(self.field.type, 0)) and not self.field.always_written:
            return b""  # serializers leave out the default of the type
        wire_type = _WIRE_TYPES.get(self.field.type, _VARINT)
        tag = varint(self.field.number << 3 | wire_type)
        if wire_type == _COUNTED:
            return tag + varint(len(key)) + key
        if wire_type != _VARINT:
            return tag + key[::-1]
        number = int.from_bytes(key, "big", signed=True)
        return tag + varint(zigzag(number) if self.field.type.startswith("s") else number & (1 << 64) - 1)

    def decode(self, encoded: bytes) -> bytes | None:
        """Return the key; None if the bytes are no key, and perhaps a key if they are not as `encode` writes one."""
        kind = self.field.type
        width = _WIDTHS.get(kind, 0)
        if not encoded:
            return bytes(width)
        wire_type = _WIRE_TYPES.get(kind, _VARINT)
        tag = varint(self.field.number << 3 | wire_type)
        if not encoded.startswith(tag):
            return None
        rest = encoded[len(tag) :]
        if wire_type == _COUNTED:
            length = next(
                (at for at, byte in enumerate(rest[:VARINT_BYTES_MAX], 1) if byte < 0x80), len(rest)
            )
            return rest[length:]
        if wire_type != _VARINT:
            return rest[::-1] if len(rest) == width else None
        if len(rest) > VARINT_BYTES_MAX:
            return None
        bits = read_varint(rest)
        number = from_zigzag(bits) if kind.startswith("s") else bits - (1 << 64) * (bits >> 63)
        within = -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1
        return number.to_bytes(width, "big", signed=True) if within else None
