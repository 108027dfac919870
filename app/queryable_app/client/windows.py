"""Write requests for windows: which path and parameters name a key, a window and a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.keys import Key, in_request, record_key
from queryable_app.client.placement_map import PlacementMap
from queryable_app.errors import shown
from queryable_app.wire.cursors import Order
from queryable_app.wire.times import parse_time

Time = datetime | int | str
"""A moment: a datetime, milliseconds since 1970, or ISO 8601. A datetime or a text without a zone is UTC."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ADVICE: Final = "give a datetime, milliseconds since 1970, or text like 2026-11-22T10:00:00Z"

Target = tuple[str, list[str]]
"""A path and its parameters."""


def windows_target(
    key: Key | None, start: Time | None, stop: Time | None
) -> Callable[[PlacementMap], Target]:
    """Return the function to the target of the windows that start in `[start, stop)`: of a key, or of all. Raises
    InvalidRequest."""
    bounds = time_bounds(start, stop)

    def target(placement: PlacementMap) -> Target:
        if key is None:
            return "/v1/windows", bounds
        texts, encoding = in_request([record_key(key, placement.codec)], placement.codec)
        return f"/v1/windows/{texts[0]}", bounds + encoding

    return target


def top_target(by: str, k: int, order: Order, start: Time | None, stop: Time | None) -> Target:
    """Return the target of the best windows of those that start in `[start, stop)`. Raises InvalidRequest."""
    try:
        column = quote(by, safe="")
    except (TypeError, UnicodeEncodeError):
        raise InvalidRequest(f"by: {shown(by)} is no text", "give the name of a column") from None
    return "/v1/top", [f"by={column}", f"k={k}", f"order={order}", *time_bounds(start, stop)]


def time_bounds(start: Time | None, stop: Time | None) -> list[str]:
    """Return the parameters of a range of times. Raises InvalidRequest."""
    return [
        f"{name}={time_ms(given, field)}"
        for name, field, given in (("from", "start", start), ("to", "stop", stop))
        if given is not None
    ]


def window_target(record: bytes, start: Time, placement: PlacementMap) -> Target:
    """Return the target of one window. Raises InvalidRequest."""
    texts, encoding = in_request([record], placement.codec)
    return f"/v1/windows/{texts[0]}/{quote(str(time_ms(start, 'start')))}", encoding


def time_ms(time: Time, field: str) -> int:
    """Return the milliseconds of a moment. Raises InvalidRequest, which names the field."""
    if isinstance(time, datetime):
        moment = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    parsed = parse_time(str(time)) if isinstance(time, str | int) and not isinstance(time, bool) else None
    if parsed is None:
        raise InvalidRequest(f"{field}: {shown(time)} is not a time", _ADVICE)
    return parsed
