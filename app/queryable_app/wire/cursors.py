"""Encode the last key of a page as an opaque cursor, with which a scan continues.

Strategy: `version | order | digest of the scope | key | CRC-32`, as base64url. The checksum detects a truncated or edited cursor,
and the scope one of another query. A cursor is no secret and no signature: a forged one starts a scan at another key. Nodes
keep no state for it, so any node can continue.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal

from queryable_app.errors import Failure, Reason, invalid
from queryable_app.wire.sealed_text import digest as scope_digest
from queryable_app.wire.sealed_text import seal, text_length, unseal

Order = Literal["asc", "desc"]

VERSION: Final = 1
# A cursor, a third longer than its key, must fit into a request's head, 64 KiB by default.
KEY_BYTES_MAX: Final = 32 * 1024

_ORDERS: Final[tuple[Order, Order]] = ("asc", "desc")
_HEAD: Final = struct.Struct(">BB8s")
_TEXT_MAX: Final = text_length(_HEAD.size + KEY_BYTES_MAX)


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
        body = _HEAD.pack(VERSION, _ORDERS.index(self.order), scope_digest(self.scope)) + self.last_key
        return seal(body)


def decode_cursor(text: str, scope: str) -> Cursor:
    body = unseal(text, _TEXT_MAX)
    if body is None or len(body) < _HEAD.size:
        raise _broken()
    version, order, digest = _HEAD.unpack_from(body)
    if version != VERSION or order >= len(_ORDERS):
        raise invalid("cursor", "is of another release", "start again without a cursor")
    if digest != scope_digest(scope):
        raise invalid("cursor", "belongs to another query", "send it with the parameters of its page")
    return Cursor(body[_HEAD.size :], _ORDERS[order], scope)


def _broken() -> Failure:
    return invalid("cursor", "is malformed", "send it unchanged, or start again without a cursor")
