"""Write the parameters that select rows and fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.errors import shown
from queryable_app.wire.json_paths import TEXT_BYTES_MAX

Fields = str | Sequence[str]
"""Paths into a value, in one text with commas between them, or one by one."""

PROBE: Final = ("probe=true",)


def selection_parameters(where: str | None = None, fields: Fields | None = None) -> tuple[str, ...]:
    """Return the parameters for conditions and fields. Raises InvalidRequest. Nodes check the language."""
    joined = fields if fields is None or isinstance(fields, str) else ",".join(map(_text, fields))
    given = (("where", where), ("fields", joined))
    return tuple(f"{name}={_quoted(name, text)}" for name, text in given if text is not None)


def _text(field: object) -> str:
    if not isinstance(field, str):
        raise InvalidRequest(f"fields: {shown(field)} is no text", "give the path of each field as a str")
    return field


def _quoted(name: str, text: object) -> str:
    try:
        raw = text.encode()  # type: ignore[attr-defined]
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequest(
            f"{name}: {shown(text)} is no text", "give a str; docs/queries.md has the language"
        ) from None
    if len(raw) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"{name}: has {len(raw)} bytes", f"give at most {TEXT_BYTES_MAX}")
    return quote(raw, safe="")
