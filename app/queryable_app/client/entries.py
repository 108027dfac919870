"""Write requests for entries: which path and parameters name a key and the times."""

from __future__ import annotations

from collections.abc import Callable

from queryable_app.client.exceptions import InvalidRequest
from queryable_app.client.keys import Key, in_request, record_key
from queryable_app.client.placement_map import PlacementMap
from queryable_app.client.windows import Target, Time, time_bounds


def entries_target(
    key: Key | None, start: Time | None, stop: Time | None
) -> Callable[[PlacementMap], Target]:
    """Return the function to the target of the entries of a key with times in `[start, stop)`, or of all entries. Raises
    InvalidRequest."""
    bounds = time_bounds(start, stop)
    if key is None and bounds:
        raise InvalidRequest("key: a range of times is one of the entries of a key", "name the key")

    def target(placement: PlacementMap) -> Target:
        if key is None:
            return "/v1/entries", []
        texts, encoding = in_request([record_key(key, placement.codec)], placement.codec)
        return f"/v1/entries/{texts[0]}", bounds + encoding

    return target
