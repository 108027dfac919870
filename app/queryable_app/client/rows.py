"""Parse responses into rows, pages and written records. A body of another shape is no node's response."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from queryable_app.client.attempts import Response
from queryable_app.client.exceptions import InvalidRequest, NotAvailable, Unreachable
from queryable_app.client.keys import Key
from queryable_app.wire.http_text import parse_positions
from queryable_app.wire.json_text import read_array, read_document, read_object, read_stored
from queryable_app.wire.times import parse_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Freshness:
    """Hold how far the replicas were that answered."""

    position: str  # `<partition>:<next offset>`, joined by commas when there were several
    lag_ms: int | None  # of the replica with the greatest lag; None: unknown
    lag_records: int | None
    role: str  # active or standby
    served_by: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Window:
    """The time `[start_ms, end_ms)` of a window, in ms since 1970."""

    start_ms: int
    end_ms: int
    final: bool
    """No later record changes what the window holds."""


@dataclass(frozen=True, slots=True)
class Row:
    """The newest record of a key, one of its entries, or what a window of it holds, and how fresh the replica was that it came
    from."""

    key: Key
    value: Any  # decoded JSON; bytes when the read was raw, or when it is nested too deep for Python's parser
    partition: int
    offset: int
    timestamp: int | None  # of the record, ms; None if the node does not send it
    freshness: Freshness
    window: Window | None = None
    """The window of the row, in a view with windows."""
    time_ms: int | None = None
    """The time of the entry, in ms since 1970, in a view of entries."""
    deleted: bool = False
    """Whether a version of a key is its deletion; the value is then None."""

    @property
    def position(self) -> str:
        """The position of the replica; `min_position` takes it."""
        return self.freshness.position

    @property
    def lag_ms(self) -> int | None:
        return self.freshness.lag_ms

    @property
    def lag_records(self) -> int | None:
        return self.freshness.lag_records

    @property
    def role(self) -> str:
        return self.freshness.role

    @property
    def served_by(self) -> str:
        return self.freshness.served_by

    @property
    def epoch(self) -> int:
        return self.freshness.epoch


@dataclass(frozen=True, slots=True)
class Group:
    """A value of an index, and the number of rows that have it."""

    value: Any
    count: int
    truncated: bool = False
    """Whether `value` is the beginning of a longer text, of which an index keeps 1 KiB."""


class Unknown(Enum):
    """Stands for a row in a partial result: no node could answer for a partition that may hold the key."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Written:
    """Where a record was written."""

    partition: int
    offset: int
    position: str
    """A read with this `min_position` sees the write."""


@dataclass(frozen=True, slots=True)
class Page:
    """Hold one page of a scan."""

    rows: tuple[Row, ...]
    cursor: str | None
    missing: frozenset[int]  # partitions whose rows may be missing


def parsed(response: Response, parse: Callable[[Response], T]) -> T:
    """Return what `parse` makes of a response. Raises Unreachable if the response is no node's."""
    try:
        return parse(response)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest):
        raise malformed(response.headers.get("qt-served-by", "a node")) from None


def malformed(address: str) -> Unreachable:
    """Return the exception for a response that is no node's."""
    return Unreachable(
        f"{address} gave a response that no node of a view gives", "check the address", address=address
    )


