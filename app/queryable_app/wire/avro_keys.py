"""Encode keys in Avro: the key formats string, bytes, int, long and double as the Avro types with the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from queryable_app.config.key_schema import TypedKey
from queryable_app.wire.varints import VARINT_BYTES_MAX, from_zigzag, read_varint, varint, zigzag

_WIDTHS: Final = {"int": 4, "long": 8}


@dataclass(frozen=True, slots=True)
class AvroKeys:
    type: TypedKey
    name: ClassVar[str] = "Avro"

    def encode(self, key: bytes) -> bytes:
        if self.type in _WIDTHS:
            return varint(zigzag(int.from_bytes(key, "big", signed=True)))
        if self.type == "double":
            return key[::-1]
        return varint(zigzag(len(key))) + key

    def decode(self, encoded: bytes) -> bytes | None:
        """Return the key; None if the bytes are no key, and perhaps a key if they are not as `encode` writes one."""
        if self.type == "double":
            return encoded[::-1] if len(encoded) == 8 else None
        if self.type in _WIDTHS:
            width = _WIDTHS[self.type]
            number = from_zigzag(read_varint(encoded)) if len(encoded) <= VARINT_BYTES_MAX else 1 << 64
            within = -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1
            return number.to_bytes(width, "big", signed=True) if within else None
        length = next(
            (at for at, byte in enumerate(encoded[:VARINT_BYTES_MAX], 1) if byte < 0x80), len(encoded)
        )
        return encoded[length:]
