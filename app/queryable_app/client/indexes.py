"""Write requests for reads by an index: which path and parameters name an index, a value and a range of values."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from urllib.parse import quote

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.windows import Target, time_ms
from queryable_app.errors import shown

IndexValue = str | int | float | bool | datetime
"""A value of an index: text, a number, true or false, or a moment."""

_ADVICE: Final = "give a str, a number, a bool or a datetime, as the index has"


def index_target(
    name: str, eq: IndexValue | None, start: IndexValue | None, stop: IndexValue | None, part: str = ""
) -> Target:
    """Return the target of the rows with one value, or with one in `[start, stop)`, or of a `part` such as their count. Raises
    InvalidRequest."""
    bounds = (("eq", "eq", eq), ("from", "start", start), ("to", "stop", stop))
    parameters = [f"{name}={_text(value, field)}" for name, field, value in bounds if value is not None]
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"name: {shown(name)} is no text", "give the name of an index")
    return f"/v1/index/{_quoted(name, 'name')}{part}", parameters


def _text(value: IndexValue, field: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return str(time_ms(value, field))
    if isinstance(value, int | float):
        return _quoted(repr(value), field)
    if isinstance(value, str):
        return _quoted(value, field)
    raise InvalidRequest(f"{field}: {shown(value)} is no value of an index", _ADVICE)


def _quoted(text: str, field: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field}: {shown(text)} is no text", _ADVICE) from None