def json_of(response: Response) -> Any:
    """Return the decoded body. Raises ValueError."""
    try:
        return json.loads(response.body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def rows_of(response: Response) -> Any:
    """Return the decoded body of a response with rows in `items`. A value nested too deep stays bytes; all others decode.

    Raises ValueError.
    """
    try:
        return json.loads(response.body)
    except RecursionError:
        return read_document(response.body, lambda text, at: read_object(text, at, _rows_member))


def _rows_member(name: str, text: str, at: int) -> tuple[Any, int]:
    if name != "items" or text[at : at + 1] != "[":
        return read_stored(text, at)
    return read_array(text, at, lambda t, a: read_object(t, a, lambda _, t, a: read_stored(t, a)))


def _value_of(response: Response) -> Any:
    try:
        return json.loads(response.body)
    except RecursionError:
        return response.body


def positions_of(response: Response) -> Mapping[int, int]:
    """Return the positions of the replicas that answered."""
    return parse_positions(response.headers.get("qt-position", "")) or {}


def freshness_of(response: Response) -> Freshness:
    """Return how fresh a response is. Raises ValueError or KeyError."""
    headers = response.headers
    return Freshness(
        headers["qt-position"],
        _known(headers["qt-lag-ms"]),
        _known(headers["qt-lag-records"]),
        headers["qt-role"],
        headers["qt-served-by"],
        int(headers["qt-epoch"]),
    )


def point_row(key: Key, response: Response, raw: bool) -> Row:
    """Return the row of a point read. Raises ValueError or KeyError."""
    headers = response.headers
    timestamp = headers.get("qt-timestamp")
    return Row(
        key,
        response.body if raw else _value_of(response),
        int(headers["qt-partition"]),
        int(headers["qt-offset"]),
        None if timestamp is None else int(timestamp),
        freshness_of(response),
    )


def key_of(item: Mapping[str, Any]) -> Key:
    """Return the key of an item of a body. Raises KeyError or ValueError."""
    key: Key = item["key"]
    if item.get("keyEncoding") == "base64url":
        text = str(key)
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return key


def item_row(item: Mapping[str, Any], freshness: Freshness, key: Key | None = None) -> Row:
    """Return the row of one item of a body. Raises KeyError, TypeError or ValueError."""
    return Row(
        key_of(item) if key is None else key,
        item["value"],
        int(item["partition"]),
        int(item["offset"]),
        int(item["timestamp"]),
        freshness,
        _window(item["window"]) if "window" in item else None,
        _time(item["time"]) if "time" in item else None,
        item.get("deleted") is True,
    )


def _time(text: str) -> int:
    time_ms = parse_time(text)
    if time_ms is None:
        raise ValueError(text)
    return time_ms


def _window(window: Mapping[str, Any]) -> Window:
    start_ms, end_ms = parse_time(window["start"]), parse_time(window["end"])
    if start_ms is None or end_ms is None or not isinstance(window["final"], bool):
        raise ValueError(window)
    return Window(start_ms, end_ms, window["final"])


def window_row(key: Key, response: Response) -> Row:
    """Return the row of a read of one window. Raises KeyError, TypeError or ValueError."""
    return item_row(rows_of(response), freshness_of(response), key)


def page_of(response: Response) -> Page:
    """Return the page of a scan. Raises KeyError, TypeError or ValueError."""
    body, freshness = rows_of(response), freshness_of(response)
    cursor = body["cursor"]
    return Page(
        tuple(item_row(item, freshness) for item in body["items"]),
        None if cursor is None else str(cursor),
        frozenset(int(partition) for partition in body["missing"]),
    )


@dataclass(frozen=True, slots=True)
class TextPage:
    """Hold one page of a scan, each item as its text on one line."""

    items: tuple[str, ...]
    cursor: str | None


def item_texts(response: Response) -> TextPage:
    """Return the page of a scan without reading its items, whose numbers stay as they are. Raises KeyError or ValueError."""
    body = read_document(response.body, lambda text, at: read_object(text, at, _texts_member))
    cursor = body["cursor"]
    return TextPage(tuple(body["items"]), None if cursor is None else str(cursor))


def groups_of(response: Response) -> tuple[list[Group], str | None]:
    """Return a page of the values of an index, and the cursor of the next one. Raises KeyError, TypeError or ValueError."""
    body = rows_of(response)
    groups = [
        Group(item["value"], int(item["count"]), bool(item.get("truncated", False))) for item in body["items"]
    ]
    return groups, None if body["cursor"] is None else str(body["cursor"])


def _texts_member(name: str, text: str, at: int) -> tuple[Any, int]:
    return read_array(text, at, _text_at) if name == "items" else read_stored(text, at)


def _text_at(text: str, at: int) -> tuple[str, int]:
    _, end = read_stored(text, at)
    return text[at:end].replace("\n", " ").replace("\r", " "), end  # JSON has them between tokens alone


def top_rows(response: Response) -> list[Row]:
    """Return the rows of a list without pages. Raises KeyError, TypeError or ValueError."""
    freshness = freshness_of(response)
    return [item_row(item, freshness) for item in rows_of(response)["items"]]


def multi_get_rows(
    response: Response, keys: Sequence[Key], allow_partial: bool
) -> list[Row | Unknown | None]:
    """Return a multi-get's rows in the order of its keys. Raises KeyError, TypeError or ValueError; NotAvailable if a key is
    unknown and a partial result is not allowed."""
    items, freshness = rows_of(response)["items"], freshness_of(response)
    rows: list[Row | Unknown | None] = []
    for item, key in zip(items, keys, strict=True):
        if item["found"] is None and not allow_partial:
            raise NotAvailable("a key may be in a partition that no node can read", "see /v1/status")
        unknown = UNKNOWN if item["found"] is None else None
        rows.append(item_row(item, freshness, key) if item["found"] else unknown)
    return rows


def count_of(response: Response) -> int:
    """Return the count in a response. Raises KeyError, TypeError or ValueError."""
    return int(json_of(response)["count"])


def written_of(response: Response) -> tuple[Written, ...]:
    """Return the written records: several if a tombstone went to several partitions.

    Raises KeyError, TypeError or ValueError.
    """
    body = json_of(response)
    return tuple(
        Written(int(item["partition"]), int(item["offset"]), str(item["position"]))
        for item in (body if isinstance(body, list) else [body])
    )


def _known(text: str) -> int | None:
    number = int(text)
    return None if number < 0 else number
