"""Write bytes as text for a URL, with a checksum, so that a truncated or edited text is detected.

The text is no secret, and the checksum no signature.
"""

from __future__ import annotations

import base64
import re
import struct
from hashlib import blake2b
from typing import Final
from zlib import crc32

DIGEST_BYTES: Final = 8
_CHECKSUM: Final = struct.Struct(">I")
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]+")


def text_length(body_bytes: int) -> int:
    """Return how many characters a body of this size has at most."""
    return (body_bytes + _CHECKSUM.size + 2) // 3 * 4


def seal(body: bytes) -> str:
    """Return the body and its checksum as base64url."""
    return _to_text(body + _CHECKSUM.pack(crc32(body)))


def unseal(text: str, length_max: int) -> bytes | None:
    """Return the body of a text that `seal` has returned, of at most this length. None: the text is no such text."""
    if len(text) > length_max or not _TEXT.fullmatch(text) or len(text) % 4 == 1:
        return None
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    body, checksum = raw[: -_CHECKSUM.size], raw[-_CHECKSUM.size :]
    # Base64 ignores bits of its last character: accept only the text that `seal` returns.
    return body if _CHECKSUM.pack(crc32(body)) == checksum and _to_text(raw) == text else None


def digest(scope: str) -> bytes:
    """Return what binds a text to its scope."""
    return blake2b(scope.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
