"""Convert a Python key to the record key's bytes, and those to the text of a request."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from math import isinf
from typing import Final
from urllib.parse import quote, quote_from_bytes
from uuid import UUID

from queryable_app.client.exceptions import InvalidRequest, from_failure
from queryable_app.errors import Failure, shown
from queryable_app.wire.serde import KeyCodec

Key = str | bytes | int | float | UUID
"""Text in the view's key format; a number or a UUID if the view's keys are that; or the record key's bytes, in any format."""

_NUMBERS: Final = ("int", "long", "double")
_VERBATIM: Final = ("string", "bytes")


def record_key(key: Key, codec: KeyCodec) -> bytes:
    """Return the bytes that producers send for this key. Raises InvalidRequest."""
    try:
        if isinstance(key, bytes):
            codec.to_disk(key)  # the bytes of an Avro key must be one
            return key
        if isinstance(key, str):
            return codec.from_text(key)
        if isinstance(key, float) and isinf(key) and codec.text_format == "double":
            return codec.from_text("Infinity" if key > 0 else "-Infinity")  # JSON has no such number
        if isinstance(key, int | float) and not isinstance(key, bool) and codec.text_format in _NUMBERS:
            return codec.from_json(key)
        if isinstance(key, UUID) and codec.text_format == "uuid":
            return codec.from_text(str(key))
    except Failure as failure:
        raise from_failure(failure) from None
    raise InvalidRequest(
        f"key: {shown(key)} is {_with_article(type(key).__name__)}, and this view's keys are {codec.text_format}",
        f"give {_expected(codec)}, or the record key's own bytes",
    )


def base64url(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def as_text(record_key: bytes, codec: KeyCodec) -> str | None:
    """Return the key in its format, percent-encoded for a path or a query; None if the format cannot express it."""
    if codec.format in _VERBATIM:
        encoded = quote_from_bytes(record_key, safe="")
    else:
        text, encoding = codec.to_json(record_key)
        if encoding is not None:
            return None
        value = json.loads(text)
        encoded = quote(value if isinstance(value, str) else text.decode(), safe="")
    # A path would resolve "." and "..".
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def in_request(record_keys: Sequence[bytes], codec: KeyCodec) -> tuple[list[str], list[str]]:
    """Return the texts of the keys in one request, and the parameter that names their encoding, if one is needed."""
    texts = [as_text(key, codec) for key in record_keys]
    if None in texts:
        return [base64url(key) for key in record_keys], ["key-encoding=base64url"]
    return [text for text in texts if text is not None], []


def _expected(codec: KeyCodec) -> str:
    if codec.text_format in _NUMBERS:
        return "a number" if codec.text_format == "double" else "an int"
    if codec.text_format == "uuid":
        return "a uuid.UUID or its text"
    return "JSON text" if codec.text_format == "json" else "a str"


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
