"""Encode whole numbers in as few bytes as they need, as Avro and Protobuf do."""

from __future__ import annotations

VARINT_BYTES_MAX = 10
"""The bytes of a number of 64 bits."""


def varint(bits: int) -> bytes:
    """Return a number from 0 on: seven bits in a byte, the lowest first, and the highest bit set in all bytes but the last."""
    encoded = bytearray()
    while bits > 0x7F:
        encoded.append(bits & 0x7F | 0x80)
        bits >>= 7
    encoded.append(bits)
    return bytes(encoded)


def read_varint(encoded: bytes) -> int:
    """Return the number of these bytes, whose last one must have its highest bit clear."""
    bits = 0
    for place, byte in enumerate(encoded):
        bits |= (byte & 0x7F) << 7 * place
    return bits


def zigzag(number: int) -> int:
    """Return 0, 1, 2, 3 for 0, -1, 1, -2, so that numbers near 0 are short with either sign."""
    return number << 1 if number >= 0 else ~(number << 1)


def from_zigzag(bits: int) -> int:
    return bits >> 1 ^ -(bits & 1)
