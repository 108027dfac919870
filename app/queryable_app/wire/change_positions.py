"""Encode how far a client has read the change feed: the id of an event, as the client sends it back.

Strategy: `version | digest of the topic | marks | CRC-32`, as base64url. The marks are the offset of the next change of each
partition, and how far the partition is that catches up from rows; at most one does at a time. Any node can continue from an id,
and so can a later revision of the view as long as it reads the same topic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from queryable_app.wire.change_log import Mark
from queryable_app.wire.sealed_text import digest as topic_digest
from queryable_app.wire.sealed_text import seal, unseal

VERSION: Final = 1
TEXT_MAX: Final = 60 * 1024
"""An id must fit into the head of a request, 64 KiB by default."""
_KEY_BYTES_MAX: Final = 32 * 1024
_HEAD: Final = struct.Struct(">B8s")
_NUMBER_MAX: Final = (1 << 63) - 1


class BadPositions(Exception):
    """The text is no id of this feed; the message says why."""


def encode_positions(marks: Sequence[Mark], topic: str) -> str:
    """Return the id of an event after which the client continues at these marks.

    A key that is too long for an id is left out: its partition then begins to catch up anew."""
    body = bytearray(_HEAD.pack(VERSION, topic_digest(topic)))
    _add(body, len(marks), *[mark.position for mark in marks])
    for partition, (_, until, after) in enumerate(marks):
        if until >= 0 and after is not None and len(after) <= _KEY_BYTES_MAX:
            _add(body, partition, until)
            body += after
            break
    return seal(bytes(body))


def decode_positions(text: str, topic: str) -> list[Mark]:
    """Return the marks in an id. Raises BadPositions."""
    body = unseal(text, TEXT_MAX)
    if body is None or len(body) < _HEAD.size:
        raise BadPositions("is malformed")
    version, digest = _HEAD.unpack_from(body)
    if version != VERSION:
        raise BadPositions("is of another release")
    if digest != topic_digest(topic):
        raise BadPositions("belongs to another topic")
    return _marks(body[_HEAD.size :])


def _marks(body: bytes) -> list[Mark]:
    rest = iter(body)
    count = _number(rest)
    if count > len(body):
        raise BadPositions("is malformed")
    marks = [Mark(_number(rest)) for _ in range(count)]
    following = bytes(rest)
    if following:
        rest = iter(following)
        partition, until = _number(rest), _number(rest)
        if partition >= count:
            raise BadPositions("is malformed")
        marks[partition] = Mark(marks[partition].position, until, bytes(rest))
    return marks


def _add(body: bytearray, *numbers: int) -> None:
    """Append numbers, seven bits a byte, the lowest first."""
    for number in numbers:
        while number >= 0x80:
            body.append(number & 0x7F | 0x80)
            number >>= 7
        body.append(number)


def _number(rest: Iterator[int]) -> int:
    number = shift = 0
    for byte in rest:
        number |= (byte & 0x7F) << shift
        if number > _NUMBER_MAX:
            break
        if not byte & 0x80:
            return number
        shift += 7
    raise BadPositions("is malformed")
