"""Encode the last key of a page as an opaque cursor, with which a scan continues.

Strategy: `version | order | digest of the scope | key | CRC-32`, as base64url. The checksum detects a truncated or edited cursor,
and the scope one of another query. A cursor is no secret and no signature: a forged one starts a scan at another key. Nodes
keep no state for it, so any node can continue.
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
    scope: str  # the path and bounds of its query

    def encode(self) -> str:
        if len(self.last_key) > KEY_BYTES_MAX:
            raise Failure(
                Reason.TOO_LARGE,
                f"the page ends on a key of {len(self.last_key)} bytes; a cursor takes up to {KEY_BYTES_MAX}",
                "use another limit, or stream all rows with Accept: application/x-ndjson",
            )
        body = _HEAD.pack(VERSION, _ORDERS.index(self.order), _digest(self.scope)) + self.last_key
        return _to_text(body + _CHECKSUM.pack(crc32(body)))


def decode_cursor(text: str, scope: str) -> Cursor:
    if len(text) > _TEXT_MAX or not _TEXT.fullmatch(text) or len(text) % 4 == 1:
        raise _broken()
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    body, checksum = raw[: -_CHECKSUM.size], raw[-_CHECKSUM.size :]
    # Base64 ignores bits of its last character: accept only the text that `encode` returns.
    if len(body) < _HEAD.size or _CHECKSUM.pack(crc32(body)) != checksum or _to_text(raw) != text:
        raise _broken()
    version, order, digest = _HEAD.unpack_from(body)
    if version != VERSION or order >= len(_ORDERS):
        raise invalid("cursor", "is of another release", "start again without a cursor")
    if digest != _digest(scope):
        raise invalid("cursor", "belongs to another query", "send it with the parameters of its page")
    return Cursor(body[_HEAD.size :], _ORDERS[order], scope)


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _digest(scope: str) -> bytes:
    return blake2b(scope.encode(errors="surrogatepass"), digest_size=8).digest()


def _broken() -> Failure:
    return invalid("cursor", "is malformed", "send it unchanged, or start again without a cursor")
