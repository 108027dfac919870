"""What nodes answer, as values. What is not shaped as it must be is no answer of a node."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from queryable_app.client.attempts import Response
from queryable_app.client.exceptions import InvalidRequest, Unreachable
from queryable_app.client.keys import Key
from queryable_app.wire.http_text import parse_positions
from queryable_app.wire.json_text import read_array, read_document, read_object, read_stored

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Freshness:
    """How far the copies were that answered."""

    position: str  # `<partition>:<next offset>`, joined by commas when there were several
    lag_ms: int | None  # of the copy that is furthest behind; None: not known
    lag_records: int | None
    role: str  # active or standby
    served_by: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Row:
    """The newest record of a key, and how fresh the copy was that it came from."""

    key: Key
    value: Any  # decoded JSON; bytes when the read was raw, or when it is nested too deep for Python's parser
    partition: int
    offset: int
    timestamp: int | None  # of the record, ms; None when the node does not say
    freshness: Freshness

    @property
    def position(self) -> str:
        """As of which the answer holds; what `min_position` takes."""
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


class Unknown(Enum):
    """In place of a row, where part of an answer was enough: the key may be in a partition that nobody could answer for."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Written:
    """Where a record is."""

    partition: int
    offset: int
    position: str
    """What a read asks for, as `min_position`, to see this write."""


@dataclass(frozen=True, slots=True)
class Page:
    rows: tuple[Row, ...]
    cursor: str | None
    missing: frozenset[int]  # partitions whose rows are not in it, or not all of them


def parsed(answer: Response, parse: Callable[[Response], T]) -> T:
    try:
        return parse(answer)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest):
        raise malformed(answer.headers.get("qt-served-by", "a node")) from None


def malformed(address: str) -> Unreachable:
    return Unreachable(
        f"{address} answered something that no node of a view says", "check the address", address=address
    )


def json_of(answer: Response) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(answer.body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def rows_of(answer: Response) -> Any:
    """Return the body of an answer that has rows in `items`. A value that is too deep comes as bytes, and spoils no other row.

    Raises ValueError.
    """
    try:
        return json.loads(answer.body)
    except RecursionError:
        return read_document(answer.body, lambda text, at: read_object(text, at, _rows_member))


def _rows_member(name: str, text: str, at: int) -> tuple[Any, int]:
    if name != "items" or text[at : at + 1] != "[":
        return read_stored(text, at)
    return read_array(text, at, lambda t, a: read_object(t, a, lambda _, t, a: read_stored(t, a)))


def _value_of(answer: Response) -> Any:
    try:
        return json.loads(answer.body)
    except RecursionError:
        return answer.body


def positions_of(answer: Response) -> Mapping[int, int]:
    """As of which the answer holds."""
    return parse_positions(answer.headers.get("qt-position", "")) or {}


def freshness_of(answer: Response) -> Freshness:
    """Raises ValueError or KeyError."""
    headers = answer.headers
    return Freshness(
        headers["qt-position"],
        _known(headers["qt-lag-ms"]),
        _known(headers["qt-lag-records"]),
        headers["qt-role"],
        headers["qt-served-by"],
        int(headers["qt-epoch"]),
    )


def point_row(key: Key, answer: Response, raw: bool) -> Row:
    """Raises ValueError or KeyError."""
    headers = answer.headers
    timestamp = headers.get("qt-timestamp")
    return Row(
        key,
        answer.body if raw else _value_of(answer),
        int(headers["qt-partition"]),
        int(headers["qt-offset"]),
        None if timestamp is None else int(timestamp),
        freshness_of(answer),
    )


def item_row(item: Mapping[str, Any], freshness: Freshness, key: Key | None = None) -> Row:
    """Raises KeyError, TypeError or ValueError."""
    if key is None:
        key = item["key"]
        if item.get("keyEncoding") == "base64url":
            text = str(key)
            key = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return Row(
        key, item["value"], int(item["partition"]), int(item["offset"]), int(item["timestamp"]), freshness
    )


def page_of(answer: Response) -> Page:
    """Raises KeyError, TypeError or ValueError."""
    body, freshness = rows_of(answer), freshness_of(answer)
    cursor = body["cursor"]
    return Page(
        tuple(item_row(item, freshness) for item in body["items"]),
        None if cursor is None else str(cursor),
        frozenset(int(partition) for partition in body["missing"]),
    )


def written_of(answer: Response) -> tuple[Written, ...]:
    """One, or several where a tombstone went into several partitions. Raises KeyError, TypeError or ValueError."""
    body = json_of(answer)
    return tuple(
        Written(int(item["partition"]), int(item["offset"]), str(item["position"]))
        for item in (body if isinstance(body, list) else [body])
    )


def _known(text: str) -> int | None:
    number = int(text)
    return None if number < 0 else number
