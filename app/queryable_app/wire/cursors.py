"""Where a scan goes on: an opaque text that holds the last key of a page.

Strategy: `version | order | digest of the scope | key | CRC-32`, as base64url. The checksum finds what was
cut or edited, the scope a cursor that belongs to another query. It is no secret and no signature: all that a
forged cursor can do is start a scan somewhere else. A node keeps nothing for it, so any node can go on.
"""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal
from zlib import crc32

from queryable_app.errors import Failure, Reason, invalid

Order = Literal["asc", "desc"]

VERSION: Final = 1
# A cursor, a third longer than its key, must fit into a request's head, 64 KiB by default.
KEY_BYTES_MAX: Final = 32 * 1024

_ORDERS: Final[tuple[Order, Order]] = ("asc", "desc")
_HEAD: Final = struct.Struct(">BB8s")
_CHECKSUM: Final = struct.Struct(">I")
_TEXT_MAX: Final = (_HEAD.size + KEY_BYTES_MAX + _CHECKSUM.size + 2) // 3 * 4
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Cursor:
    last_key: bytes  # on-disk form
    order: Order
    scope: str  # what was asked for (path and bounds), so that a cursor cannot be used for another query

    def encode(self) -> str:
        if len(self.last_key) > KEY_BYTES_MAX:
            raise Failure(
                Reason.TOO_LARGE,
                f"the page ends on a key of {len(self.last_key)} bytes; a cursor holds up to {KEY_BYTES_MAX}",
                "ask with another limit, or stream all rows with Accept: application/x-ndjson",
            )
        body = _HEAD.pack(VERSION, _ORDERS.index(self.order), _digest(self.scope)) + self.last_key
        return _to_text(body + _CHECKSUM.pack(crc32(body)))


def decode_cursor(text: str, scope: str) -> Cursor:
    if len(text) > _TEXT_MAX or not _TEXT.fullmatch(text) or len(text) % 4 == 1:
        raise _broken()
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    body, checksum = raw[: -_CHECKSUM.size], raw[-_CHECKSUM.size :]
    # Base64 leaves bits of its last character unused: only the text that was given out is the cursor.
    if len(body) < _HEAD.size or _CHECKSUM.pack(crc32(body)) != checksum or _to_text(raw) != text:
        raise _broken()
    version, order, digest = _HEAD.unpack_from(body)
    if version != VERSION or order >= len(_ORDERS):
        raise invalid("cursor", "is of another release", "start again without a cursor")
    if digest != _digest(scope):
        raise invalid(
            "cursor", "belongs to another query", "send it with the parameters of the page it came from"
        )
    return Cursor(body[_HEAD.size :], _ORDERS[order], scope)


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _digest(scope: str) -> bytes:
    return blake2b(scope.encode(errors="surrogatepass"), digest_size=8).digest()


def _broken() -> Failure:
    return invalid(
        "cursor", "is not one that was given out", "send it unchanged, or start again without a cursor"
    )
