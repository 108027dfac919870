"""Write requests for the past: a moment, and which path and parameters name the versions of a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.keys import Key, in_request, record_key
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.windows import Target, Time, time_ms
from queryable_app.errors import shown
from queryable_app.wire.checked import OFFSET_MAX, PARTITION_MAX

Moment = Time | Mapping[int, int]
"""A time; or positions, as `Row.position` has them, or `{partition: next offset}`."""

_TEXT_MAX: Final = 32 * 1024


def moment_parameters(moment: Moment | None, field: str = "as_of", name: str = "as-of") -> tuple[str, ...]:
    """Return the parameter for a moment, none if there is no moment. Raises InvalidRequest that names the field."""
    if moment is None:
        return ()
    if isinstance(moment, datetime):
        return (f"{name}={time_ms(moment, field)}",)
    if isinstance(moment, Mapping):
        text = ",".join([f"{partition}:{offset}" for partition, offset in moment.items()])
        valid = bool(moment) and all(
            _is_whole(partition, PARTITION_MAX) and _is_whole(offset, OFFSET_MAX)
            for partition, offset in moment.items()
        )
    else:
        text = str(moment)
        valid = isinstance(moment, str | int) and not isinstance(moment, bool) and text.isascii()
    if not valid or len(text) > _TEXT_MAX:
        raise InvalidRequest(
            f"{field}: {shown(moment)} is no moment",
            "give a datetime, milliseconds since 1970, ISO 8601, '<partition>:<next offset>', or {partition: offset}",
        )
    return (f"{name}={quote(text, safe=':,')}",)


def history_target(key: Key, start: Moment | None, stop: Moment | None) -> Callable[[PlacementMap], Target]:
    """Return the function to the target of the versions of a key that began to count from `start` on and before `stop`. Raises
    InvalidRequest."""
    bounds = [*moment_parameters(start, "start", "from"), *moment_parameters(stop, "stop", "to")]

    def target(placement: PlacementMap) -> Target:
        texts, encoding = in_request([record_key(key, placement.codec)], placement.codec)
        return f"/v1/keys/{texts[0]}/history", bounds + encoding

    return target


def _is_whole(value: object, highest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= highest
